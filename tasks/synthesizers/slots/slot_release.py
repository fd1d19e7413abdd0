"""Plan, stage and sampler of a release of one noisy vector per slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.sensitivity import weighted_sum_l2_sensitivity
from tasks.measurement.curator import Curator
from tasks.measurement.labelled_vectors import LabelledVectors
from tasks.measurement.plan import MeasurementPlan, StatisticRequest, plan_measurement
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.synthesizer import Released, Stage
from tasks.synthesizers.slots.slots import slot_sums

SLOTS = "slots"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRelease:
    """One noisy sum per slot, drawn at once; what the methods on slots have in common.

    Parameters
    ----------
    vectors
        Public map of a record and its label to a vector.
    n_slots
        Public number of slots.
    """

    vectors: LabelledVectors
    n_slots: int

    def plan(self, *, mu: float) -> MeasurementPlan:
        """One statistic, with the whole budget."""
        request = StatisticRequest(
            name=SLOTS,
            shape=(self.n_slots, self.vectors.width),
            l2_sensitivity=weighted_sum_l2_sensitivity(
                bound=self.vectors.l2_bound, scale=SUM_SCALE
            ),
            scale=SUM_SCALE,
            share=1.0,
        )
        return plan_measurement([request], mu=mu)

    def stages(self) -> tuple[Stage, ...]:
        """One stage: the slots."""
        return (Stage(name="slots", run=self._draw),)

    def sample(
        self, released: Released, *, n_rows: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Decode slots to ``n_rows`` records; slots repeat where there are fewer of them."""
        codes, labels = self.vectors.decode(released[SLOTS])
        chosen = rng.permutation(n_rows) % self.n_slots
        return codes[chosen], labels[chosen]

    def _draw(self, curator: Curator, released: Released) -> Released:
        """Draw all slots."""
        return {
            SLOTS: curator.release(SLOTS, slot_sums, vectors=self.vectors, n_slots=self.n_slots)
        }
