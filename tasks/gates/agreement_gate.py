"""Second half of the output gate: the published file agrees with the measurement.

The file is read back and encoded like a source. Its codes are compared, by column and by column and
label, with two references that a fault on the way to the file cannot change:

- a fresh sample from the sealed measurement: only sampling error separates the two, so nearly every
  fault of names, order or decoding shows;
- the sealed noisy counts of codes by label, if the method has them: noise, sampling error and the
  error of a model separate the two, so only gross faults of the model or its sampler show.

Both are post-processing of released values, at no cost. All checks of a release together withhold
an honest one with probability at most `FALSE_ALARM`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats, Integers
from storage.releases.manifest import GateRecord
from tasks.gates import agreement
from tasks.measurement.centred import centred_norm, count_factor, counts_of
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.statistics import SUM_SCALE

MODEL_ALLOWANCE = 0.10
"""Distance from the noisy counts of a column that the model may add."""

LABEL_ALLOWANCE = 0.02
"""The same for the shares of the label levels, which every method takes from its counts."""

LEAST_ASSOCIATION = 0.5
"""Least part of the association with the label that the rows must retain."""

_CLEAR_OF_NOISE = 10.0
"""Least ratio of association to noise for the check: a sound method then keeps half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyCounts:
    """Sealed noisy counts (C, one_hot_width), in patients."""

    by_label: Floats
    noise_stddev: float
    label_stddev: float

    @classmethod
    def of_draw(
        cls,
        values: Integers,
        *,
        noise_stddev: float,
        domain: EncodingDomain,
        released: Mapping[str, NDArray[Any]],
    ) -> Self:
        """Return the counts of a sealed draw on the integer grid, with what was released of it.

        The values (C, 1 + W) are centred counts of codes by label, with a hidden column where a
        patient may have several rows, or (C k, 1 + W) of the k clusters of each label.
        """
        stddev = noise_stddev / SUM_SCALE
        hidden = values.shape[1] - 1 - domain.one_hot_width
        n_codes = domain.n_codes + (hidden,) * (hidden > 0)
        _, counts = counts_of(values / SUM_SCALE, n_codes)
        by_label = counts.reshape(domain.n_labels, -1, counts.shape[1]).sum(axis=1)
        stddev *= centred_norm(n_codes) * np.sqrt(len(counts) / domain.n_labels)
        if hidden:
            # Rows are published and patients were counted. Both shares are released and positive,
            # whereas the noisy number of a rare label may be 0 or less.
            rows_per_patient = released["row_label_shares"] / released["label_shares"]
            by_label *= rows_per_patient[:, None]
            stddev *= max(1.0, float(rows_per_patient.max()))
        return cls(
            by_label=by_label[:, : domain.one_hot_width],
            noise_stddev=float(stddev),
            label_stddev=float(stddev / count_factor(n_codes)),
        )


def _shares_of(noisy: NoisyCounts, domain: EncodingDomain) -> tuple[list[Floats], Floats, float]:
    """Return counted shares by column, shares of the labels, and the noisy number of patients."""
    # The rest belongs to hidden columns of tables of events.
    *blocks, _ = np.split(noisy.by_label, domain.one_hot_offsets[1:], axis=1)
    by_label = np.mean([block.sum(axis=1) for block in blocks], axis=0)
    n_patients = float(max(by_label.sum(), 1.0))
    return [block / n_patients for block in blocks], by_label / n_patients, n_patients


def against_counts(
    shares: Sequence[Floats],
    domain: EncodingDomain,
    noisy: NoisyCounts,
    *,
    n_rows: int,
    reference: agreement.CodedTable,
    label_name: str,
    alarm: float,
) -> Iterator[GateRecord]:
    """Compare label shares, marginals and the association with the label.

    ``shares`` are those of published rows by label; ``reference`` is a fresh sample. Honest rows
    fail each comparison with probability at most ``alarm``.
    """
    counted, of_labels, n_patients = _shares_of(noisy, domain)
    noise = noisy.noise_stddev / n_patients

    def bound_of(table: Floats, stddev: float, allowance: float) -> float:
        half, inf = alarm / 2.0, np.inf
        sampling = agreement.sampling_bound(table, n_first=n_rows, n_second=inf, alarm=half)
        return sampling + agreement.noise_bound(len(table), stddev, alarm=half) + allowance

    of_label = noisy.label_stddev / n_patients
    label = shares[0].sum(axis=1)
    said = agreement.association(counted)
    of_noise = sum(table.size for table in said) * noise**2
    signal = agreement.inner(said, said) - of_noise
    # A noisy number of patients makes the product of the margins noisy as well.
    is_clear = signal >= _CLEAR_OF_NOISE * of_noise and _CLEAR_OF_NOISE * of_label <= 1.0
    # The association of few rows has sampling error, as have its margins.
    _, by_chance = agreement.mean_bound(
        agreement.association_scores(reference, said), n_first=n_rows, alarm=alarm
    )
    allowed = 1.0 - LEAST_ASSOCIATION + (2.0 * by_chance / signal if is_clear else 0.0)
    is_clear = is_clear and allowed <= 1.0
    yield agreement.compared(
        f"label shares, noisy counts: {label_name}",
        distance=agreement.total_variation(label, of_labels),
        bound=bound_of(label, of_label, LABEL_ALLOWANCE),
        unseen=() if is_clear else ("a sampler that forgets the label",),
    )
    for name, table, counts in zip(domain.column_names, shares, counted, strict=True):
        marginal = table.sum(axis=0)
        yield agreement.compared(
            f"marginal, noisy counts: {name}",
            distance=agreement.total_variation(marginal, counts.sum(axis=0)),
            bound=bound_of(marginal, noise * np.sqrt(domain.n_labels), MODEL_ALLOWANCE),
        )
    if is_clear:
        part = agreement.inner(agreement.association(shares), said) / signal
        yield agreement.compared(
            f"columns by label, together, noisy counts (part that is missing): {label_name}",
            distance=max(1.0 - part, 0.0),
            bound=allowed,
        )


FALSE_ALARM = 1e-4
"""Most probability that an honest release is withheld."""

REFERENCE_ROWS = (1_000, 20_000)
"""Least and most rows of the fresh sample, which has as many rows as the file within them."""

_RARE_ROWS = 20
"""Rows of a code and label below which its odds count for less."""

_MANY_COLUMNS = 128
"""Most columns with a check of their own; of more, such as pixels, the worst is reported."""


def agreement_gate(
    published: agreement.CodedTable,
    reference: agreement.CodedTable,
    domain: EncodingDomain,
    *,
    guide: agreement.CodedTable,
    label_name: str,
    noisy: NoisyCounts | None,
) -> list[GateRecord]:
    """Compare the codes of a published file with its sealed measurement.

    ``reference`` is a fresh sample of the measurement under the same conditions. ``guide`` is
    another one, which sets the direction of the joint comparison by label. ``noisy`` is None if the
    method has no such counts or the rows were sampled under conditions. `GateRecord.unseen` names
    faults below the bound, which no check would find.

    Privacy
    -------
    Post-processing: reads synthetic rows and released values only.
    """
    alarm = 0.5 * FALSE_ALARM / (3 * domain.n_columns + 5)  # the other half is of events
    shares, others = (
        agreement.shares_by_label(table, n_codes=domain.n_codes, n_labels=domain.n_labels)
        for table in (published, reference)
    )
    comparison = _Comparison((len(published), len(reference)), alarm)
    marginals = [table.sum(axis=0) for table in others]
    checks = [
        comparison.of("label shares", label_name, shares[0].sum(axis=1), others[0].sum(axis=1))
    ]
    for i, name in enumerate(domain.column_names):
        marginal = comparison.of("marginal", name, shares[i].sum(axis=0), marginals[i])
        faults = _faults(marginals, domain, i)
        unseen = tuple(f for f, after in faults if not comparison.shows(after, marginals[i]))
        checks.append(marginal.model_copy(update={"unseen": unseen}))
        checks.append(comparison.of("marginal by label", name, shares[i], others[i]))
    checks.append(
        _by_label_together(
            (published, reference), guide, domain, label_name=label_name, alarm=alarm
        )
    )
    if noisy is not None:
        checks += against_counts(
            *(shares, domain, noisy),
            n_rows=len(published),
            reference=reference,
            label_name=label_name,
            alarm=alarm,
        )
    return list(_summed_up(checks))


class _Comparison:
    """Comparison of tables of shares of two samples with the bounds of chance."""

    def __init__(self, sizes: tuple[int, int], alarm: float) -> None:
        self._sizes, self._alarm = sizes, alarm

    def of(self, name: str, column: str, first: Floats, second: Floats) -> GateRecord:
        """Compare as a whole and cell by cell; return the comparison nearer to its bound."""
        bound, cells = self._bounds(first, second)
        apart = np.abs(first - second)
        worst = np.unravel_index(np.argmax(apart / cells), apart.shape)
        whole = (agreement.total_variation(first, second), bound)
        single = (float(apart[worst]), float(cells[worst]))
        distance, allowed = max(whole, single, key=lambda pair: pair[0] / pair[1])
        return agreement.compared(f"{name}: {column}", distance=distance, bound=allowed)

    def shows(self, after: Floats, before: Floats) -> bool:
        """Return true for a fault that exceeds the bounds whatever the sampling error."""
        bound, cells = self._bounds(after, before)
        return agreement.total_variation(after, before) >= 2.0 * bound or bool(
            (np.abs(after - before) >= 2.0 * cells).any()
        )

    def _bounds(self, first: Floats, second: Floats) -> tuple[float, Floats]:
        """Return bounds of the distance and of each cell, with half of the alarm each."""
        n_first, n_second = self._sizes
        pooled = (first * n_first + second * n_second) / (n_first + n_second)
        alarm = self._alarm / 2.0
        return (
            agreement.sampling_bound(pooled, n_first=n_first, n_second=n_second, alarm=alarm),
            agreement.cell_bounds(pooled, n_first=n_first, n_second=n_second, alarm=alarm),
        )


def _faults(
    marginals: Sequence[Floats], domain: EncodingDomain, index: int
) -> Iterator[tuple[str, Floats]]:
    """Yield the possible faults of a column by name, each with the resulting marginal."""
    own = marginals[index]
    n_levels = len(own) - domain.has_missing[index]
    there, largest = own[:n_levels], int(np.argmax(own[:n_levels]))
    if n_levels > 1:
        moved = own.copy()
        if domain.numeric[index]:
            moved[:n_levels] = np.roll(there, 1)
            yield "bins shifted by one", moved
        else:
            first, second = np.argsort(there)[-2:]
            moved[[first, second]] = own[[second, first]]
            yield "its two largest levels exchanged", moved
    yield "a constant", np.eye(len(own))[largest]
    if n_levels < len(own):
        moved = np.append(there, 0.0)
        moved[largest] += own[-1]
        yield "missing as its largest level", moved
    if domain.n_columns <= _MANY_COLUMNS:
        kind = (domain.n_codes, domain.has_missing, domain.numeric)
        for other, name in enumerate(domain.column_names):
            if other != index and all(of[other] == of[index] for of in kind):
                yield f"an exchange with {name}", marginals[other]


def _by_label_together(
    samples: tuple[agreement.CodedTable, agreement.CodedTable],
    guide: agreement.CodedTable,
    domain: EncodingDomain,
    *,
    label_name: str,
    alarm: float,
) -> GateRecord:
    """Compare the association of all columns with the label, in standard errors."""
    tables = agreement.shares_by_label(guide, n_codes=domain.n_codes, n_labels=domain.n_labels)
    expected = [np.outer(table.sum(axis=1), table.sum(axis=0)) for table in tables]
    # Approximately the log-odds of each code, the best discriminant of two distributions; rare
    # codes, whose odds are uncertain, count for less.
    direction = [
        said / (product + _RARE_ROWS / len(guide))
        for said, product in zip(agreement.association(tables), expected, strict=True)
    ]
    scores, other = (agreement.association_scores(table, direction) for table in samples)
    apart = abs(float(scores.mean() - other.mean()))
    error, allowed = agreement.mean_bound(other, n_first=len(scores), alarm=alarm)
    visible = abs(float(other.mean()) - agreement.inner(direction, expected)) > 2.0 * allowed
    return agreement.compared(
        f"columns by label, together (standard errors): {label_name}",
        # Equal scores have no error and no comparison.
        distance=apart / error if error > 0.0 else 0.0,
        bound=allowed / error if error > 0.0 else 0.0,
        unseen=() if visible else ("label independent of the columns",),
    )


def _summed_up(checks: Sequence[GateRecord]) -> Iterator[GateRecord]:
    """Yield the checks by name; with many columns only the worst of each name."""
    by_name: dict[str, list[GateRecord]] = {}
    for check in checks:
        by_name.setdefault(check.check.partition(": ")[0], []).append(check)
    for of_name in by_name.values():
        if len(of_name) <= _MANY_COLUMNS:
            yield from of_name
            continue
        n_unseen = sum(bool(check.unseen) for check in of_name)
        unseen = (f"small faults of {n_unseen} columns",) if n_unseen else ()
        yield max(of_name, key=_nearness).model_copy(update={"unseen": unseen})


def _nearness(check: GateRecord) -> float:
    """Return the distance as a part of its bound; 0 where nothing was compared."""
    return check.distance / check.bound if check.distance and check.bound else 0.0
