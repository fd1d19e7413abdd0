"""Public settings of ClustMix in the proven analysis: a public rule takes the place of most."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from tasks.measurement.settings import MethodSettings

KEPT: Mapping[str, bool] = {"kept": True}
"""Context in which the settings of a measurement are read that was sealed earlier.

That of `storage.files.documents`, which a method does not import.
"""

_EARLIER = frozenset(
    {
        "slices", "clusters_per_slice", "clustering_rounds", "min_cluster_size", "features",
        "random_features", "skip_weight", "support_per_label", "kip_steps", "alphas", "lambdas",
        "restarts", "residual_rounds", "naive_bayes_weight", "label_sharpness", "shares",
    }
)  # fmt: skip
"""Settings of the earlier form with slices."""


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

    _earlier: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _without_earlier_settings(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if not isinstance(data, Mapping):
            return handler(data)
        named = sorted(_EARLIER & data.keys())
        if named and info.context != KEPT:
            raise ValueError(
                f"expected no settings of the earlier form of ClustMix, found {', '.join(named)}; "
                "a public rule has taken their place: leave them out"
            )
        model = handler({name: value for name, value in data.items() if name not in _EARLIER})
        model._earlier = {name: data[name] for name in named}
        return model

    @model_serializer(mode="wrap")
    def _with_earlier_settings(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Say of an earlier measurement by which settings it was made, wherever it is sampled."""
        return {**handler(self), **self._earlier}
