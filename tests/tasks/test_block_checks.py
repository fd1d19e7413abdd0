import numpy as np
import pandas as pd
import pytest

from storage.releases.manifest import GateRecord
from storage.schema.table import TableSchema
from tasks.gates.table_rules import output_gate
from tasks.ingest.encoding import encode_chunk

LABEL = {"name": "label", "levels": {"cat": [0], "dog": [1]}}
PIXELS = TableSchema.model_validate({"image": {"height": 2, "width": 2}, "label": LABEL})
BLACK_WHITE = TableSchema.model_validate(
    {"image": {"height": 2, "width": 2, "gray_levels": 2}, "label": LABEL}
)
ITEMS = TableSchema.model_validate({"items": ["a", "b", "c"], "label": LABEL})


def source(schema, dtype="uint8"):
    cells = np.arange(3 * len(schema.columns)).reshape(3, -1) % 2
    frame = pd.DataFrame(cells, columns=list(schema.column_names)).astype(dtype)
    return frame.assign(label=[0, 1, 0])


def release(schema, dtype="uint8"):
    return source(schema, dtype).assign(label=["cat", "dog", "cat"])


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        *((PIXELS, value) for value in (np.nan, np.inf, "x", "", None)),
        *((ITEMS, value) for value in (2, -1, 0.5, "x", "", None, np.nan)),
    ],
)
def test_one_cell_that_is_not_declared_is_refused(schema, value):
    column = schema.column_names[1]
    frame = source(schema).astype({column: object})
    frame.loc[1, column] = value
    assert {violation.column for violation in encode_chunk(frame, schema).violations} == {column}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        *((PIXELS, value) for value in (256, -1, 0.5, None, "x", "254")),
        (BLACK_WHITE, 254),
        *((ITEMS, value) for value in (2, "", "true", None)),
    ],
)
def test_a_value_that_is_not_declared(schema, value):
    name = schema.column_names[1]
    frame = release(schema).astype({name: object})
    frame.loc[2, name] = value
    (check,) = (one for one in output_gate(frame, schema, rows=3) if not one.passed)
    kind = "items" if schema is ITEMS else "pixels"
    assert check == GateRecord(check=kind, passed=False)
