"""One PNG or DICOM file as pixels, once its header was held against what is declared.

Of DICOM the pixels are in a declared window, and only the elements named here are read.

Sources: Portable Network Graphics (PNG) Specification, third edition, section 11.2.1 (IHDR); DICOM
PS3.3, C.7.6.3 (image pixel), C.11.1 (modality) and C.11.2.1.2.1 (linear window).
"""

import io
import logging
import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.errors import extra, refusals
from storage.schema.columns import raw_text
from storage.sources.declared_images import PATIENT_TAG, DicomSource, PngSource

_SIGNATURE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_END = b"\0\0\0\0IEND\xaeB`\x82"
_HEADER = struct.Struct(">IIBB")
_PALETTE = 3
_COLOUR_TYPES = {1: 0, 3: 2}
"""By the number of channels."""


class FileRule(StrEnum):
    """Rule of a file; the value is the text that an error may show."""

    WHOLE = "whole files of the declared kind, none damaged or truncated"
    LARGE = "files of at most 64 MiB"
    SIZE = "images of the declared rows and columns of pixels"
    DEPTH = "8 bits a channel, and no palette"
    CHANNELS = "gray or colour images as declared, without an alpha channel"
    FRAMES = "one frame in each file"
    UNCOMPRESSED = "uncompressed pixels"
    RESCALE = "a slope and an intercept, not empty"
    MONOCHROME = "images of the kind MONOCHROME2"
    BURNED_IN = "files that say that no text is burned in, as others are declared to be refused"


class RefusedFile(Exception):
    """One file breaks a rule."""

    def __init__(self, rule: FileRule) -> None:
        super().__init__(rule)
        self.rule = rule


def read_png(content: bytes, source: PngSource) -> tuple[NDArray[np.uint8], dict[str, str]]:
    """Return the pixels (rows, columns, channels) of a file, and no columns; else `RefusedFile`."""
    start = len(_SIGNATURE)
    if not (content.startswith(_SIGNATURE) and content.endswith(_END)):
        raise RefusedFile(FileRule.WHOLE)
    columns, rows, depth, colour_type = _HEADER.unpack_from(content, start)
    if depth != 8 or colour_type == _PALETTE:
        raise RefusedFile(FileRule.DEPTH)
    if colour_type != _COLOUR_TYPES[source.channels]:
        raise RefusedFile(FileRule.CHANNELS)
    if (rows, columns) != source.size:
        raise RefusedFile(FileRule.SIZE)
    pixels, frames, transparent = _decoded(content, source)
    if frames != 1:
        raise RefusedFile(FileRule.FRAMES)
    if transparent:
        raise RefusedFile(FileRule.CHANNELS)
    return pixels.reshape(*source.size, source.channels), {}


def _decoded(content: bytes, source: PngSource) -> tuple[NDArray[np.uint8], int, bool]:
    """Return pixels, the number of frames, and whether a colour is transparent."""
    from PIL import Image  # rarely needed

    form = (source.size[::-1], "RGB" if source.channels == 3 else "L")
    # The text of any error may quote the file.
    with suppress(Exception):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning means a damaged file
            with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
                image.verify()  # the checksums, after which an image cannot be read
            with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
                frames = int(getattr(image, "n_frames", 1))
                # A second header would replace the checked one.
                if (image.size, image.mode) == form:
                    return np.array(image, dtype=np.uint8), frames, "transparency" in image.info
    raise RefusedFile(FileRule.WHOLE)


refusal = refusals("storage.sources")
_PIXELS = (
    "Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated",
    "BitsStored", "HighBit", "PixelRepresentation", "NumberOfFrames", "RescaleSlope",
    "RescaleIntercept", "PixelData",
    "ModalityLUTSequence", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
)  # fmt: skip
"""Elements that pixels are made of."""

_DEFLATED = b"1.2.840.10008.1.2.1.99"
"""Transfer syntax of a file that is compressed as a whole."""

_BURNED_IN = "BurnedInAnnotation"
_SERIES = "SeriesInstanceUID"


def read_dicom(content: bytes, source: DicomSource) -> tuple[NDArray[np.uint8], dict[str, str]]:
    """Return pixels (rows, columns, 1) and header texts (absent: empty), or raise `RefusedFile`."""
    asked = [_BURNED_IN] if source.burned_in == "refuse" else []
    with _parsed(content, [*_PIXELS, *asked, *source.header_columns]) as found:
        if found.file_meta.TransferSyntaxUID.is_compressed:
            raise RefusedFile(FileRule.UNCOMPRESSED)
        if int(found.get("NumberOfFrames") or 1) != 1:
            raise RefusedFile(FileRule.FRAMES)
        if found.PhotometricInterpretation != "MONOCHROME2" or found.SamplesPerPixel != 1:
            raise RefusedFile(FileRule.MONOCHROME)
        if (found.Rows, found.Columns) != source.size:
            raise RefusedFile(FileRule.SIZE)
        if asked and found.get(_BURNED_IN) != "NO":
            raise RefusedFile(FileRule.BURNED_IN)
        values = _modality_values(found)
        if values.shape != source.size:
            raise RefusedFile(FileRule.WHOLE)
        in_header = {name: found.get(name) for name in source.header_columns}
    columns = {name: "" if text is None else raw_text(text) for name, text in in_header.items()}
    window = source.window
    gray = windowed(values, center=window.center, width=window.width)
    return gray[..., np.newaxis], columns


def _modality_values(found: Any) -> NDArray[Any]:
    """Return the stored values, converted by a table or by slope and intercept if there are any.

    An enhanced file has slope and intercept in the functional groups of its one frame, or of all
    frames. Source: DICOM PS3.3, C.11.1 and C.7.6.16.2.9.
    """
    from pydicom.pixels import apply_modality_lut

    groups = [
        group
        for name in ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence")
        for group in found.get(name) or []
        if "PixelValueTransformationSequence" in group
    ]
    if groups:
        (transformation,) = groups[0].PixelValueTransformationSequence
        found.RescaleSlope = transformation.RescaleSlope
        found.RescaleIntercept = transformation.RescaleIntercept
    elif "RescaleSlope" in found or "RescaleIntercept" in found:
        found.RescaleSlope = found.get("RescaleSlope", 1.0)
        found.RescaleIntercept = found.get("RescaleIntercept", 0.0)
    if None in (found.get("RescaleSlope", 1.0), found.get("RescaleIntercept", 0.0)):
        raise RefusedFile(FileRule.RESCALE)
    values: NDArray[Any] = apply_modality_lut(found.pixel_array, found)
    return values


def windowed(values: NDArray[Any], *, center: float, width: float) -> NDArray[np.uint8]:
    """Map the values of a window to 0 to 255; NaN becomes black."""
    part = (values - (center - 0.5)) / (width - 1.0) + 0.5
    return np.rint(255.0 * np.clip(np.nan_to_num(part), 0.0, 1.0)).astype(np.uint8)


def series_of(content: bytes) -> tuple[str, str]:
    """Return the patient and the series of a file; empty texts if absent."""
    try:
        with _parsed(content, [PATIENT_TAG, _SERIES], stop_before_pixels=True) as found:
            return raw_text(found.get(PATIENT_TAG) or ""), str(found.get(_SERIES) or "")
    except RefusedFile:
        return "", ""


def check_tags(tags: Sequence[str]) -> None:
    """Refuse (ConfigurationError) names that are no keywords of DICOM."""
    with extra("hospital"):
        from pydicom.datadict import tag_for_keyword
    unknown = [tag for tag in tags if tag_for_keyword(tag) is None]
    if unknown:
        raise refusal("DICOM_TAGS", found=unknown[0])


@contextmanager
def _parsed(content: bytes, names: Sequence[str], **options: bool) -> Iterator[Any]:
    """Read the named elements alone; any failure is `RefusedFile`."""
    with extra("hospital"):
        import pydicom
    if _DEFLATED in content:  # would be inflated, to any size, before the first check
        raise RefusedFile(FileRule.UNCOMPRESSED)
    # Its warnings quote values.
    pydicom.config.logger.disabled = logging.getLogger("pydicom").disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield pydicom.dcmread(io.BytesIO(content), specific_tags=list(names), **options)
            return
    except RefusedFile as refused:
        rule = refused.rule
    except Exception:  # whatever it is, its text may quote the file
        rule = FileRule.WHOLE
    raise RefusedFile(rule)
