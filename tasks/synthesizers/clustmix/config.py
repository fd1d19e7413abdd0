"""Public settings of ClustMix in the proven analysis.

On tables and item sets a public rule takes their place. They are those of the form for images,
which a table gets as well where its site file changes one of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class BudgetShares(BaseModel):
    """How ``mu**2`` is split over the stages; only the ratios count."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    clustering: float = Field(default=0.05, gt=0, description="Noisy rounds that place centres.")
    second_moment: float = Field(default=0.20, gt=0, description="Second moments A of KIP.")
    feature_label: float = Field(default=0.15, gt=0, description="Feature-by-label sums B of KIP.")
    histograms: float = Field(default=0.30, gt=0, description="Histograms that rows come from.")
    residuals: float = Field(default=0.30, gt=0, description="Corrections of the label model.")


class PaperSettings(BaseModel):
    """Parameters of Algorithm 2 as printed; read by ``analysis: published`` only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sigma_max: float = Field(
        default=0.15, gt=0, description="Largest noise of a mean of features scaled to [0, 1]."
    )
    alpha: float = Field(
        default=0.5, ge=0, le=1, description="Weight of staying at the centroids (Eq. 6)."
    )
    regularisation: float = Field(
        default=1e-3, gt=0, description="Lambda of kernel ridge regression (Eq. 5)."
    )
    scaling: Literal["min_max", "normal_quantile"] = Field(
        default="min_max", description="Scaling of the features, by the data themselves."
    )


class ClustMixConfig(BaseModel):
    """Settings of ClustMix. All are public: none may be chosen by looking at the private table.

    On tables and item sets a public rule takes the place of all of them. Where one of them is not
    its default, the form for images is run instead: another algorithm, which `plan` shows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: Literal["clustmix"] = "clustmix"
    variation: float = Field(
        default=1.0,
        ge=0,
        le=3,
        description="Images: strength of the public warps of what is sampled; 0 for none.",
    )
    slices: int = Field(default=2, ge=1, le=64, description="Public random slices of the domain.")
    clusters_per_slice: int = Field(
        default=2, ge=1, le=64, description="Mixture components of each label in each slice."
    )
    clustering_rounds: int = Field(
        default=1, ge=1, le=10, description="Noisy rounds that place the cluster centres."
    )
    min_cluster_size: int = Field(
        default=200, ge=1, description="Clusters with a smaller noisy size are not used (l_min)."
    )
    features: Literal["auto", "one_hot", "ordinal"] = Field(
        default="auto", description="Features of a numeric column: a code each, or one score."
    )
    random_features: int = Field(
        default=32, ge=2, le=2000, multiple_of=2, description="Random tangent-kernel features."
    )
    skip_weight: float = Field(
        default=0.9, gt=0, le=1, description="Share of the linear part of the tangent kernel."
    )
    support_per_label: int = Field(
        default=16, ge=1, le=500, description="KIP support points of each label."
    )
    kip_steps: int = Field(default=100, ge=1, le=5000, description="Adam steps of KIP.")
    alphas: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(
        default=(0.0, 0.1), min_length=1, description="Candidate weights of staying near centres."
    )
    lambdas: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(0.001, 0.1), min_length=1, description="Candidate regularisations of KIP."
    )
    restarts: int = Field(default=1, ge=1, le=20, description="Public starting points tried.")
    residual_rounds: int = Field(
        default=2, ge=1, le=10, description="Corrections of the label model by noisy residuals."
    )
    naive_bayes_weight: float = Field(
        default=0.25, ge=0, le=1, description="Weight of the naive-Bayes start of the label model."
    )
    label_sharpness: float = Field(
        default=1.0, gt=0, le=20, description="Factor on the log-odds that labels are drawn from."
    )
    shares: BudgetShares = Field(default_factory=BudgetShares)
    published: PaperSettings = Field(default_factory=PaperSettings)

    @property
    def is_sliced(self) -> bool:
        """Whether a setting of the form with slices was changed."""
        return any(
            getattr(self, name) != field.get_default(call_default_factory=True, validated_data={})
            for name, field in type(self).model_fields.items()
            if name not in ("kind", "variation", "published")
        )
