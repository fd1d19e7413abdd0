"""DP-CDA with a proof: noisy sums of groups of patients, class by class.

A public hash parts the records into g groups; the g sums of every class are one Gaussian release,
because a patient adds an array of norm c to all of them together. The analysis of the paper lacks
a public scaling (it has a private z-score), a public divisor for classes of private size, and add
or remove of a patient; labels that are constant get no noise. Its flaws A1 to A8 are listed in
`benchmarks.rivals.dp_cda`.

The paper leaves open how a mixture becomes a record of a table. Here its shares are spread to the
variance of records, and columns are drawn from them (`tasks.measurement.unmixing`).
"""

from dataclasses import dataclass, field

import numpy as np

from privacy.arrays import Codes, Floats, Floats32, Integers, Records
from privacy.errors import refusals
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain, mixed_bits, row_slices
from tasks.measurement.marginals import draw_codes
from tasks.measurement.measurement_plan import MeasurementPlan, SumRequest, plan_measurement
from tasks.measurement.method import Released, Stage
from tasks.measurement.statistics import SUM_SCALE, class_counts
from tasks.measurement.unmixing import Mixtures, draw_records, drawn_coordinates, spread
from tasks.measurement.vectors import VectorMap, one_hot_numbers
from tasks.methods.dp_cda.dp_cda_settings import DpCdaConfig

refusal = refusals(__package__)

COUNTS = "class_counts"
SUMS = "mixture_sums"
MAX_VALUES = 200_000_000
"""Most numbers in all mixtures together; exact noise takes about a second for 80,000 of them."""

_MIN_COUNT = 1.0

HASH_SEED = 20_250_417
"""Seed of the public hash that parts records into groups: it may be printed."""

_ROWS_AT_ONCE = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMap:
    """Map records to vectors ``(x - centre) / scale`` of norm at most c, by public constants."""

    vectors: VectorMap
    centre: Floats | float
    scale: float
    l2_clip_norm: float

    def scaled(self, codes: Codes) -> Floats:
        """Vectors of norm at most `l2_clip_norm`, of shape (n, D), each rounded by itself."""
        vectors = (self.vectors.vectors(codes) - self.centre) / self.scale
        norms = np.sqrt((vectors**2).sum(axis=1, keepdims=True))
        clipped: Floats = vectors * (self.l2_clip_norm / np.maximum(norms, self.l2_clip_norm))
        return clipped


def group_sums(
    rows: EncodedRows, *, record_map: RecordMap, n_labels: int, n_groups: int
) -> Integers:
    """Weighted sums (n_groups, n_labels, D) of records, in units of ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds ``weight * vector``, of norm at most
    ``weight * c``, to one entry that the record alone decides (`groups_of`); the weights of a
    patient sum to at most one. By the triangle inequality the sensitivity of the whole array is c,
    however many groups there are and wherever the records of the patient fall. Event: one discrete
    Gaussian for all groups together.
    """
    cell = groups_of(rows, n_groups=n_groups) * n_labels + rows.label
    total = np.zeros((n_groups * n_labels, record_map.vectors.width), dtype=np.int64)
    in_order = np.argsort(cell, kind="stable")
    for part in row_slices(len(in_order), _ROWS_AT_ONCE):
        index = in_order[part]
        vectors = record_map.scaled(rows.codes[index])
        amount = np.trunc(rows.weight[index, None] * vectors * SUM_SCALE).astype(np.int64)
        cells, starts = np.unique(cell[index], return_index=True)
        total[cells] += np.add.reduceat(amount, starts, axis=0)
    return total.reshape(n_groups, n_labels, -1)


def groups_of(rows: EncodedRows, *, n_groups: int) -> Integers:
    """Group (n,) of each record, from 0: a public keyed hash of the record alone.

    A patient who is added moves nobody else. Equal records of equal folds are in one group.
    """
    n_columns = rows.codes.shape[1]
    factors = np.random.default_rng(HASH_SEED).integers(
        0, 2**64, size=n_columns + 2, dtype=np.uint64, endpoint=False
    )
    hashed = rows.codes.astype(np.uint64) @ factors[:n_columns]
    hashed += rows.label * factors[-2] + rows.fold * factors[-1]
    groups: Integers = (mixed_bits(hashed) % np.uint64(n_groups)).astype(np.int64)
    return groups


@dataclass(frozen=True, slots=True)
class DpCda:
    """DP-CDA bound to a public domain and public settings.

    It is a ConfigurationError if the declared class sizes do not fit the labels or the order of
    mixture, or the mixtures together would have more than `MAX_VALUES` numbers.

    Privacy
    -------
    Adjacency: add or remove one patient. Events: a Gaussian of sensitivity 1 for the class counts,
    and one of sensitivity c for the mixtures. Wrongly declared sizes change no sensitivity.
    """

    domain: EncodingDomain
    config: DpCdaConfig
    record_map: RecordMap = field(init=False)
    n_mixtures: int = field(init=False)
    """Mixtures of each class: the groups of l that the smallest declared class gives."""

    def __post_init__(self) -> None:
        config = self.config
        vectors = VectorMap(one_hot_numbers(self.domain, most_codes=config.one_hot_levels))
        centre: Floats | float = config.centre or 0.0
        if config.centre is None and config.l2_clip_norm is None:
            centre = vectors.middle
        largest = vectors.radius(centre) / config.scale
        clip = largest if config.l2_clip_norm is None else min(config.l2_clip_norm, largest)
        record_map = RecordMap(
            vectors=vectors, centre=centre, scale=config.scale, l2_clip_norm=clip
        )
        object.__setattr__(self, "record_map", record_map)
        smallest = config.smallest_class(self.domain.n_labels)
        n_mixtures = max(int(smallest / config.order_of_mixture), 1)
        object.__setattr__(self, "n_mixtures", n_mixtures)
        if self.n_mixtures * self.domain.n_labels * vectors.width > MAX_VALUES:
            raise refusal("MIXTURES_TOO_MANY", max_values=MAX_VALUES)

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Class counts and mixtures, with their shares of the budget."""
        n_labels, width = self.domain.n_labels, self.record_map.vectors.width
        counts = SumRequest(COUNTS, (n_labels,), share=self.config.count_share)
        sums = SumRequest(
            SUMS,
            (self.n_mixtures, n_labels, width),
            share=1.0 - self.config.count_share,
            bound=self.record_map.l2_clip_norm,
        )
        return plan_measurement([counts, sums], mu=mu)

    def stages(self) -> tuple[Stage, ...]:
        """Count the classes, then mix all groups."""
        return (Stage(name="class-counts", run=self._count), Stage(name="mix", run=self._mix))

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Pick mixtures and draw a record from each; see `Synthesizer.sample`.

        Labels follow released frequencies; a mixture recurs only after all others of its class.
        """
        centre = released["centre"]
        vectors, scale = self.record_map.vectors, self.record_map.scale
        drawn = drawn_coordinates(vectors)
        labels = draw_codes(released["label_frequencies"], n_rows, rng)
        codes = np.empty((n_rows, self.domain.n_columns), dtype=np.uint16)
        for label in range(self.domain.n_labels):
            mixtures = Mixtures(
                means=released["mixtures"][:, label] * scale + centre,
                order=float(released["mixture_orders"][label]),
                noise_stddev=float(released["mixture_noise_stddevs"][label]) * scale,
                centre=centre,
            )
            member = np.flatnonzero(labels == label)
            codes[member] = draw_records(
                mixtures,
                spread(mixtures, drawn),
                vectors,
                chosen=rng.permutation(self.n_mixtures)[np.arange(len(member)) % self.n_mixtures],
                rng=rng,
            )
        return codes, labels

    def _count(self, curator: Curator, released: Released) -> Released:
        """Count the classes; a mixture is divided by the expected number of its records."""
        noisy = curator.release(COUNTS, class_counts, n_labels=self.domain.n_labels)
        counts = np.maximum(noisy, _MIN_COUNT)
        orders = (1.0 / self.n_mixtures) * counts
        return {
            "class_counts": counts,
            "label_frequencies": counts / counts.sum(),
            "mixture_orders": orders,
            "mixture_noise_stddevs": curator.plan[SUMS].unit_noise_stddev / orders,
            "centre": np.asarray(self.record_map.centre, dtype=np.float64),
        }

    def _mix(self, curator: Curator, released: Released) -> Released:
        """Release the sums, and divide by the expected number of records in a mixture."""
        sums = curator.release(
            SUMS,
            group_sums,
            record_map=self.record_map,
            n_labels=self.domain.n_labels,
            n_groups=self.n_mixtures,
        )
        means: Floats32 = (sums / released["mixture_orders"][:, None]).astype(np.float32)
        return {"mixtures": means}
