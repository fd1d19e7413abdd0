"""Comparison of published rows with the sealed noisy counts.

Noise, sampling error and the error of a model separate the two, so only gross faults of the model
or its sampler show.
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
    blocks = np.split(noisy.by_label, domain.one_hot_offsets[1:-1], axis=1)
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
    # The product of the margins is noise as well if the number of patients is.
    is_clear = signal >= _CLEAR_OF_NOISE * of_noise and _CLEAR_OF_NOISE * of_label <= 1.0
    # The association of few rows is chance, margins included.
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
