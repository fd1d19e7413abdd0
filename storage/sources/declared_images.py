"""Declared folders of images, kinds png and dicom, and the rules that their files keep."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictInt, field_validator, model_validator

from privacy.errors import InputError
from storage.schema.column_blocks import LABEL_NAME, MAX_SIDE, ImageColumns, pixel_names
from storage.schema.columns import Declaration
from storage.sources.places import PrintablePath, SourcePlace

FILE_NAME = "file"
"""Name of the column of file names in a table of images."""

PATIENT_TAG = "PatientID"
"""Keyword of the DICOM element that names the patient, and its column."""

MAX_SHRINK = 64
"""Largest factor that images are reduced by."""

_MAX_STORED = MAX_SIDE * MAX_SHRINK


class _FolderSource(SourcePlace):
    """A folder with a file for each image."""

    folder: PrintablePath
    """Folder of the files."""
    table: PrintablePath | None = None
    """CSV file (UTF-8, commas) with a line for each image: ``file``, the path below the folder; the
    label; and the patient unless file headers name one. Without it every file is read, and the
    first folder below ``folder`` is the column ``label``."""
    size: Annotated[
        tuple[Annotated[StrictInt, Field(ge=1, le=_MAX_STORED)], ...],
        Field(min_length=2, max_length=2),
    ]
    """Rows and columns of every file: those of ``schema.image`` times ``shrink``."""
    shrink: Annotated[StrictInt, Field(ge=1, le=MAX_SHRINK)] = 1
    """Each square of this many pixels a side becomes its mean."""

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if any(side % self.shrink or side // self.shrink > MAX_SIDE for side in self.size):
            raise ValueError(
                f"size: expected multiples of shrink, and at most {MAX_SIDE} times as much"
            )
        return self

    @property
    def channels(self) -> int:
        """Channels of a pixel."""
        return 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and channels of what is read."""
        rows, columns = (side // self.shrink for side in self.size)
        return rows, columns, self.channels

    @property
    def pixel_names(self) -> tuple[str, ...]:
        """Names of the columns of pixels."""
        return pixel_names(*self.shape)

    @property
    def header_columns(self) -> tuple[str, ...]:
        """Names of the columns that are read from the header of each file."""
        return ()

    def check_image(self, image: ImageColumns | None) -> None:
        """Refuse (ValueError) a schema of other images."""
        if image is None or image.shape != self.shape:
            raise ValueError(
                "source.size: expected the height, width and channels of schema.image, times shrink"
            )


class PngSource(_FolderSource):
    """Gray or colour images, a PNG file each, of 8 bits a channel.

    Other files and links are refused before any charge. Columns are pixels as in ``schema.image``,
    and those of the table.
    """

    kind: Literal["png"]
    colour: StrictBool = False
    """Red, green and blue, not gray."""

    @property
    def channels(self) -> int:
        """Channels of a pixel."""
        return 3 if self.colour else 1


class _GrayWindow(Declaration):
    """Range of values that becomes 0 to 255, as DICOM defines it (PS3.3, C.11.2.1.2.1)."""

    center: Annotated[float, Field(allow_inf_nan=False)]
    """Value that becomes the middle gray, after the slope and intercept of the file."""
    width: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    """Width of the range; values outside become black or white."""


class DicomSource(_FolderSource):
    """Gray images, a DICOM file each, of one series for each patient. Needs the extra `hospital`.

    ``PatientID`` of the files is the column of ``privacy_unit``. Further columns are pixels as in
    ``schema.image``, ``tags`` and those of the table. Compressed files, several frames, kinds other
    than MONOCHROME2, patients without an identifier or with two series are refused before any
    charge.
    """

    kind: Literal["dicom"]
    window: _GrayWindow
    """Public, and the same for all files."""
    burned_in: Literal["refuse", "accept"]
    """Text in the pixels, such as a name. ``refuse`` takes only files whose BurnedInAnnotation is
    NO; ``accept`` takes all. Either release is private, but may show a text that many images
    share."""
    tags: tuple[str, ...] = ()
    """Keywords of further elements that become columns, such as ``ViewPosition``."""

    @field_validator("tags")
    @classmethod
    def _keywords(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        taken = {PATIENT_TAG, FILE_NAME, LABEL_NAME}
        if len({*tags} - taken) != len(tags) or not all(tag.isidentifier() for tag in tags):
            raise ValueError("expected each keyword of DICOM once, without PatientID")
        return tags

    @property
    def header_columns(self) -> tuple[str, ...]:
        """Names of the columns that are read from the header of each file."""
        return PATIENT_TAG, *self.tags


class RefusedFiles(InputError):
    """Files that break rules. `broken` is private: rule, row number and name of each file."""

    broken: Sequence[tuple[str, int, str]] = ()

    @classmethod
    def of(cls, broken: Sequence[tuple[str, int, str]]) -> Self:
        """Return the error for these files."""
        rules = "; ".join(sorted({rule for rule, *_ in broken}))
        error = cls("IMAGE_REFUSED", f"column {FILE_NAME}: expected {rules}; correct the source")
        error.broken = broken
        return error
