"""Public settings of ClustMix in the proven analysis: a public rule takes the place of most."""

from typing import Literal

from pydantic import Field

from tasks.measurement.method_settings import MethodSettings


class PaperSettings(MethodSettings):
    """Parameters of Algorithm 2 as printed; read by ``analysis: published`` only."""

    sigma_max: float = Field(default=0.15, gt=0)
    """Largest noise of a mean of features scaled to [0, 1]."""
    alpha: float = Field(default=0.5, ge=0, le=1)
    """Weight of staying at the centroids (Eq. 6)."""
    regularisation: float = Field(default=1e-3, gt=0)
    """Lambda of kernel ridge regression (Eq. 5)."""
    scaling: Literal["min_max", "normal_quantile"] = Field(default="min_max")
    """Scaling of the features, by the data themselves."""
    kernel: Literal["fully_connected", "convolutional"] = Field(
        default="fully_connected", exclude_if=lambda kernel: kernel == "fully_connected"
    )
    """Network whose tangent kernel the inducing points are optimised by; the second for images."""


class ClustMixConfig(MethodSettings):
    """Settings of ClustMix. All are public: none may be chosen by looking at the private table."""

    kind: Literal["clustmix"] = "clustmix"
    variation: float = Field(default=1.0, ge=0, le=3)
    """Images: strength of the public warps of what is sampled; 0 for none."""
    published: PaperSettings = Field(default_factory=PaperSettings)
