"""Columns that are declared together: the pixels of images, the items of sets."""

from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, model_validator

from storage.schema.columns import CategoricalColumn, Declaration, NumericColumn, left_out

MAX_SIDE = 64
"""Most rows and most columns of pixels of an image."""

LABEL_NAME = "label"
"""Name of the column of labels where no table names it."""

_BRIGHTEST = 255
_Side = Annotated[StrictInt, Field(ge=1, le=MAX_SIDE)]


class ImageColumns(Declaration):
    """Gray or colour images, one column of whole numbers from 0 to 255 for each pixel and channel.

    The columns are ``pixel_00_00``, ``pixel_00_01`` and so on: row, then column, from the top left;
    of colour images ``pixel_00_00_red``, ``..._green``, ``..._blue``. A released pixel is one of
    the levels, which are spread evenly from 0 (background) to 255.
    """

    height: _Side
    """Pixels of an image."""
    width: _Side
    """Pixels of an image."""
    channels: Literal[1, 3] = left_out(1)
    """1 for gray images, 3 for red, green and blue."""
    gray_levels: Annotated[StrictInt, Field(ge=2, le=256)] = 256
    """Levels of a channel: equal parts of the range."""
    threshold: Annotated[StrictInt, Field(ge=1, le=255)] | None = None
    """With two gray levels: the smallest value of a white pixel. A public number, such as 128, and
    no function of the images."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.threshold is not None and self.gray_levels != 2:
            raise ValueError("expected a threshold only with gray_levels: 2")
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and channels."""
        return self.height, self.width, self.channels

    @property
    def columns(self) -> tuple[NumericColumn, ...]:
        """One column for each pixel and channel."""
        return _pixel_columns(self)

    @property
    def levels(self) -> tuple[int, ...]:
        """Released value of each code, from 0 to 255; each lies in the bin of its code."""
        return tuple(
            code * _BRIGHTEST // (self.gray_levels - 1) for code in range(self.gray_levels)
        )


def pixel_names(height: int, width: int, channels: int = 1) -> tuple[str, ...]:
    """Return the names of the columns of pixels: row by row, the channels of a pixel together."""
    colours = ("",) if channels == 1 else ("_red", "_green", "_blue")
    return tuple(
        f"pixel_{row:02d}_{column:02d}{colour}"
        for row in range(height)
        for column in range(width)
        for colour in colours
    )


def item_columns(names: tuple[str, ...]) -> tuple[CategoricalColumn, ...]:
    """Return a column with the levels 0 and 1 for each item; true and false are accepted."""
    return tuple(
        CategoricalColumn(
            kind="categorical",
            name=name,
            levels=("0", "1"),
            groups={"0": ("False", "false"), "1": ("True", "true")},
        )
        for name in names
    )


# Every gate and every worker reads the schema again.
@lru_cache(maxsize=8)
def _pixel_columns(image: ImageColumns) -> tuple[NumericColumn, ...]:
    bins: int | tuple[float, ...] = image.gray_levels
    if image.threshold is not None:
        bins = (0.0, float(image.threshold), _BRIGHTEST + 1.0)
    names = pixel_names(*image.shape)
    first = NumericColumn(kind="integer", name=names[0], lower=0, upper=_BRIGHTEST, bins=bins)
    return tuple(first.model_copy(update={"name": name}) for name in names)
