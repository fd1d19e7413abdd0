"""Public settings of DPGM, and of private k-means by itself."""

from typing import Literal

from pydantic import Field

from tasks.measurement.method_settings import MethodSettings

PUBLIC_SEED = 20_190_627
"""Seed of every public random choice (frequencies, first centres and weights, chains)."""

_LEARNING_RATES = {"adam": 0.04, "momentum": 0.8}
"""Rates for sixteen steps."""


class BudgetShares(MethodSettings):
    """Split of ``mu**2`` over the stages; only the ratios count."""

    clustering: float = Field(default=0.12, gt=0, description="Noisy rounds that place centres.")
    means: float = Field(default=0.30, gt=0, description="Sizes and means of the clusters.")
    training: float = Field(default=0.58, gt=0, description="Noisy gradients of all steps.")


class DpgmConfig(MethodSettings):
    """Settings of DPGM. All are public."""

    kind: Literal["dpgm"] = "dpgm"
    clusters: int = Field(default=10, ge=1, le=200, description="Clusters, one network each.")
    clustering_rounds: int = Field(default=5, ge=1, le=100)
    """Noisy rounds that place the cluster centres."""
    fourier_features: int = Field(default=200, ge=2, le=4000, multiple_of=2)
    """Random Fourier features."""
    length_scale: float | None = Field(default=None, gt=0)
    """Length scale of the kernel; none: by the public domain."""
    min_cluster_size: int = Field(default=50, ge=1)
    """Clusters with a smaller noisy size are not used."""
    one_hot_levels: int = Field(default=64, ge=0, le=1024)
    """Numeric columns of at most this many codes have a coordinate for each code."""
    network: Literal["rbm", "vae"] = Field(default="rbm", description="Network of each cluster.")
    hidden_units: int = Field(default=200, ge=1, le=2000, description="Hidden units of a layer.")
    latent_dimensions: int = Field(default=2, ge=1, le=200)
    """Latent dimensions of the autoencoder."""
    epochs: int = Field(
        default=16, ge=1, le=200, description="Steps of the training, each on all patients."
    )
    optimiser: Literal["adam", "momentum"] | None = Field(default=None)
    """Optimiser; none: momentum for rbm, Adam for vae."""
    learning_rate: float | None = Field(default=None, gt=0, le=100)
    """Step; none: 0.04 with Adam, 0.8 with momentum."""
    momentum: float = Field(default=0.8, ge=0, lt=1)
    """Share of the last direction that a step keeps."""
    l2_clip_norm: float = Field(default=4.0, gt=0, le=1e6)
    """Norm that gradients are clipped to, at first."""
    adaptive_clipping: bool = Field(default=True)
    """Clip at the most frequent norm of the step before."""
    max_norm: float = Field(default=4.0, gt=0, le=1e6, description="Largest clipping norm, C_max.")
    norm_bins: int = Field(default=100, ge=2, le=1000, description="Bins of the norm histogram.")
    histogram_share: float = Field(default=0.02, gt=0, lt=1)
    """Squared sensitivity that the histogram gets."""
    shares: BudgetShares = Field(default_factory=BudgetShares)

    @property
    def descent(self) -> Literal["adam", "momentum"]:
        """Optimiser that applies a noisy gradient; the network sets the default."""
        if self.optimiser is not None:
            return self.optimiser
        return "momentum" if self.network == "rbm" else "adam"

    @property
    def step_size(self) -> float:
        """Learning rate, by the optimiser where it is left out."""
        if self.learning_rate is not None:
            return self.learning_rate
        return _LEARNING_RATES[self.descent]


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
