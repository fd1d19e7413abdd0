"""Whether published rows say what the sealed noisy counts say.

Between the two lie noise, sampling error and what a model may miss, so gross faults of the model
or of its sampler are seen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats, Integers
from tasks.gates import agreement
from tasks.gates.expectations import GateCheck
from tasks.measurement.centred import centred_norm, count_factor, counts_of
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.statistics import SUM_SCALE

MODEL_ALLOWANCE = 0.10
"""Distance from the noisy counts of a column that is left to the model."""

LABEL_ALLOWANCE = 0.02
"""The same for the shares of the label levels, which every method takes from its counts."""

LEAST_ASSOCIATION = 0.5
"""Part of what the noisy counts say about the label that the rows must say as well."""

_CLEAR_OF_NOISE = 10.0
"""How far above the noise that has to stand, so that no sound method smooths half of it away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyCounts:
    """Sealed noisy counts (C, one_hot_width), in patients; labels may have been counted apart."""

    by_label: Floats
    noise_stddev: float
    label_stddev: float | None = None

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
            # Published are rows; what was counted are patients, of whom some have more. Both shares
            # are released ones, above 0: the noisy number of a rare label may be 0, or less.
            rows_per_patient = released["row_label_shares"] / released["label_shares"]
            by_label *= rows_per_patient[:, None]
            stddev *= max(1.0, float(rows_per_patient.max()))
        return cls(
            by_label=by_label[:, : domain.one_hot_width],
            noise_stddev=float(stddev),
            label_stddev=float(stddev / count_factor(n_codes)),
        )


def against_counts(
    shares: Sequence[Floats],
    n_rows: int,
    reference: agreement.CodedTable,
    domain: EncodingDomain,
    noisy: NoisyCounts,
    *,
    label_name: str,
    alarm: float,
) -> Iterator[GateCheck]:
    """Compare label shares, marginals, and columns by label together with the sealed counts.

    ``shares`` are of published rows by label, ``reference`` codes are freshly sampled; honest rows
    fail each comparison with probability at most ``alarm``.
    """
    blocks = np.split(noisy.by_label, domain.one_hot_offsets[1:-1], axis=1)
    by_label = np.mean([block.sum(axis=1) for block in blocks], axis=0)
    n_patients = float(max(by_label.sum(), 1.0))
    counted = [block / n_patients for block in blocks]
    noise = noisy.noise_stddev / n_patients

    def bound_of(table: Floats, stddev: float, allowance: float) -> float:
        sampling = agreement.sampling_bound(
            table, n_first=n_rows, n_second=np.inf, alarm=alarm / 2.0
        )
        of_noise = agreement.noise_bound(len(table), noise_stddev=stddev, alarm=alarm / 2.0)
        return sampling + of_noise + allowance

    if noisy.label_stddev is None:
        of_label = noise * np.sqrt(domain.one_hot_width) / domain.n_columns
    else:
        of_label = noisy.label_stddev / n_patients
    label = shares[0].sum(axis=1)
    said = agreement.association(counted)
    of_noise = sum(table.size for table in said) * noise**2
    signal = agreement.inner(said, said) - of_noise
    # The product of the margins is noise as well where the number of patients is.
    is_clear = signal >= _CLEAR_OF_NOISE * of_noise and _CLEAR_OF_NOISE * of_label <= 1.0
    # Of few rows, what they say about the label is chance. Its margins are theirs as well.
    _, by_chance = agreement.mean_bound(
        agreement.association_scores(reference, said), n_first=n_rows, alarm=alarm
    )
    allowed = 1.0 - LEAST_ASSOCIATION + (2.0 * by_chance / signal if is_clear else 0.0)
    is_clear = is_clear and allowed <= 1.0
    yield GateCheck.compared(
        "label shares, noisy counts",
        label_name,
        distance=agreement.total_variation(label, by_label / n_patients),
        bound=bound_of(label, of_label, LABEL_ALLOWANCE),
        unseen=() if is_clear else ("a sampler that forgets the label",),
    )
    for name, table, counts in zip(domain.column_names, shares, counted, strict=True):
        marginal = table.sum(axis=0)
        yield GateCheck.compared(
            "marginal, noisy counts",
            name,
            distance=agreement.total_variation(marginal, counts.sum(axis=0)),
            bound=bound_of(marginal, noise * np.sqrt(domain.n_labels), MODEL_ALLOWANCE),
        )
    if is_clear:
        part = agreement.inner(agreement.association(shares), said) / signal
        yield GateCheck.compared(
            "columns by label, together, noisy counts (part that is missing)",
            label_name,
            distance=max(1.0 - part, 0.0),
            bound=allowed,
        )
