"""Local perturbation and random projection with a proof: each record in a slot, each under noise.

In the local model every patient sends a noisy record, and the number of records shows who took
part; that is no differential privacy for add or remove of a patient. Here a public number of slots
is released instead: a record adds to the slot that its hash names, every slot gets noise for one
whole record, and an empty slot is pure noise. With about as many slots as patients a released row
has one record, like a row of the local model; two records of one hash share a row. With fewer slots
it becomes the grouped variant of DP-CDA without its labels.

Random projection has the noise in k public random directions instead of all D: what lies outside
them is not measured and comes back as the middle of the domain.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from privacy.arrays import Codes, Integers, Records
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain, mixed_bits, row_slices
from tasks.measurement.labelled_vectors import LabelledVectors
from tasks.measurement.method import PUBLIC_SEED, Released, Stage
from tasks.measurement.plan import MeasurementPlan, plan_measurement, sum_request
from tasks.measurement.projection import random_projection
from tasks.methods.slots.config import LocalPerturbationConfig, RandomProjectionConfig

SLOTS = "slots"
CENTRED = "centred"


@dataclass(frozen=True, slots=True)
class NoisySlots:
    """Local perturbation or random projection, by its settings, bound to a public domain.

    A projection to more dimensions than coordinates is a ConfigurationError
    (``PROJECTION_INVALID``).

    Privacy
    -------
    Adjacency: add or remove one patient. Records, projected ones too, are shortened to
    ``l2_clip_norm``; sensitivity of all slots together: ``l2_bound`` of `LabelledVectors`. Event:
    one discrete Gaussian. A projection is public and protects nothing by itself.
    """

    domain: EncodingDomain
    config: LocalPerturbationConfig | RandomProjectionConfig

    def __post_init__(self) -> None:
        self.vectors()

    def vectors(self, *, centred: bool = True) -> LabelledVectors:
        """Return the public map of a record and its label to a vector."""
        projection = None
        if isinstance(self.config, RandomProjectionConfig):
            projection = random_projection(self.domain, n_projected=self.config.n_projected)
        return LabelledVectors(
            domain=self.domain,
            l2_clip_norm=self.config.l2_clip_norm,
            label_share=self.config.label_share,
            projection=projection,
            centred=centred,
        )

    def plan(self, *, mu: float) -> MeasurementPlan:
        """One statistic, with the whole budget."""
        vectors = self.vectors()
        shape = (self.config.n_slots, vectors.width)
        request = sum_request(SLOTS, shape, share=1.0, bound=vectors.l2_bound)
        return plan_measurement([request], mu=mu)

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """One stage: the slots."""
        return (Stage(name="slots", run=self._draw),)

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Decode slots to records, which repeat where there are fewer; see `Synthesizer.sample`."""
        codes, labels = self.vectors(centred=CENTRED in released).decode(released[SLOTS])
        chosen = rng.permutation(n_rows) % self.config.n_slots
        return codes[chosen], labels[chosen]

    def _draw(self, curator: Curator, released: Released) -> Released:
        n_slots, vectors = self.config.n_slots, self.vectors()
        sums = curator.release(SLOTS, slot_sums, vectors=vectors, n_slots=n_slots)
        return {SLOTS: sums, CENTRED: np.array(True)}


_INCREMENT = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64


def slots_of(codes: Codes, label: Codes, *, n_slots: int) -> Integers:
    """Slot of each record, int64 of shape (n,) in [0, n_slots): a function of the record alone."""
    state = np.full(len(label), PUBLIC_SEED, dtype=np.uint64)
    for column in (*codes.T, label):
        state = mixed_bits(state + _INCREMENT + column.astype(np.uint64))
    return (state % np.uint64(n_slots)).astype(np.int64)


def slot_sums(rows: EncodedRows, *, vectors: LabelledVectors, n_slots: int) -> Integers:
    """Weighted sums (n_slots, vectors.width) of the vectors of each slot, int64.

    In units of ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. Every row of the patient adds a vector of norm at most its
    weight times ``vectors.l2_bound`` to one slot, and the weights sum to at most one; so the whole
    array changes by at most ``vectors.l2_bound`` (``* SUM_SCALE`` grid points). Event: one discrete
    Gaussian.
    """
    total = np.zeros((n_slots, vectors.width), dtype=np.int64)
    for part in row_slices(len(rows)):
        grid = vectors.grid(rows, part)
        slots = slots_of(rows.codes[part], rows.label[part], n_slots=n_slots)
        used, position = np.unique(slots, return_inverse=True)
        ones = np.ones(len(slots), dtype=np.int64)
        member = csr_array((ones, (position, np.arange(len(slots)))), shape=(len(used), len(slots)))
        total[used] += member @ grid
    return total
