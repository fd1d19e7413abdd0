"""Local perturbation with a proof: each record in a slot of its own, each slot under noise.

In the local model every patient sends a noisy record, and the number of records shows who took
part; that is no differential privacy for add or remove of a patient. Here a public number of slots
is released instead: a record adds to the slot that its hash names, every slot gets noise for one
whole record, and an empty slot is pure noise. With about as many slots as patients a released row
has one record, like a row of the local model; two records of one hash share a row. With fewer slots
it becomes the grouped variant of DP-CDA without its labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.parameters import Guarantee
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.labelled_vectors import LabelledVectors
from tasks.measurement.plan import MeasurementPlan
from tasks.measurement.synthesizer import Released, Stage
from tasks.synthesizers.slots.local_perturbation_config import LocalPerturbationConfig
from tasks.synthesizers.slots.slot_release import SlotRelease


@dataclass(frozen=True, slots=True)
class LocalPerturbation:
    """Local perturbation bound to a public domain.

    Privacy
    -------
    Adjacency: add or remove one patient. Sensitivity of all slots together: ``l2_bound`` of
    `LabelledVectors`. Event: one discrete Gaussian.
    """

    domain: EncodingDomain
    config: LocalPerturbationConfig
    guarantee: Guarantee = Guarantee.PROVEN

    def plan(self, *, mu: float) -> MeasurementPlan:
        """One statistic, with the whole budget."""
        return self._release().plan(mu=mu)

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """One stage: the slots."""
        return self._release().stages()

    def sample(
        self, released: Released, *, n_rows: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Decode slots to records; post-processing.

        Parameters
        ----------
        released
            What the stage released.
        n_rows
            Number of records, public. Slots repeat where there are fewer of them.
        rng
            Source of post-processing randomness.

        Returns
        -------
        codes : uint16 array of shape (n_rows, d)
        labels : uint16 array of shape (n_rows,)
        """
        return self._release().sample(released, n_rows=n_rows, rng=rng)

    def _release(self) -> SlotRelease:
        vectors = LabelledVectors(
            domain=self.domain,
            l2_clip_norm=self.config.l2_clip_norm,
            label_share=self.config.label_share,
        )
        return SlotRelease(vectors=vectors, n_slots=self.config.n_slots)
