"""Naive-Bayes synthesizer: one Gaussian release of all feature-by-label histograms.

The simplest honest method, and the yardstick of every other: sample a label, then each column by
itself given the label. It keeps all one-way relations to the label and none between columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats, Records
from tasks.measurement.centred import blocks_to_simplex, counts_of, label_counts
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.marginals import draw_codes, draw_columns
from tasks.measurement.measurement_plan import MeasurementPlan, SumRequest, plan_measurement
from tasks.measurement.method import Released, Stage
from tasks.measurement.method_settings import MethodSettings
from tasks.measurement.pooled_sums import Part, Pool, added

HISTOGRAMS = "feature_by_label_histograms"


class NaiveBayesConfig(MethodSettings):
    """The naive-Bayes synthesizer has no settings."""

    kind: Literal["naive_bayes"] = "naive_bayes"


@dataclass(frozen=True, slots=True)
class NaiveBayes:
    """Naive-Bayes synthesizer bound to a public domain."""

    domain: EncodingDomain
    config: NaiveBayesConfig = field(default_factory=NaiveBayesConfig)

    def plan(self, *, mu: float) -> MeasurementPlan:
        """One statistic, with the whole budget."""
        shape = (self.domain.n_labels, 1 + self.domain.one_hot_width)
        request = SumRequest(HISTOGRAMS, shape, share=1.0)
        return plan_measurement([request], mu=mu)

    def stages(self) -> tuple[Stage, ...]:
        """One stage: the histograms."""
        return (Stage(name="histograms", run=self._histograms),)

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Sample records column by column, given the label; see `Synthesizer.sample`."""
        labels = draw_codes(released["label_frequencies"], n_rows, rng)
        offsets = self.domain.one_hot_offsets
        return draw_columns(released["marginals"], offsets, labels, rng), labels

    def _histograms(self, curator: Curator, released: Released) -> Released:
        """Draw the histograms and project every column of every label onto probabilities."""
        domain = self.domain
        noisy = curator.release(
            HISTOGRAMS, label_counts, n_codes=domain.n_codes, n_labels=domain.n_labels
        )
        return self._of_histograms(noisy)

    def drawn_at(self, plan: MeasurementPlan, released: Released, sums: Part) -> Part:
        """Return nothing: the histograms are drawn at no model."""
        return {}

    def pooled(self, parts: Sequence[Part]) -> Pool:
        """Add up the histograms of parts."""
        sums = added(parts, HISTOGRAMS)
        return self._of_histograms(sums[f"sum_{HISTOGRAMS}"]), sums

    def _of_histograms(self, noisy: Floats) -> dict[str, NDArray[Any]]:
        domain, offsets = self.domain, self.domain.one_hot_offsets
        sizes, counts = counts_of(noisy, domain.n_codes)
        sizes = np.maximum(sizes, 1.0)
        marginals = [
            blocks_to_simplex(count / size, offsets)
            for count, size in zip(counts, sizes, strict=True)
        ]
        return {"label_frequencies": sizes / sizes.sum(), "marginals": np.stack(marginals)}
