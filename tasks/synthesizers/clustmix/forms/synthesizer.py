"""The proven forms of ClustMix: that of tables and item sets, and that of images.

A table whose site file changes a setting of the earlier form with slices gets that form. A
measurement that was sealed when it was the only one is recognised by what was released.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.plan import MeasurementPlan
from tasks.measurement.synthesizer import Released, Stage, Synthesizer
from tasks.synthesizers.clustmix.config import ClustMixConfig
from tasks.synthesizers.clustmix.earlier.synthesizer import SlicedClustMix
from tasks.synthesizers.clustmix.images.synthesizer import ImageClustMix
from tasks.synthesizers.clustmix.tables.synthesizer import TableClustMix


@dataclass(frozen=True, slots=True)
class ClustMix:
    """ClustMix bound to a public domain, in the form that domain and settings ask for."""

    domain: EncodingDomain
    config: ClustMixConfig

    @property
    def form(self) -> Synthesizer:
        """The form that measures."""
        if self.domain.is_image:
            return ImageClustMix(self.domain, self.config.variation)
        if self.config.is_sliced:
            return SlicedClustMix(self.domain, self.config)
        return TableClustMix(self.domain)

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Every noisy statistic and its noise, from public values alone."""
        return self.form.plan(mu=mu)

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """Return the stages of the form."""
        return self.form.stages(mu=mu)

    def sample(
        self, released: Released, *, n_rows: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Sample from a measurement of any form; see `Synthesizer.sample`."""
        forms = (TableClustMix(self.domain), ImageClustMix(self.domain))
        measured = (form for form in forms if form.has_measured(released))
        form: Synthesizer = next(measured, SlicedClustMix(self.domain, self.config))
        return form.sample(released, n_rows=n_rows, rng=rng)
