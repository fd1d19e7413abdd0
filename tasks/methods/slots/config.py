"""Public settings of local perturbation and of random projection."""

from typing import Literal

from pydantic import Field

from tasks.measurement.method_settings import LabelNoiseSettings, VectorSettings


class LocalPerturbationConfig(VectorSettings):
    """Settings of local perturbation. All are public."""

    kind: Literal["local_perturbation"] = "local_perturbation"
    n_slots: int = Field(default=10_000, ge=1, le=100_000)
    """Slots, about one per expected patient."""
    published: LabelNoiseSettings = Field(default_factory=LabelNoiseSettings)


class RandomProjectionConfig(VectorSettings):
    """Settings of random projection. All are public."""

    kind: Literal["random_projection"] = "random_projection"
    n_projected: int = Field(default=8, ge=1, le=10_000)
    """Dimensions after the projection (k)."""
    n_slots: int = Field(default=10_000, ge=1, le=100_000)
    """Slots, about one per expected patient."""
    published: LabelNoiseSettings = Field(default_factory=LabelNoiseSettings)
