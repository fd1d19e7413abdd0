"""Public settings of MWEM."""

from typing import Literal

from pydantic import Field

from tasks.measurement.method_settings import MethodSettings

PUBLIC_SEED = 20_120_312
"""Seed of the random part of the workload: it may be printed."""


class MwemShares(MethodSettings):
    """How ``mu**2`` is split over the draws; only the ratios count."""

    count: float = Field(default=0.02, gt=0, description="Noisy number of patients.")
    histograms: float = Field(default=0.4, gt=0)
    """One-way histograms to start from, where asked for."""
    selections: float = Field(default=0.4, gt=0, description="Choices of queries, all rounds.")
    measurements: float = Field(default=0.18, gt=0, description="Answers of queries, all rounds.")


class MwemConfig(MethodSettings):
    """Settings of MWEM. All are public: none may be chosen by looking at the private table."""

    kind: Literal["mwem"] = "mwem"
    rounds: int = Field(default=30, ge=1, le=500, description="Queries chosen and measured (T).")
    max_queries: int = Field(default=2000, ge=1, le=4000)
    """Size of the public workload of queries."""
    label_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the two-way queries that ask for the label."""
    max_component_cells: int = Field(default=2**14, ge=1, le=2**20)
    """Largest joint table of dependent columns."""
    start: Literal["uniform", "histograms"] = Field(default="histograms")
    """First distribution: uniform, or noisy histograms."""
    passes: int = Field(default=10, ge=1, le=1000)
    """Updates by every measurement in each round."""
    output: Literal["average", "last"] = Field(default="average")
    """Sample from the mean of all distributions, or from the last."""
    shares: MwemShares = Field(default_factory=MwemShares)
