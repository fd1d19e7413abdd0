"""One PNG file as pixels: what its header says is held against what is declared before it is read.

Rules of the files of images, of DICOM too, stand first.

Source: Portable Network Graphics (PNG) Specification, third edition, section 11.2.1 (IHDR).
"""

import io
import struct
import warnings
from contextlib import suppress
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from storage.sources.declared_images import PngSource

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
    # Whatever goes wrong, its text may quote the file.
    with suppress(Exception):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what a file is warned of is damaged
            with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
                image.verify()  # the checksums, after which an image cannot be read
            with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
                frames = int(getattr(image, "n_frames", 1))
                # A second header would have the last word.
                if (image.size, image.mode) == form:
                    return np.array(image, dtype=np.uint8), frames, "transparency" in image.info
    raise RefusedFile(FileRule.WHOLE)
