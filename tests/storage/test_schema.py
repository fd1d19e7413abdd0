import re

import pytest
from pydantic import ValidationError

from privacy.errors import InputError
from storage.schema.columns import CategoricalColumn, NumericColumn
from storage.schema.labels import Label, _Buckets
from storage.schema.table import TableSchema


def number(**changes):
    return NumericColumn.model_validate(
        {"kind": "integer", "name": "x", "lower": 0, "upper": 9, "bins": 5} | changes
    )


def category(**changes):
    return CategoricalColumn.model_validate(
        {"kind": "categorical", "name": "c", "levels": ["a", "b"]} | changes
    )


def label(**changes):
    return Label.model_validate({"name": "y", "levels": {"no": [0], "yes": [1]}} | changes)


def test_bins_are_cut_on_the_grid_of_the_column():
    assert number(lower=1, upper=14, bins=14).bin_starts == tuple(range(1, 15))
    assert number(lower=0, upper=9, bins=4).bin_starts == (0, 2, 5, 7)
    reals = number(kind="real", lower=0, upper=1, bins=3, decimals=2)
    assert reals.bin_starts == (0, 0.33, 0.67)
    # Edges of integers may end at upper or one after.
    assert number(bins=[0, 1, 9]).bin_starts == (0, 1)
    assert number(bins=[0, 1, 9, 10]).bin_starts == (0, 1, 9)


def buckets(**changes):
    return _Buckets.model_validate({"edges": [1], "levels": ["a", "b"]} | changes)


def table(**changes):
    return TableSchema.model_validate(
        {"columns": [number(), category()], "label": label(), "ignore": ["id"]} | changes
    )


def schema_of(**declared):
    named = {"name": "label", "levels": {"0": [], "1": []}}
    return TableSchema.model_validate({"label": named, **declared})


def dates(**changes):
    a, b = ({"kind": "date", "name": n, "lower": "2015-01-01", "bins": "year"} for n in "ab")
    columns = [a | {"upper": "2020-12-31"} | changes, b | {"upper": "2020-12-31"}]
    return schema_of(columns=columns)


COUNTED = {"lower": 0, "upper": 9, "bins": 3}
REFUSED = {
    dates: [
        ({"lower": 2015}, "lower: expected a date such as 2015-01-31"),
        ({"bins": ["2015-01-01", "2019-02-29"]}, "bins: expected a date such as"),
        ({"format": "DD.MM.YYYY"}, "expected a format with a day, month and year"),
        ({"format": "%Y-%d-%m"}, "no date of ISO 8601 is another date"),
        ({"format": "%d.%m.%y", "lower": "1900-01-01"}, "bounds of dates of less than 100 years"),
        ({"timezone": "Mars"}, "expected the name of a time zone"),
        ({"missing": ["2016-01-01"]}, "expected missing codes outside lower and upper"),
        (COUNTED | {"relative_to": "z"}, "to name another date"),
        (COUNTED | {"relative_to": "a"}, "in no circle"),
    ],
    number: [
        ({"lower": 9}, "expected lower below upper"),
        ({"upper": float("inf")}, "finite"),
        ({"decimals": 1}, "expected no decimals for an integer column; use kind: real"),
        ({"upper": 2.0**60}, "expected bounds below 2^53"),
        ({"lower": 0.5}, "expected bounds and edges with at most 0 decimals"),
        ({"bins": [1, 9]}, "expected the edges of bins to run from lower to upper"),
        ({"bins": [0, 5, 5, 9]}, "expected bins that each hold at least one value"),
        ({"missing": [3]}, "expected missing codes outside lower and upper"),
        ({"unit": "kg"}, "Extra inputs are not permitted"),
    ],
    category: [
        ({"levels": ["a", True]}, "write true, false and null in quotes"),
        ({"levels": ["a", "a"]}, "expected each level, raw value and missing code once"),
        ({"missing": ["a"]}, "expected each level, raw value and missing code once"),
        ({"other": "z"}, "expected other, groups, prefixes, numeric_ranges to name levels"),
        ({"prefixes": {"a": ["E"], "b": ["E8"]}}, "expected prefixes of which none begins another"),
        ({"numeric_ranges": {"a": [[1, 3]], "b": [[2, 4]]}}, "that do not overlap"),
    ],
    label: [
        ({"levels": None}, "expected exactly one of levels and buckets"),
        ({"levels": {"no": [0]}}, "expected two or more label levels"),
        ({"levels": {"no": [0], "yes": [0]}}, "expected each level, raw value and missing code"),
        ({"positive": "maybe"}, "expected positive to name a label level"),
    ],
    buckets: [
        ({"edges": [2, 1], "levels": ["a", "b", "c"]}, "expected edges in increasing order"),
        ({"levels": ["a"]}, "expected one level more than edges"),
        ({"levels": ["a", "2"]}, "expected names of buckets that are not numbers"),
    ],
    table: [
        ({"ignore": ["x"]}, "expected each column once in columns, label"),
        ({"label": label(name="c")}, "expected each column once in columns, label"),
    ],
    schema_of: [
        ({}, "expected exactly one of columns, image and items"),
        ({"image": {"height": 2, "width": 2}, "items": ["a"]}, "expected exactly one of columns"),
        ({"image": {"height": 0, "width": 2}}, "greater than or equal to 1"),
        ({"image": {"height": 2, "width": 2, "gray_levels": 1}}, "greater than or equal to 2"),
        ({"image": {"height": 2, "width": 2, "threshold": 9}}, "only with gray_levels: 2"),
        ({"items": ["label"]}, "expected each column once"),
    ],
}


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [(make, *case) for make, cases in REFUSED.items() for case in cases],
)
def test_what_is_refused(make, changes, message):
    with pytest.raises(ValidationError, match=re.escape(message)):
        make(**changes)


def test_header_is_compared_in_both_directions():
    schema = table()
    assert schema.released_columns == ("x", "c", "y")  # features, then the label
    needed = [*schema.released_columns, "patient"]
    schema.check_header(["patient", "y", "c", "x", "id"], needed)
    with pytest.raises(InputError, match=r"HEADER_MISMATCH: .* found none named c, id; check the"):
        schema.check_header(["x", "y", "patient"], needed)
    with pytest.raises(InputError, match=r"HEADER_MISMATCH: .* found ward; declare them in the sc"):
        schema.check_header(["x", "c", "y", "id", "patient", "ward"], needed)


# --- several labels as one


def labels_of(sizes):
    return [
        Label(name=f"l{i}", levels={f"{i}{k}": () for k in range(size)})
        for i, size in enumerate(sizes)
    ]


def declared_labels(*more, **changes):
    columns = [{"name": "x", "kind": "categorical", "levels": ["a", "b"]}]
    base = {} if "image" in changes else {"columns": columns}
    return TableSchema.model_validate(
        base | {"label": labels_of([2])[0], "more_labels": more, **changes}
    )


def test_labels_are_declared_once_and_have_few_levels_together():
    assert len(declared_labels(*labels_of([2, 4, 4])[1:]).labels.level_names) == 32
    two, many = labels_of([2, 2])[1], labels_of([2, 26])[1]
    joined = [{"name": "l0, l1", "kind": "categorical", "levels": ["a", "b"]}]
    alike = Label(name="b", levels={"z": (), "y, b=z": ()})
    first = Label(name="a", levels={"x": (), "x, b=y": ()})
    for more, changes, message in (
        (labels_of([2])[0], {}, "expected each column once in columns, labels and ignore"),
        (many, {}, "expected labels of 50 levels or fewer together"),
        (alike, {"label": first}, "distinguish combinations of"),
        (two, {"columns": joined}, "and no column 'l0, l1'"),
        (two, {"image": {"height": 2, "width": 2}}, "of an image"),
    ):
        with pytest.raises(ValidationError, match=message):
            declared_labels(more, **changes)
