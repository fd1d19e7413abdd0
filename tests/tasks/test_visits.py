from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from privacy.parameters import PrivacyUnit
from storage.schema.table import TableSchema
from storage.schema.visit_columns import VisitColumns
from tasks.ingest.encoding import encode_chunk
from tasks.ingest.patient_rows import (
    bounded_rows,
    first_visits,
    joined,
    moments_of,
    rows_by_shard,
    unordered,
)

WEIGHT = {"kind": "integer", "lower": 0, "upper": 9, "bins": 10, "nullable": True}
WARD = {"kind": "categorical", "levels": ["a", "b"], "missing": ["?"]}
SCHEMA = TableSchema.model_validate(
    {
        "columns": [
            {"name": "ward_1", **WARD},
            {"name": "weight_1", **WEIGHT},
            {"name": "age", "kind": "integer", "lower": 0, "upper": 9, "bins": 10},
            {"name": "weight_2", **WEIGHT},
            {"name": "ward_2", **WARD},
            {"name": "ward_3", **WARD},
            {"name": "weight_3", **WEIGHT},
        ],
        "label": {"name": "died", "levels": {"no": ["n"], "yes": ["y"]}, "missing": ["?"]},
    }
)
VISITS = VisitColumns(first=3, order="day", order_by="numbers", columns=("weight", "ward"))
ROWS = VISITS.row_schema(SCHEMA)
UNIT, N_SHARDS = PrivacyUnit(column="patient", max_rows=1), 2

_visit = st.fixed_dictionaries(
    {
        "patient": st.sampled_from(["p1", "p2", "p3", "p4"]),
        "day": st.integers(0, 40),
        "weight": st.one_of(st.none(), st.integers(0, 9)),
        "ward": st.sampled_from(["a", "b", "?"]),
        "age": st.integers(0, 9),
        "died": st.sampled_from(["n", "y", "?"]),
    }
)


def ingested(frame, batches=1):
    """Return the rows of all shards, by batches of a source, as sorted tuples."""
    parts = [[] for _ in range(N_SHARDS)]
    for rows in np.array_split(np.arange(len(frame)), batches):
        own = frame.iloc[rows]
        chunk, moments = encode_chunk(own, ROWS), moments_of(own[VISITS.order], VISITS)
        divided = rows_by_shard(own, chunk, UNIT, N_SHARDS, moments=moments)
        for shard, keyed in enumerate(divided):
            parts[shard].append({field.name: getattr(keyed, field.name) for field in fields(keyed)})
    found = []
    for shard in parts:
        rows = bounded_rows(first_visits(joined(shard), SCHEMA, VISITS), UNIT)
        assert (rows.weight == 1.0).all()
        found += [(*codes, label) for codes, label in zip(rows.codes, rows.label, strict=True)]
    return sorted(tuple(map(int, row)) for row in found)


def plainly(frame):
    """Return the same by sorting each patient's visits; days of a patient are different."""
    found = []
    for _, visits in frame[frame["died"] != "?"].groupby("patient"):
        rows = visits.sort_values("day").head(3).to_dict("records")
        weights = [10 if pd.isna(row["weight"]) else int(row["weight"]) for row in rows]
        wards = [["a", "b", "?"].index(row["ward"]) for row in rows]
        weights, wards = [*weights, 10, 10][:3], [*wards, 2, 2][:3]
        label = ["n", "y"].index(rows[0]["died"])
        later = (weights[1], wards[1], wards[2], weights[2])
        found.append((wards[0], weights[0], rows[0]["age"], *later, label))
    return sorted(found)


@given(st.lists(_visit, min_size=1, max_size=25), st.randoms(), st.integers(1, 3))
def test_a_patient_s_row_is_the_first_visits_in_order(visits, random, batches):
    frame = pd.DataFrame(visits).drop_duplicates(["patient", "day"]).astype({"weight": "Int64"})
    found = ingested(frame, batches)
    assert found == plainly(frame)
    # The order of the source decides nothing, of one moment neither; nor does another patient.
    frame = pd.DataFrame(visits).astype({"weight": "Int64"})
    shuffled = frame.sample(frac=1.0, random_state=random.randrange(2**32))
    found = ingested(frame)
    assert ingested(shuffled, batches) == found
    others = frame[frame["patient"] != "p1"]
    if len(others):
        left = ingested(others)
        assert len(found) - len(left) <= 1
        assert not set(left) - set(found)


def test_no_visit_of_one_moment_is_preferred_for_all_patients():
    """A chi-squared test of 2,000 patients, which a fair choice fails once in 10,000."""
    weights = np.random.default_rng(5).integers(0, 10, 4_000)
    frame = pd.DataFrame({"patient": np.arange(4_000) // 2, "day": 1, "weight": weights})
    rows = ingested(frame.assign(ward="a", age=5, died="n"))
    shares = np.bincount(weights, minlength=10) / 4_000
    for place in (1, 3):
        found = np.bincount([row[place] for row in rows], minlength=10)
        assert chisquare(found, 2_000 * shares).pvalue > 1e-4


def test_moments_are_read_cell_by_cell_and_what_is_none_is_refused():
    day = pd.Timestamp("2024-02-01").value / 1e3
    dates = ["2024-02-01", "20240201T000001", "2024-02-01 02:00:02+02:00"]
    cells = pd.Series([*dates, " 7.5 ", "", "soon", None, "9" * 16], name="day")
    read = moments_of(cells, VISITS.model_copy(update={"order_by": "dates"}))
    assert read[:3].tolist() == [day, day + 1e6, day + 2e6]
    assert np.isnan(read[3:]).all()
    numbers = moments_of(cells, VISITS)
    assert np.flatnonzero(~np.isnan(numbers)).tolist() == [3]
    for place, cell in enumerate(cells):
        np.testing.assert_array_equal(moments_of(pd.Series([cell]), VISITS)[0], numbers[place])
    (broken,) = unordered(numbers, VISITS)
    assert (broken.column, broken.rows.tolist()) == ("day", [0, 1, 2, 4, 5, 6, 7])
    assert unordered(numbers[3:4], VISITS) == ()


@pytest.mark.parametrize(
    ("visits", "schema", "problem"),
    [
        ({"first": 4}, {}, "declare weight_4, ward_4"),
        ({"order": "age"}, {}, "expected age here alone"),
        ({}, {"ignore": ["ward"]}, "expected ward here alone"),
        (
            {},
            {"constraints": [{"holds": "weight_1 <= weight_2"}]},
            "no constraint of weight_1, weight_2",
        ),
        ({}, {"nullable": [1, 3, 6]}, "columns of weight to be nullable"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(visits, schema, problem):
    document = SCHEMA.model_dump(mode="json")
    if "nullable" in schema:
        for place in schema["nullable"]:
            document["columns"][place]["nullable"] = False
        schema = {}
    fitting = VisitColumns.model_validate({**VISITS.model_dump(), **visits})
    with pytest.raises(ValueError, match=problem):
        fitting.check_schema(TableSchema.model_validate({**document, **schema}))
