"""Public settings of private k-means."""

from typing import Literal

from pydantic import Field

from tasks.measurement.method_settings import MethodSettings

FeatureKind = Literal["plain", "fourier"]
"""Space in which k-means measures distances."""


class DpKMeansConfig(MethodSettings):
    """Settings of private k-means. All are public."""

    kind: Literal["dp_kmeans"] = "dp_kmeans"
    clusters: int = Field(default=10, ge=1, le=1000, description="Number of clusters.")
    rounds: int = Field(default=5, ge=1, le=100, description="Noisy rounds that place centres.")
    features: FeatureKind = Field(default="fourier")
    """Points: plain vectors, or random Fourier features."""
    n_features: int = Field(default=200, ge=2, le=4000, multiple_of=2)
    """Number of Fourier features."""
    length_scale: float | None = Field(default=None, gt=0)
    """Length scale of the kernel; none: by the public domain."""
    l2_clip_norm: float | None = Field(default=None, gt=0)
    """Norm that plain vectors are clipped to; none: no clipping."""
    clustering_share: float = Field(default=0.3, gt=0, lt=1)
    """Part of mu squared that the rounds get."""
