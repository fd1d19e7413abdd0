"""Naive-Bayes synthesizer: one Gaussian release of all feature-by-label histograms.

The simplest honest method, and the yardstick of every other: sample a label, then each column by
itself given the label. It keeps all one-way relations to the label and none between columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from privacy.parameters import Guarantee
from tasks.measurement.cells import Cells
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.marginals import draw_codes, draw_columns, sizes_of, to_marginals
from tasks.measurement.plan import MeasurementPlan, plan_measurement, sum_request
from tasks.measurement.statistics import cell_histograms
from tasks.measurement.synthesizer import Released, Stage

HISTOGRAMS = "feature_by_label_histograms"


class NaiveBayesConfig(BaseModel):
    """The naive-Bayes synthesizer has no settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["naive_bayes"] = "naive_bayes"


@dataclass(frozen=True, slots=True)
class NaiveBayes:
    """Naive-Bayes synthesizer bound to a public domain."""

    domain: EncodingDomain
    config: NaiveBayesConfig = field(default_factory=NaiveBayesConfig)
    guarantee: Guarantee = Guarantee.PROVEN

    def plan(self, *, mu: float) -> MeasurementPlan:
        """One statistic, with the whole budget."""
        shape = (self.domain.n_labels, 1, self.domain.one_hot_width)
        return plan_measurement([sum_request(HISTOGRAMS, shape, share=1.0)], mu=mu)

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """One stage: the histograms."""
        return (Stage(name="histograms", run=self._histograms),)

    def sample(
        self, released: Released, *, n_rows: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Sample records column by column, given the label; see `Synthesizer.sample`."""
        labels = draw_codes(released["label_frequencies"], n_rows, rng)
        offsets = self.domain.one_hot_offsets
        return draw_columns(released["marginals"], offsets, labels, rng), labels

    def _histograms(self, curator: Curator, released: Released) -> Released:
        """Draw the histograms; drop cells below one noise standard deviation."""
        domain, offsets = self.domain, self.domain.one_hot_offsets
        root = float(np.sqrt(domain.n_columns))
        one_cell = Cells(
            offsets=offsets,
            code_scores=np.zeros(domain.one_hot_width),
            cut_offs=np.zeros(0),
            centres=np.zeros((domain.n_labels, 1, 1, domain.one_hot_width)),
            alive=np.ones((domain.n_labels, 1, 1), dtype=np.bool_),
        )
        noisy = curator.release(HISTOGRAMS, cell_histograms, cells=one_cell, offsets=offsets)
        histograms = noisy[:, 0] * root
        noise = curator.plan[HISTOGRAMS].unit_noise_stddev * root
        sizes = np.maximum(sizes_of(histograms, offsets), 1.0)
        return {
            "label_frequencies": sizes / sizes.sum(),
            "marginals": to_marginals(histograms, offsets, noise_stddev=noise),
        }
