"""Second half of the output gate: the published file says what was measured.

The file is read back as a source is read, so that its codes are those that the hospital's own
encoder would give. They are held against two things that a fault on the way to the file cannot
touch, column by column and column by label:

- a fresh sample from the sealed measurement, coded by its vocabulary: only sampling error lies
  between the two, so nearly every fault of names, order or decoding is seen;
- the sealed noisy counts of codes by label, where the method has such: noise, sampling error and
  what a model may miss lie in between, so gross faults of the model or its sampler are seen.

Both read released values alone: post-processing, free. All checks of a release together withhold
an honest one with probability at most `FALSE_ALARM`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.gates.agreement import (
    CodedTable,
    association,
    association_scores,
    cell_bounds,
    inner,
    mean_bound,
    noise_bound,
    sampling_bound,
    shares_by_label,
    total_variation,
)
from tasks.gates.expectations import GateCheck, GateReport
from tasks.measurement.encoded import EncodingDomain

FALSE_ALARM = 1e-4
"""Probability with which an honest release is withheld, at most."""

REFERENCE_ROWS = (1_000, 20_000)
"""Rows of a fresh sample that a file is compared with: as many as the file has, within these."""

MODEL_ALLOWANCE = 0.10
"""Distance from the noisy counts of a column that is left to the model."""

LABEL_ALLOWANCE = 0.02
"""The same for the shares of the label levels, which every method takes from its counts."""

LEAST_ASSOCIATION = 0.5
"""Part of what the noisy counts say about the label that the rows must say as well."""

_CLEAR_OF_NOISE = 10.0
"""How far above the noise that has to stand, so that no sound method smooths half of it away."""

_RARE_ROWS = 20
"""Rows of a code and label that count as few."""

_MANY_COLUMNS = 128
"""Of more columns, such as pixels and items, the check says the worst and not each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyCounts:
    """Sealed noisy counts of every code by label, in patients.

    Parameters
    ----------
    by_label : float64 array of shape (C, one_hot_width)
    noise_stddev
        Standard deviation of the noise of one count.
    """

    by_label: NDArray[np.float64]
    noise_stddev: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """A distance, how large it may be, and the faults that would stay below that."""

    name: str
    column: str
    distance: float
    bound: float
    unseen: tuple[str, ...] = ()


def agreement_gate(
    published: CodedTable,
    reference: CodedTable,
    domain: EncodingDomain,
    *,
    guide: CodedTable,
    label_name: str,
    noisy: NoisyCounts | None,
) -> GateReport:
    """Hold the codes of a published file against its sealed measurement.

    Parameters
    ----------
    published
        The file, read back and encoded by the public schema.
    reference
        Codes freshly sampled from the sealed measurement, by the same conditions.
    domain
        Names and numbers of codes, as measured.
    guide
        A second such sample, independent of the first: it says in which direction all columns
        together are compared by label.
    label_name
        Name of the label column.
    noisy
        Sealed counts; None where the method has none or the rows were sampled under conditions.

    Returns
    -------
    GateReport
        Distances with their bounds. `GateCheck.unseen` names faults that are smaller than the
        bound, and so would not be found.

    Privacy
    -------
    Post-processing: reads synthetic rows and released values only.
    """
    n_labels, d = domain.n_labels, domain.n_columns
    alarm = FALSE_ALARM / (3 * d + 5)
    shares = [
        shares_by_label(table, n_codes=domain.n_codes, n_labels=n_labels)
        for table in (published, reference)
    ]
    sizes = (len(published), len(reference))
    found = [
        _label_shares(shares, sizes, label_name, alarm),
        *_columns(shares, sizes, domain, alarm),
        _by_label_together(published, reference, guide, domain, label_name, alarm),
    ]
    if noisy is not None:
        found += _against_counts(
            shares[0], len(published), reference, domain, noisy, label_name, alarm
        )
    return GateReport(checks=tuple(_merged(found)))


def _label_shares(
    shares: Sequence[Sequence[NDArray[np.float64]]],
    sizes: tuple[int, int],
    label_name: str,
    alarm: float,
) -> _Comparison:
    first, second = (of_table[0].sum(axis=1) for of_table in shares)
    return _nearest("label shares", label_name, first, second, sizes, alarm)


def _columns(
    shares: Sequence[Sequence[NDArray[np.float64]]],
    sizes: tuple[int, int],
    domain: EncodingDomain,
    alarm: float,
) -> Iterator[_Comparison]:
    marginals = [[table.sum(axis=0) for table in of_table] for of_table in shares]
    for index, name in enumerate(domain.column_names):
        first, second = (of_table[index] for of_table in shares)
        yield _nearest(
            "marginal",
            name,
            marginals[0][index],
            marginals[1][index],
            sizes,
            alarm,
            unseen=_unseen(marginals[1], domain, index, sizes, alarm),
        )
        yield _nearest("marginal by label", name, first, second, sizes, alarm)


def _nearest(
    name: str,
    column: str,
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    sizes: tuple[int, int],
    alarm: float,
    unseen: tuple[str, ...] = (),
) -> _Comparison:
    """Compare two tables as a whole and cell by cell; tell the comparison nearer to its bound."""
    bound, cells = _bounds(first, second, sizes, alarm)
    apart = np.abs(first - second)
    worst = np.unravel_index(np.argmax(apart / cells), apart.shape)
    whole = (total_variation(first, second), bound)
    single = (float(apart[worst]), float(cells[worst]))
    distance, allowed = max(whole, single, key=lambda pair: pair[0] / pair[1])
    return _Comparison(name=name, column=column, distance=distance, bound=allowed, unseen=unseen)


def _bounds(
    first: NDArray[np.float64], second: NDArray[np.float64], sizes: tuple[int, int], alarm: float
) -> tuple[float, NDArray[np.float64]]:
    """Bounds of the whole distance and of each cell, half of the alarms each."""
    pooled = (first * sizes[0] + second * sizes[1]) / sum(sizes)
    n_first, n_second = sizes
    return (
        sampling_bound(pooled, n_first=n_first, n_second=n_second, alarm=alarm / 2.0),
        cell_bounds(pooled, n_first=n_first, n_second=n_second, alarm=alarm / 2.0),
    )


def _unseen(
    marginals: Sequence[NDArray[np.float64]],
    domain: EncodingDomain,
    index: int,
    sizes: tuple[int, int],
    alarm: float,
) -> tuple[str, ...]:
    """Name the faults of a column that need not show in its marginal.

    The distance that a fault makes is found but for sampling error, which the bounds contain.
    """
    own = marginals[index]
    n_levels = len(own) - domain.has_missing[index]
    there, largest = own[:n_levels], int(np.argmax(own[:n_levels]))
    changed: dict[str, NDArray[np.float64]] = {}
    if n_levels > 1:
        moved = own.copy()
        if domain.numeric[index]:
            moved[:n_levels] = np.roll(there, 1)
            changed["bins shifted by one"] = moved
        else:
            first, second = np.argsort(there)[-2:]
            moved[[first, second]] = own[[second, first]]
            changed["its two largest levels exchanged"] = moved
    changed["a constant"] = np.eye(len(own))[largest]
    if n_levels < len(own):
        changed["missing as its largest level"] = np.append(there, 0.0)
        changed["missing as its largest level"][largest] += own[-1]
    if domain.n_columns <= _MANY_COLUMNS:
        kind = (domain.n_codes, domain.has_missing, domain.numeric)
        for other, name in enumerate(domain.column_names):
            if other != index and all(of[other] == of[index] for of in kind):
                changed[f"an exchange with {name}"] = marginals[other]

    def shows(after: NDArray[np.float64]) -> bool:
        bound, cells = _bounds(after, own, sizes, alarm)
        return total_variation(after, own) >= 2.0 * bound or bool(
            (np.abs(after - own) >= 2.0 * cells).any()
        )

    return tuple(fault for fault, after in changed.items() if not shows(after))


def _by_label_together(
    published: CodedTable,
    reference: CodedTable,
    guide: CodedTable,
    domain: EncodingDomain,
    label_name: str,
    alarm: float,
) -> _Comparison:
    """Compare what all columns together say about the label; in standard errors."""
    tables = shares_by_label(guide, n_codes=domain.n_codes, n_labels=domain.n_labels)
    expected = [np.outer(table.sum(axis=1), table.sum(axis=0)) for table in tables]
    # About the log-odds of each code, which tell two distributions apart best; rare codes, whose
    # odds are not known, count for less.
    direction = [
        said / (product + _RARE_ROWS / len(guide))
        for said, product in zip(association(tables), expected, strict=True)
    ]
    scores, other = (association_scores(table, direction) for table in (published, reference))
    apart = abs(float(scores.mean() - other.mean()))
    error, allowed = mean_bound(other, n_first=len(scores), alarm=alarm)
    visible = abs(float(other.mean()) - inner(direction, expected)) > 2.0 * allowed
    return _Comparison(
        name="columns by label, together (standard errors)",
        column=label_name,
        # Scores that are all the same have no error, and nothing to compare.
        distance=apart / error if error > 0.0 else 0.0,
        bound=allowed / error if error > 0.0 else 0.0,
        unseen=() if visible else ("label independent of the columns",),
    )


def _against_counts(
    shares: Sequence[NDArray[np.float64]],
    n_rows: int,
    reference: CodedTable,
    domain: EncodingDomain,
    noisy: NoisyCounts,
    label_name: str,
    alarm: float,
) -> list[_Comparison]:
    """Compare with the sealed counts: label shares, marginals, columns by label together."""
    blocks = np.split(noisy.by_label, domain.one_hot_offsets[1:-1], axis=1)
    by_label = np.mean([block.sum(axis=1) for block in blocks], axis=0)
    n_patients = float(max(by_label.sum(), 1.0))
    counted = [block / n_patients for block in blocks]
    noise = noisy.noise_stddev / n_patients

    def bound_of(
        table: NDArray[np.float64], n_cells: int, stddev: float, allowance: float
    ) -> float:
        sampling = sampling_bound(table, n_first=n_rows, n_second=np.inf, alarm=alarm / 2.0)
        return sampling + noise_bound(n_cells, noise_stddev=stddev, alarm=alarm / 2.0) + allowance

    # A count by label is the mean over columns of sums of blocks.
    of_label = noise * np.sqrt(domain.one_hot_width) / domain.n_columns
    label = shares[0].sum(axis=1)
    said = association(counted)
    of_noise = sum(table.size for table in said) * noise**2
    signal = inner(said, said) - of_noise
    # The product of the margins is noise as well where the number of patients is.
    is_clear = signal >= _CLEAR_OF_NOISE * of_noise and _CLEAR_OF_NOISE * of_label <= 1.0
    # Of few rows, what they say about the label is chance. Its margins are theirs as well.
    _, by_chance = mean_bound(association_scores(reference, said), n_first=n_rows, alarm=alarm)
    allowed = 1.0 - LEAST_ASSOCIATION + (2.0 * by_chance / signal if is_clear else 0.0)
    is_clear = is_clear and allowed <= 1.0
    found = [
        _Comparison(
            name="label shares, noisy counts",
            column=label_name,
            distance=total_variation(label, by_label / n_patients),
            bound=bound_of(label, domain.n_labels, of_label, LABEL_ALLOWANCE),
            unseen=() if is_clear else ("a sampler that forgets the label",),
        )
    ]
    for name, table, counts in zip(domain.column_names, shares, counted, strict=True):
        marginal = table.sum(axis=0)
        found.append(
            _Comparison(
                name="marginal, noisy counts",
                column=name,
                distance=total_variation(marginal, counts.sum(axis=0)),
                bound=bound_of(
                    marginal, len(marginal), noise * np.sqrt(domain.n_labels), MODEL_ALLOWANCE
                ),
            )
        )
    if is_clear:
        part = inner(association(shares), said) / signal
        found.append(
            _Comparison(
                name="columns by label, together, noisy counts (part that is missing)",
                column=label_name,
                distance=max(1.0 - part, 0.0),
                bound=allowed,
            )
        )
    return found


def _merged(found: Sequence[_Comparison]) -> Iterator[GateCheck]:
    """Yield a check for each comparison; of many columns, one for all of a name."""
    by_name: dict[str, list[_Comparison]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    for name, comparisons in by_name.items():
        many = len(comparisons) > _MANY_COLUMNS
        kept = [max(comparisons, key=lambda one: one.distance / one.bound)] if many else comparisons
        for one in kept:
            unseen = one.unseen
            if many:
                n_unseen = sum(bool(one.unseen) for one in comparisons)
                unseen = (f"small faults of {n_unseen} columns",) if n_unseen else ()
            passed = one.distance <= one.bound
            yield GateCheck(
                name=name,
                column=one.column,
                passed=passed,
                detail=None if passed else f"found {one.distance:.3f}, expected {one.bound:.3f}",
                distance=round(one.distance, 4),
                bound=round(one.bound, 4),
                unseen=unseen,
            )
