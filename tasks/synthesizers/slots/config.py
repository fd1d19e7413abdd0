"""Public settings of local perturbation and of random projection."""

from typing import Literal

from pydantic import Field

from tasks.measurement.settings import MethodSettings


class LocalPerturbationPaperSettings(MethodSettings):
    """Parameters of the published algorithm; read by ``analysis: published`` only."""

    label_noise_ratio: float = Field(
        default=0.3, gt=0, le=1000, description="Noise of a label over noise of a feature."
    )


class LocalPerturbationConfig(MethodSettings):
    """Settings of local perturbation. All are public."""

    kind: Literal["local_perturbation"] = "local_perturbation"
    n_slots: int = Field(
        default=10_000, ge=1, le=100_000, description="Slots, about one per expected patient."
    )
    l2_clip_norm: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Longest record vector; by default no record is shortened.",
    )
    label_share: float = Field(
        default=0.2, gt=0, lt=1, description="Part of the squared norm that the label has."
    )
    published: LocalPerturbationPaperSettings = Field(
        default_factory=LocalPerturbationPaperSettings
    )


class RandomProjectionPaperSettings(LocalPerturbationPaperSettings):
    """Parameters of the published algorithm; read by ``analysis: published`` only."""


class RandomProjectionConfig(MethodSettings):
    """Settings of random projection. All are public."""

    kind: Literal["random_projection"] = "random_projection"
    n_projected: int = Field(
        default=8, ge=1, le=10_000, description="Dimensions after the projection (k)."
    )
    n_slots: int = Field(
        default=10_000, ge=1, le=100_000, description="Slots, about one per expected patient."
    )
    l2_clip_norm: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Longest projected vector; by default that of a record.",
    )
    label_share: float = Field(
        default=0.2, gt=0, lt=1, description="Part of the squared norm that the label has."
    )
    published: RandomProjectionPaperSettings = Field(default_factory=RandomProjectionPaperSettings)
