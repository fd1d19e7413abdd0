"""Base of the settings of all methods."""

from pydantic import BaseModel, ConfigDict


class MethodSettings(BaseModel):
    """Public settings: no unknown field, nothing infinite, no change after they were made."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
