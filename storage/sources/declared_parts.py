"""What the declarations of all sources share."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, StrictStr


def _printable(path: Path) -> Path:
    # Messages name the path.
    if not str(path).isprintable():
        raise ValueError("expected a path of printable characters")
    return path


PrintablePath = Annotated[Path, AfterValidator(_printable)]


class DeclaredSource(BaseModel):
    """What every source has."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    select: dict[str, StrictStr | StrictInt] = Field(default_factory=dict)
    """Keep the rows whose column equals the value, for every pair. A rule on that row alone, so it
    does not change the sensitivity; the column must be public, the value is."""
