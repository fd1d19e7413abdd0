"""Settings of any registered method, distinguished by ``kind``, as a site file holds them."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import BaseModel, Field

from tasks.methods.registry import METHODS

if TYPE_CHECKING:

    class MethodConfig(BaseModel):
        """Settings of a method of any kind, for type checkers."""

        kind: str

else:
    MethodConfig = Annotated[
        Union[tuple(entry.config for entry in METHODS)],  # noqa: UP007 - of a list
        Field(discriminator="kind"),
    ]
    """Settings of any registered method."""
