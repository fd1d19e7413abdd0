"""Images and items are declared in one key and are columns for everything else."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from privacy.errors import InputError
from storage.schema.column_blocks import ImageColumns
from storage.schema.columns import CategoricalColumn, NumericColumn
from storage.schema.table import TableSchema

LABEL = {"name": "label", "levels": {"0": [], "1": []}}


def schema_of(**declared):
    return TableSchema.model_validate({"label": LABEL, **declared})


def image_schema(height=2, width=3, **more):
    return schema_of(image={"height": height, "width": width, **more})


def test_an_image_is_a_column_for_each_pixel_and_items_are_columns_of_two_levels():
    schema = image_schema()
    assert schema.column_names == (
        *("pixel_00_00", "pixel_00_01", "pixel_00_02"),
        *("pixel_01_00", "pixel_01_01", "pixel_01_02"),
    )
    first = NumericColumn(
        kind="integer", name="pixel_00_00", lower=0, upper=255, bins=256, decimals=None
    )
    assert schema.columns[0] == first
    assert schema.columns[0].n_codes == 256
    assert schema.columns[0].bin_starts == tuple(range(256))
    (column,) = image_schema(1, 1, gray_levels=2, threshold=100).columns
    assert (column.bin_starts, column.n_codes) == ((0, 100), 2)  # the first white
    schema = schema_of(items=["insulin", "diag-V"])
    assert schema.column_names == ("insulin", "diag-V")
    for column in schema.columns:
        assert isinstance(column, CategoricalColumn)
        assert (column.levels, column.n_codes) == (("0", "1"), 2)


def test_a_schema_has_one_short_form():
    for declared in (
        {"image": {"height": 28, "width": 28}},
        {"image": {"height": 4, "width": 4, "gray_levels": 2, "threshold": 100}},
        {"items": ["a", "b"]},
    ):
        schema = schema_of(**declared)
        text = schema.model_dump_json()
        assert len(text) < 500
        assert "columns" not in json.loads(text)
        assert TableSchema.model_validate_json(text) == schema
        assert TableSchema.model_validate(schema.model_dump(mode="json")) == schema
    plain = schema_of(columns=[{"kind": "categorical", "name": "c", "levels": ["a"]}])
    assert {"image", "items"}.isdisjoint(plain.model_dump())


@given(gray_levels=st.integers(2, 256))
def test_each_gray_level_lies_in_its_bin(gray_levels):
    image = ImageColumns(height=1, width=1, gray_levels=gray_levels)
    starts = image.columns[0].bin_starts
    codes = np.searchsorted(starts, image.levels, side="right") - 1
    assert codes.tolist() == list(range(gray_levels))
    assert (image.levels[0], image.levels[-1]) == (0, 255)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({}, "expected exactly one of columns, image and items"),
        ({"image": {"height": 2, "width": 2}, "items": ["a"]}, "expected exactly one of columns"),
        ({"image": {"height": 0, "width": 2}}, "greater than or equal to 1"),
        ({"image": {"height": 2, "width": 65}}, "less than or equal to 64"),
        ({"image": {"height": 2, "width": 2, "gray_levels": 1}}, "greater than or equal to 2"),
        ({"image": {"height": 2, "width": 2, "gray_levels": 257}}, "less than or equal to 256"),
        ({"image": {"height": 2, "width": 2, "threshold": 9}}, "only with gray_levels: 2"),
        ({"items": []}, "at least 1"),
        ({"items": ["a", "a"]}, "expected each column once"),
        ({"items": ["label"]}, "expected each column once"),
        ({"columns": []}, "at least 1"),
    ],
)
def test_what_is_refused(declared, message):
    with pytest.raises(ValidationError, match=message):
        schema_of(**declared)


def test_a_message_does_not_list_hundreds_of_pixels():
    with pytest.raises(InputError, match="pixel_00_18 and 765 more; check") as caught:
        image_schema(28, 28).check_header(["other"])
    assert len(str(caught.value)) < 500
    with pytest.raises(InputError, match="found c0, c1, c2; declare them"):
        image_schema().check_header([*image_schema().released_columns, "c0", "c1", "c2"])
