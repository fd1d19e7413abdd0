"""Random projection with a proof: noisy projected records in slots, and the way back.

Like `tasks.synthesizers.slots.local_perturbation`, with noise in k public random directions
instead of all D: what lies outside them is not measured and comes back as the middle of the domain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.parameters import Guarantee
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.labelled_vectors import LabelledVectors
from tasks.measurement.plan import MeasurementPlan
from tasks.measurement.projection import random_projection
from tasks.measurement.synthesizer import Released, Stage
from tasks.synthesizers.slots.random_projection_config import RandomProjectionConfig
from tasks.synthesizers.slots.slot_release import SlotRelease


@dataclass(frozen=True, slots=True)
class RandomProjection:
    """Random projection bound to a public domain.

    Raises
    ------
    ConfigurationError
        If there are more dimensions than coordinates (``PROJECTION_INVALID``).

    Privacy
    -------
    Adjacency: add or remove one patient. Projected records are shortened to ``l2_clip_norm``;
    sensitivity of all slots together: ``l2_bound`` of `LabelledVectors`. Event: one discrete
    Gaussian. The projection is public and protects nothing by itself.
    """

    domain: EncodingDomain
    config: RandomProjectionConfig
    guarantee: Guarantee = Guarantee.PROVEN

    def __post_init__(self) -> None:
        random_projection(self.domain, n_projected=self.config.n_projected)

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
            projection=random_projection(self.domain, n_projected=self.config.n_projected),
        )
        return SlotRelease(vectors=vectors, n_slots=self.config.n_slots)
