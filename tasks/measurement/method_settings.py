"""What the settings of all methods have in common."""

from pydantic import BaseModel, ConfigDict, Field


class MethodSettings(BaseModel):
    """Public settings: no unknown field, nothing infinite, no change after they were made."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class VectorSettings(MethodSettings):
    """Of a method that releases noisy vectors of records and their labels."""

    l2_clip_norm: float | None = Field(default=None, gt=0, le=1e6)
    """Longest vector; by default no record is shortened."""
    label_share: float = Field(default=0.2, gt=0, lt=1)
    """Part of the squared norm that the label has."""


class LabelNoiseSettings(MethodSettings):
    """Parameter of a published algorithm on vectors; read by ``analysis: published`` only."""

    label_noise_ratio: float = Field(default=0.3, gt=0, le=1000)
    """Noise of a label over noise of a feature."""
