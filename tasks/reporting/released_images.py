"""The released images as PNG files in one Parquet file, with their labels.

Any reader of Parquet can read them; the metadata make the library ``datasets`` show them as images.
Post-processing of synthetic rows.
"""

import io
import json
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.schema.table import TableSchema

IMAGES_FILE = "images.parquet"

_ROWS_OF_A_GROUP = 1_000


def image_files(frame: pd.DataFrame, schema: TableSchema) -> dict[str, bytes]:
    """Write rows of images as lossless files; {} for a table.

    The columns are ``image``, with the ``bytes`` of a PNG file and its name as ``path``, and the
    label.
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
    names = [_image_name(schema), schema.label.name]
    columns = [pa.array(files, kind), pa.array(frame[schema.label.name], pa.string())]
    label = {"dtype": "string", "_type": "Value"}
    features = {names[0]: {"_type": "Image"}, names[1]: label}
    table = pa.table(columns, names=names).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    parquet = io.BytesIO()
    pq.write_table(table, parquet, row_group_size=_ROWS_OF_A_GROUP)
    return {IMAGES_FILE: parquet.getvalue()}


def images_agree(files: Mapping[str, bytes], frame: pd.DataFrame, schema: TableSchema) -> bool:
    """Return true if the images of a bundle, decoded again, equal its rows; true for a table.

    Pixels and labels are compared one by one in the order of the rows.
    """
    if schema.image is None:
        return IMAGES_FILE not in files
    from PIL import Image

    table = pq.read_table(io.BytesIO(files[IMAGES_FILE]))
    stored, labels = table[_image_name(schema)], table[schema.label.name].to_pylist()
    if labels != frame[schema.label.name].astype(str).tolist():
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
    return "image" if schema.label.name != "image" else "png"
