"""The released images: PNG files in one Parquet file, and a picture with a row for each class.

Any Parquet reader reads them; metadata make the library ``datasets`` show images. Post-processing.
"""

import io
import json
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.schema.table import TableSchema

IMAGES_FILE = "images.parquet"

_ROWS_OF_A_GROUP = 1_000
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


def image_files(frame: pd.DataFrame, schema: TableSchema) -> dict[str, bytes]:
    """Write rows of images as lossless files; {} for a table.

    Columns are the label and ``image``: ``bytes`` of a PNG file, with its name as ``path``.
    """
    if schema.image is None:
        return {}
    from PIL import Image  # as in `contact_sheet`

    files = list[dict[str, object]]()
    for number, pixels in enumerate(pixels_of(frame, schema)):
        target = io.BytesIO()
        Image.fromarray(pixels.squeeze(axis=2) if pixels.shape[2] == 1 else pixels).save(
            target, format="PNG"
        )
        files.append({"bytes": target.getvalue(), "path": f"{number:08d}.png"})
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    names = [_image_name(schema), schema.first_label.name]
    columns = [pa.array(files, kind), pa.array(frame[schema.first_label.name], pa.string())]
    label = {"dtype": "string", "_type": "Value"}
    features = {names[0]: {"_type": "Image"}, names[1]: label}
    table = pa.table(columns, names=names).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    parquet = io.BytesIO()
    pq.write_table(table, parquet, row_group_size=_ROWS_OF_A_GROUP)
    return {IMAGES_FILE: parquet.getvalue()}


def images_agree(files: Mapping[str, bytes], frame: pd.DataFrame, schema: TableSchema) -> bool:
    """Return true if a bundle's decoded images equal its rows, in their order; true for a table."""
    if schema.image is None:
        return IMAGES_FILE not in files
    from PIL import Image

    table = pq.read_table(io.BytesIO(files[IMAGES_FILE]))
    stored, labels = table[_image_name(schema)], table[schema.first_label.name].to_pylist()
    if labels != frame[schema.first_label.name].astype(str).tolist():
        return False
    for image, pixels in zip(stored, pixels_of(frame, schema), strict=True):
        found = np.asarray(Image.open(io.BytesIO(image["bytes"].as_py()), formats=("PNG",)))
        if not np.array_equal(found.reshape(pixels.shape), pixels):
            return False
    return True


def pixels_of(frame: pd.DataFrame, schema: TableSchema) -> NDArray[np.uint8]:
    """Return the pixels (n, rows, columns, channels) of rows of images."""
    if schema.image is None:
        raise ValueError("expected a schema with an image, found one without")
    flat = frame[list(schema.column_names)].to_numpy(dtype=np.uint8)
    return flat.reshape(len(frame), *schema.image.shape)


def _image_name(schema: TableSchema) -> str:
    return "image" if schema.first_label.name != "image" else "png"


def contact_sheet(frame: pd.DataFrame, schema: TableSchema, *, note: str = "") -> bytes:
    """Draw the mean and the first images of each class as a PNG, with a ``note`` on top.

    The same bytes for the same rows; a class without rows has an empty place.
    """
    pixels = pixels_of(frame, schema)
    # Imported here: it takes half a second, and only releases of images need it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = schema.first_label.level_names[:MAX_CLASSES]
    labels = frame[schema.first_label.name].astype(str).to_numpy(dtype=object)
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
    if not len(pixels):
        return []
    # Whole numbers: a mean that does not depend on the order of a sum in floating point.
    mean = (pixels.sum(axis=0, dtype=np.int64) + len(pixels) // 2) // len(pixels)
    return [mean.astype(np.uint8), *pixels[:SAMPLES_PER_CLASS]]


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_SIGNS else name[: _NAME_SIGNS - 1] + "…"
