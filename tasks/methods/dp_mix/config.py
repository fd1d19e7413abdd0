"""Public settings of DPMix."""

from typing import Literal

from pydantic import Field

from tasks.measurement.method_settings import LabelNoiseSettings, VectorSettings


class DPMixConfig(VectorSettings):
    """Settings of DPMix. All are public: none may be chosen by looking at the private table."""

    kind: Literal["dp_mix"] = "dp_mix"
    order_of_mixture: int = Field(default=8, ge=1, le=100_000)
    """Records in a mixture (l), on average."""
    n_mixtures: int = Field(default=1000, ge=2, le=1_000_000)
    """Mixtures that are released (T)."""
    declared_patients: int = Field(default=10_000, ge=1)
    """Expected number of patients, known without the table."""
    one_hot_levels: int = Field(default=64, ge=0, le=1024)
    """Numeric columns of at most this many codes have a coordinate for each code."""
    published: LabelNoiseSettings = Field(default_factory=LabelNoiseSettings)
