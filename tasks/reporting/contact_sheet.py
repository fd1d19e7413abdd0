"""Contact sheet of synthetic images: a PNG with a row for each class."""

import io
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from storage.schema.table import TableSchema
from tasks.reporting.released_images import pixels_of

CONTACT_SHEET_FILE = "contact_sheet.png"

SAMPLES_PER_CLASS = 10
"""Number of images of each class, the first ones in the table."""

MAX_CLASSES = 100
"""Classes shown; the first ones of the schema."""

_GAP = 4
_SIDE = 56
"""Least width of an enlarged image in pixels; the factor is whole."""
_SIGN_PIXELS = 8
_NAME_SIGNS = 16
_HEAD_PIXELS = 22
# A power of two, so that a number of pixels in inches is exact.
_DPI = 128
_FONT_POINTS = 6.25


def contact_sheet(frame: pd.DataFrame, schema: TableSchema, *, note: str = "") -> bytes:
    """Draw the mean and the first images of each class as a PNG, with a ``note`` on top.

    The same bytes for the same rows; a class without rows has an empty place.
    """
    pixels = pixels_of(frame, schema)
    # Imported here: it takes half a second, and only releases of images need it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = schema.label.level_names[:MAX_CLASSES]
    labels = frame[schema.label.name].astype(str).to_numpy(dtype=object)
    shape = pixels.shape[1:3]
    factor = math.ceil(_SIDE / max(shape))
    margin = _SIGN_PIXELS * max(len(_shortened(name)) for name in names) + 3 * _GAP
    step = (shape[0] * factor + _GAP, shape[1] * factor + _GAP)
    height = _HEAD_PIXELS + len(names) * step[0] + _GAP
    width = margin + _GAP + (1 + SAMPLES_PER_CLASS) * step[1] + _GAP
    sheet = np.full((height, width, 3), 255, dtype=np.uint8)
    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    style: dict[str, Any] = {"fontsize": _FONT_POINTS, "family": "DejaVu Sans", "parse_math": False}

    def write(text: str, x: float, y: float, side: str) -> None:
        figure.text(x / width, (height - y) / height, text, ha=side, va="center", **style)

    write("mean", margin, _HEAD_PIXELS / 2, "left")
    write(f"synthetic rows {note}", margin + step[1] + _GAP, _HEAD_PIXELS / 2, "left")
    for row, name in enumerate(names):
        top = _HEAD_PIXELS + row * step[0] + _GAP
        write(_shortened(name), margin - 2 * _GAP, top + shape[0] * factor / 2, "right")
        for place, image in enumerate(_images_of_class(pixels[labels == name])):
            # The mean stands apart from the samples.
            left = margin + place * step[1] + (_GAP if place else 0)
            large = image.repeat(factor, axis=0).repeat(factor, axis=1)
            sheet[top : top + large.shape[0], left : left + large.shape[1]] = large
    figure.figimage(sheet)  # colours as they are, not scaled
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a sign that the font lacks is drawn as a box
        # Without the name of the library, whose version would change the bytes.
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def _images_of_class(pixels: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """Return the mean image and the first images, none where there are no rows."""
    if not len(pixels):
        return []
    # Whole numbers: a mean that does not depend on the order of a sum in floating point.
    mean = (pixels.sum(axis=0, dtype=np.int64) + len(pixels) // 2) // len(pixels)
    return [mean.astype(np.uint8), *pixels[:SAMPLES_PER_CLASS]]


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_SIGNS else name[: _NAME_SIGNS - 1] + "…"
