"""Public settings of local perturbation and of random projection."""

from typing import Literal

from pydantic import Field

from tasks.measurement.settings import LabelNoiseSettings, VectorSettings


class LocalPerturbationPaperSettings(LabelNoiseSettings):
    """Parameters of the published algorithm; read by ``analysis: published`` only."""


class LocalPerturbationConfig(VectorSettings):
    """Settings of local perturbation. All are public."""

    kind: Literal["local_perturbation"] = "local_perturbation"
    n_slots: int = Field(default=10_000, ge=1, le=100_000)
    """Slots, about one per expected patient."""
    published: LocalPerturbationPaperSettings = Field(
        default_factory=LocalPerturbationPaperSettings
    )


class RandomProjectionPaperSettings(LabelNoiseSettings):
    """Parameters of the published algorithm; read by ``analysis: published`` only."""


class RandomProjectionConfig(VectorSettings):
    """Settings of random projection. All are public."""

    kind: Literal["random_projection"] = "random_projection"
    n_projected: int = Field(default=8, ge=1, le=10_000)
    """Dimensions after the projection (k)."""
    n_slots: int = Field(default=10_000, ge=1, le=100_000)
    """Slots, about one per expected patient."""
    published: RandomProjectionPaperSettings = Field(default_factory=RandomProjectionPaperSettings)
