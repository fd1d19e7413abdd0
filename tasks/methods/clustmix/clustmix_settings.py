"""Public settings of ClustMix: a public rule takes the place of most."""

from typing import Literal

from pydantic import Field

from tasks.measurement.method_settings import MethodSettings


class ClustMixConfig(MethodSettings):
    """Settings of ClustMix. All are public: none may be chosen by looking at the private table."""

    kind: Literal["clustmix"] = "clustmix"
    variation: float = Field(default=1.0, ge=0, le=3)
    """Images: strength of the public warps of what is sampled; 0 for none."""
