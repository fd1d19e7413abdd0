"""The proven forms of ClustMix: that of tables and item sets, and that of images.

The kind of data decides which one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Records
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import Released, Stage, Synthesizer
from tasks.methods.clustmix.clustmix_settings import ClustMixConfig
from tasks.methods.clustmix.images.image_clustmix import ImageClustMix
from tasks.methods.clustmix.tables.table_clustmix import TableClustMix


@dataclass(frozen=True, slots=True)
class ClustMix:
    """ClustMix bound to a public domain, in the form of its kind of data."""

    domain: EncodingDomain
    config: ClustMixConfig

    @property
    def form(self) -> Synthesizer:
        """The form that measures."""
        if self.domain.is_image:
            return ImageClustMix(self.domain, self.config.variation)
        return TableClustMix(self.domain)

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Every noisy statistic and its noise, from public values alone."""
        return self.form.plan(mu=mu)

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """Return the stages of the form."""
        return self.form.stages(mu=mu)

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Sample from a measurement; see `Synthesizer.sample`."""
        return self.form.sample(released, n_rows=n_rows, rng=rng)

    def sample_where(
        self,
        released: Released,
        allowed: Mapping[int, NDArray[np.bool_]],
        *,
        n_rows: int,
        rng: np.random.Generator,
    ) -> Records:
        """Sample rows with allowed codes where the form can, else any rows."""
        if not isinstance(self.form, TableClustMix):
            return self.sample(released, n_rows=n_rows, rng=rng)
        return self.form.sample_where(released, allowed, n_rows=n_rows, rng=rng)
