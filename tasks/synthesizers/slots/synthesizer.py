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

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.parameters import Guarantee
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.labelled_vectors import LabelledVectors
from tasks.measurement.plan import MeasurementPlan, plan_measurement, sum_request
from tasks.measurement.projection import random_projection
from tasks.measurement.synthesizer import Released, Stage
from tasks.synthesizers.slots.config import LocalPerturbationConfig, RandomProjectionConfig
from tasks.synthesizers.slots.slots import slot_sums

SLOTS = "slots"


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
    guarantee: Guarantee = Guarantee.PROVEN

    def __post_init__(self) -> None:
        self.vectors()

    def vectors(self) -> LabelledVectors:
        """Return the public map of a record and its label to a vector."""
        projection = None
        if isinstance(self.config, RandomProjectionConfig):
            projection = random_projection(self.domain, n_projected=self.config.n_projected)
        return LabelledVectors(
            domain=self.domain,
            l2_clip_norm=self.config.l2_clip_norm,
            label_share=self.config.label_share,
            projection=projection,
        )

    def plan(self, *, mu: float) -> MeasurementPlan:
        """One statistic, with the whole budget."""
        vectors = self.vectors()
        shape = (self.config.n_slots, vectors.width)
        return plan_measurement(
            [sum_request(SLOTS, shape, share=1.0, bound=vectors.l2_bound)], mu=mu
        )

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """One stage: the slots."""
        return (Stage(name="slots", run=self._draw),)

    def sample(
        self, released: Released, *, n_rows: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Decode slots to records, which repeat where there are fewer; see `Synthesizer.sample`."""
        codes, labels = self.vectors().decode(released[SLOTS])
        chosen = rng.permutation(n_rows) % self.config.n_slots
        return codes[chosen], labels[chosen]

    def _draw(self, curator: Curator, released: Released) -> Released:
        n_slots = self.config.n_slots
        return {SLOTS: curator.release(SLOTS, slot_sums, vectors=self.vectors(), n_slots=n_slots)}
