import io

import numpy as np
import pandas as pd
import pytest
from matplotlib import image as matplotlib_image

from storage.schema.table import TableSchema
from tasks.reporting import released_images as sheets
from tasks.reporting.released_images import contact_sheet

NAMES = ("circle", "square", "never seen")


@pytest.fixture
def schema():
    return TableSchema.model_validate(
        {
            "image": {"height": 5, "width": 4},
            "label": {"name": "shape", "levels": {name: [] for name in NAMES}},
        }
    )


@pytest.fixture
def rows(schema):
    rng = np.random.default_rng(2)
    pixels = rng.integers(0, 256, (50, 20)).astype(np.uint8)
    frame = pd.DataFrame(pixels, columns=list(schema.column_names))
    return frame.assign(shape=pd.Series([NAMES[i % 2] for i in range(50)], dtype="str"))


def pixels_of(png):
    values = matplotlib_image.imread(io.BytesIO(png), format="png")
    return np.rint(np.asarray(values)[..., 0] * 255).astype(np.uint8)


def test_rows_of_the_sheet_are_classes(schema, rows):
    drawn = pixels_of(contact_sheet(rows, schema))
    factor = -(-sheets._SIDE // 5)
    height, width = 5 * factor + sheets._GAP, 4 * factor + sheets._GAP
    margin = sheets._SIGN_PIXELS * len("never seen") + 3 * sheets._GAP
    assert drawn.shape == (
        sheets._HEAD_PIXELS + 3 * height + sheets._GAP,
        margin + 2 * sheets._GAP + 11 * width,
    )
    for number, name in enumerate(NAMES):
        images = rows[rows["shape"] == name][list(schema.column_names)].to_numpy()
        top = sheets._HEAD_PIXELS + number * height + sheets._GAP
        for place in range(11):
            left = margin + place * width + (sheets._GAP if place else 0)
            found = drawn[top : top + 5 * factor : factor, left : left + 4 * factor : factor]
            if not len(images):
                assert (found == 255).all()
            elif place == 0:
                assert np.abs(found.ravel() - images.mean(axis=0)).max() <= 0.5
            else:
                assert np.array_equal(found.ravel(), images[place - 1])


def test_the_bytes_depend_on_the_rows_alone(schema, rows):
    png = contact_sheet(rows, schema)
    assert png == contact_sheet(rows.copy(), schema)
    assert png != contact_sheet(rows.iloc[::-1], schema)
    assert png != contact_sheet(rows, schema, note="not proven")
    assert b"Software" not in png
    assert b"matplotlib" not in png
