"""The public rule: everything that would be a setting, from schema, patients, epsilon and delta.

Its first part is applied before a row is read: it sets the shares of the budget and the number of
codes of a column in the pair tables. The second part also reads the released one-ways: it chooses
the measured pairs, the groups of codes and the fit of the mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats, Integers
from tasks.measurement.centred import centred_norm
from tasks.methods.clustmix.records import interactions
from tasks.methods.clustmix.records.table_layout import Layout

DEFAULT_PATIENTS = 10_000
"""Patients that the rule assumes where the site file declares no number."""

MAX_CELLS = 400_000
"""Most values of the draw of pair tables."""

DEVIATION = float(np.sqrt(0.5 / np.pi))
"""Half of ``E|N(0, 1)|``: mean total variation distance that unit noise adds in one cell."""

_ONE_WAY_NOISE = 0.014
_LEAST_ONE_WAY, _MOST_ONE_WAY, _DROWNED_ONE_WAY = 0.10, 0.30, 0.90
_PAIR_PART, _LEAST_PAIR_PART = 0.4, 0.25
_PAIR_NOISE = 0.40
_ONE_WAY_PART, _TOLERATED = 0.22, 0.02
_TOLERATED_BEFORE_PAIRS, _MOST_BEFORE_PAIRS = 0.006, 0.7
_FEW_CODES, _FEW_CODES_NOISE = 3, 0.25
_DROWNING = 0.03
_LEAST_POTENTIAL = 0.05
_LEAST_RATIO = 0.5
_FINE_PAIR_NOISE = 0.03
_KERNEL_PART = 0.15
_PER_PRODUCT, _MOST_PRODUCTS = 40.0, 200
_ROUNDS, _ROUNDS_OF_WIDE, WIDE = 2, 4, 100
_PENALTY = 1.3

LABEL_SCALE = 1.7
"""Prior standard deviation of a record's log-odds of two labels that are equally frequent."""

RARITY_MEAN, RARITY_SPREAD = 0.2, 0.25
"""Prior mean, in log shares of the labels, and prior standard deviation of the effect of a
patient's rarity on the log-odds: rare labels tend to go with rare codes.
"""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of ``mu**2`` for the draws; `residuals` is that of each of the `rounds`.

    `one_ways` is the one-ways' part of the draw of pair tables. `drowned`, from 0 to 1, is the
    degree to which noise dominates pair tables: 0 up to a noise of 0.03 in naive Bayes.
    """

    label_counts: float
    pair_tables: float
    residuals: float
    rounds: int
    kernel: float
    one_ways: float
    drowned: float


def declared_patients(patients: int | None) -> float:
    """Return the declared number of patients, or the default."""
    return float(patients or DEFAULT_PATIENTS)


def mu_of_pool(mu: float, parts: int) -> float:
    """Return the effective budget of a pool, by which the rule plans each part.

    A pool of T parts has T times the patients and root T times the noise. Its shares are as exact
    as those of one part at root T times the budget.
    """
    return mu * float(np.sqrt(parts))


def shares_of(layout: Layout, *, patients: int | None, mu: float, parts: int = 1) -> Shares:
    """Split the budget, before a row is read: step 1 of the public rule in ``docs/methods.md``.

    Together, label counts and one-way counts match the accuracy of naive Bayes wherever noise
    dominates. The rest is for pair tables and residuals. Parts of a pool have kernel features of
    their own, which do not add up: they have no draw.
    """
    mu = mu_of_pool(mu, parts)
    sizes = np.asarray(layout.n_codes, dtype=np.float64)
    norm = centred_norm(layout.n_codes) * np.sqrt(layout.n_labels)
    noise = DEVIATION * sizes.mean() * norm / (mu * declared_patients(patients))
    drowned = 1.0 - min(1.0, _DROWNING / noise)
    first = float(np.clip((noise / _ONE_WAY_NOISE) ** 2, _LEAST_ONE_WAY, _MOST_ONE_WAY))
    first += (_DROWNED_ONE_WAY - first) * drowned
    # Extra share that one-way counts need to match naive Bayes, at its tolerance.
    lacking = (noise / (noise + _TOLERATED) - first) / layout.n_labels
    one_ways = max(lacking, _ONE_WAY_PART * _PAIR_PART * (1.0 - first))
    pairs = (1.0 - first - one_ways) * (_PAIR_PART - (_PAIR_PART - _LEAST_PAIR_PART) * drowned)
    both = one_ways + pairs if layout.n_columns > 1 else 0.0
    if both:
        lacking = (noise / (noise + _TOLERATED_BEFORE_PAIRS) - first) / layout.n_labels
        one_ways = max(
            one_ways,
            min(lacking, _MOST_BEFORE_PAIRS * both, both - _pair_part(layout, patients, mu)),
        )
    kernel = _KERNEL_PART * (1.0 - drowned) if layout.n_declared > 1 and parts == 1 else 0.0
    rounds = _ROUNDS_OF_WIDE if layout.n_declared > WIDE else _ROUNDS
    return Shares(
        label_counts=first,
        pair_tables=both,
        residuals=(1.0 - first - both) * (1.0 - kernel) / rounds,
        rounds=rounds,
        kernel=(1.0 - first - both) * kernel,
        one_ways=one_ways / both if both else 1.0,
        drowned=drowned,
    )


def n_products(layout: Layout, *, patients: int | None, kernel_mu: float) -> int:
    """Return the number of products of two columns as kernel features: as many as noise allows.

    Q products have norm one together, so the signal of each falls by root Q under the same noise.
    """
    loud = (declared_patients(patients) * kernel_mu / _PER_PRODUCT) ** 2
    return min(interactions.n_products(layout), int(loud), _MOST_PRODUCTS)


def _pair_part(layout: Layout, patients: int | None, mu: float) -> float:
    """Share of ``mu**2`` at which tables of all pairs of three codes have a noise of 0.25."""
    few = [min(k, _FEW_CODES) for k in layout.n_codes]
    noise = pair_noise(few, one_ways=0.0, pair_mu=mu, patients=declared_patients(patients))
    return (noise / _FEW_CODES_NOISE) ** 2


def pair_noise(
    n_codes: Sequence[int],
    *,
    n_pairs: float | None = None,
    one_ways: float,
    pair_mu: float,
    patients: float,
) -> float:
    """Mean noise of the shares of pair tables of these codes, in total variation distance."""
    sizes = np.asarray(n_codes, dtype=np.float64)
    inner = 1.0 - 1.0 / sizes
    all_pairs = len(sizes) * (len(sizes) - 1) / 2.0
    part = 1.0 if n_pairs is None else n_pairs / all_pairs
    squared = (inner.sum() ** 2 - (inner**2).sum()) / 2.0 * part
    stddev = np.sqrt(squared / (1.0 - one_ways)) / pair_mu
    cells = (sizes.sum() ** 2 - (sizes**2).sum()) / (2.0 * all_pairs)
    return float(DEVIATION * cells * stddev / patients)


def most_codes(layout: Layout, *, patients: int | None, mu: float, parts: int = 1) -> int:
    """Most codes of a column in pair tables, by a mean noise of 0.4 and `MAX_CELLS`; at least 2."""
    n = declared_patients(patients)
    shares = shares_of(layout, patients=patients, mu=mu, parts=parts)
    pair_mu = mu_of_pool(mu, parts) * float(np.sqrt(shares.pair_tables))
    for most in range(max(layout.n_codes), 2, -1):
        n_codes = [min(k, most) for k in layout.n_codes]
        if _all_cells(n_codes) > MAX_CELLS:
            continue
        noise = pair_noise(n_codes, one_ways=shares.one_ways, pair_mu=pair_mu, patients=n)
        if noise <= _PAIR_NOISE:
            return most
    return 2


def n_cells(layout: Layout, most: int) -> int:
    """Length of the draw of pair tables: one-ways, and cells of all pairs up to `MAX_CELLS`."""
    return layout.width + min(_all_cells([min(k, most) for k in layout.n_codes]), MAX_CELLS)


def _all_cells(n_codes: Sequence[int]) -> int:
    sizes = np.asarray(n_codes)
    return int((sizes.sum() ** 2 - (sizes**2).sum()) // 2)


def coarse_codes(shares: Floats, *, most: int, numeric: bool, has_missing: bool) -> Integers:
    """Return the group (k,) of each code of a column in the pair tables, numbered from 0.

    There are at most `most` groups. Adjacent bins form groups of about equal released share; a
    large missing code stays alone, a small one joins the largest group. The largest levels stay
    alone, and all others form one group.
    """
    k = len(shares)
    if k <= most:
        return np.arange(k)
    if not numeric:
        groups = np.full(k, most - 1)
        groups[np.argsort(-shares, kind="stable")[: most - 1]] = np.arange(most - 1)
        return groups
    n_bins = k - int(has_missing)
    alone = has_missing and most > 2 and bool(shares[-1] > 0.5 / most)
    n_groups = most - 1 if alone else most
    weight = shares[:n_bins] + 1e-6
    middle = (np.cumsum(weight) - weight / 2.0) / weight.sum()
    groups = np.zeros(k, dtype=np.int64)
    groups[:n_bins] = np.minimum((middle * n_groups).astype(np.int64), n_groups - 1)
    groups[:n_bins] = np.unique(groups[:n_bins], return_inverse=True)[1]
    if has_missing:
        largest = int(np.argmax(np.bincount(groups[:n_bins], weights=weight)))
        groups[-1] = int(groups[:n_bins].max()) + 1 if alone else largest
    return groups


@dataclass(frozen=True, kw_only=True)
class PairChoice:
    """Contents of the draw of pair tables; made from public and released values.

    `groups` (W,) numbers the group of each code within its column; the symmetric mask `used` (d, d)
    marks the measured pairs. `one_way` is the factor of the centred one-ways in the same draw, for
    each column (d,) or for all. `norm` bounds what a row adds, which is divided by it.
    """

    groups: Integers
    n_groups: tuple[int, ...]
    used: NDArray[np.bool_]
    one_way: float | Floats
    norm: float

    @property
    def n_pairs(self) -> int:
        """Number of measured pairs."""
        return int(self.used.sum()) // 2


def choose_pairs(
    layout: Layout, shares: Floats, *, most: int, one_ways: float, pair_mu: float, patients: float
) -> PairChoice:
    """Choose pairs whose tables can stand out of their noise, the strongest first.

    A pair's potential is the geometric mean of its columns' Gini indices. Pairs are taken by
    potential per cell as long as that exceeds half the noise of a cell, but at least
    `layout.n_columns - 1` of them. The part `one_ways` of the squared norm goes to one-ways, or
    more if the pair tables would still be mostly noise.

    Shares (W,) are released one-ways; the number of patients is released and above 0.
    """
    d = layout.n_columns
    groups = [
        coarse_codes(
            shares[layout.block(j)],
            most=most,
            numeric=layout.numeric[j],
            has_missing=layout.has_missing[j],
        )
        for j in range(d)
    ]
    sizes = np.array([int(group.max()) + 1 for group in groups])
    gini = np.array(
        [
            1.0 - float((np.bincount(group, weights=shares[layout.block(j)]) ** 2).sum())
            for j, group in enumerate(groups)
        ]
    )
    first, second = np.triu_indices(d, 1)
    taken = _strongest(
        np.sqrt(gini[first] * gini[second]),
        sizes[first] * sizes[second],
        least=d - 1,
        precision=pair_mu * patients,
    )
    used = np.zeros((d, d), dtype=np.bool_)
    used[first[taken], second[taken]] = True
    inner, outer = 1.0 - 1.0 / sizes, 1.0 - 1.0 / np.asarray(layout.n_codes, dtype=np.float64)
    of_pairs = float((inner[first] * inner[second])[taken].sum())
    of_one_ways = float(outer.sum())
    pair_part = 1.0 - one_ways
    if len(taken):
        scale = {"one_ways": one_ways, "pair_mu": pair_mu, "patients": max(patients, 1.0)}
        noise_level = pair_noise(sizes.tolist(), n_pairs=len(taken), **scale)
        pair_part *= min(1.0, (_PAIR_NOISE / noise_level) ** 2)
    one_way = np.sqrt(of_pairs * (1.0 / pair_part - 1.0) / of_one_ways) if of_pairs else 1.0
    return PairChoice(
        groups=np.concatenate(groups),
        n_groups=tuple(int(size) for size in sizes),
        used=used | used.T,
        one_way=float(one_way),
        norm=float(np.sqrt(of_pairs + one_way**2 * of_one_ways)),
    )


def _strongest(potential: Floats, cells: Integers, *, least: int, precision: float) -> Integers:
    """Return the chosen pairs by falling potential per cell, given those of all pairs."""
    ratio = np.where(potential > _LEAST_POTENTIAL, potential / cells, 0.0)
    order = np.argsort(-ratio, kind="stable")
    noise = DEVIATION * np.sqrt(np.arange(1, len(order) + 1)) / precision
    passed = np.flatnonzero(ratio[order] >= _LEAST_RATIO * noise)
    n_pairs = max(int(passed[-1]) + 1 if len(passed) else 0, min(len(order), least))
    taken = order[:n_pairs]
    return np.asarray(taken[np.cumsum(cells[taken]) <= MAX_CELLS])


def n_components(choice: PairChoice, *, pair_stddev: float, patients: float) -> int:
    """Components of one mixture: 128 where the pair tables are fine, else 64."""
    sizes = np.asarray(choice.n_groups, dtype=np.float64)
    cells = float(np.outer(sizes, sizes)[choice.used].mean()) if choice.n_pairs else 1.0
    return 128 if DEVIATION * cells * pair_stddev / patients < _FINE_PAIR_NOISE else 64


def penalty(choice: PairChoice, *, pair_stddev: float, patients: float) -> float:
    """Weight of the divergence of the components from their mean."""
    d, width = len(choice.n_groups), float(sum(choice.n_groups))
    part = choice.n_pairs / max(d * (d - 1) / 2.0, 1.0)
    return float(_PENALTY * np.sqrt(width * part) * patients * d / (pair_stddev * width))


def label_scale(layout: Layout, *, drowned: float) -> float:
    """Prior standard deviation of the log-odds of a code: ``1.7 (1 + drowned) / sqrt(d)``.

    Where noise dominates pair tables, counts alone inform the model, under a wider prior.
    """
    return float(LABEL_SCALE * (1.0 + drowned) / np.sqrt(layout.n_declared))
