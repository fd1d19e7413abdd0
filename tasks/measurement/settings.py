"""What the settings of all methods have in common."""

from pydantic import BaseModel, ConfigDict


class MethodSettings(BaseModel):
    """Public settings: no unknown field, nothing infinite, no change after they were made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
