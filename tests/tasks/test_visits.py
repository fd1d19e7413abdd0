"""The first visits of a patient as columns: against a plain reference, and against neighbours."""

from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.parameters import PrivacyUnit
from storage.schema.table import TableSchema
from storage.schema.visits import VisitColumns
from tasks.ingest.encoding import encode_chunk
from tasks.ingest.patient_rows import bounded_rows, joined, rows_by_shard
from tasks.ingest.visits import Places, at_every_place, first_visits, moments_of

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
VISITS = VisitColumns(first=3, order="day", columns=("weight", "ward"))
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
        own = at_every_place(frame.iloc[rows], VISITS)
        moments = moments_of(own[VISITS.order])
        divided = rows_by_shard(own, encode_chunk(own, SCHEMA), UNIT, N_SHARDS, moments=moments)
        for shard, keyed in enumerate(divided):
            parts[shard].append({field.name: getattr(keyed, field.name) for field in fields(keyed)})
    found = []
    for shard in parts:
        rows = bounded_rows(first_visits(joined(shard), Places.of(SCHEMA, VISITS)), UNIT)
        assert (rows.weight == 1.0).all()
        assert len(np.unique(rows.patient)) == len(rows)
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


def test_moments_are_numbers_or_dates_each_cell_by_itself():
    dates = ["2024-02-01", "2024-02-01T00:00:01", "2024-02-01 02:00:02+02:00"]
    cells = pd.Series([*dates, " 7.5 ", "", "1e999", "soon", None])
    day = pd.Timestamp("2024-02-01").value / 1e3
    found = moments_of(cells)
    assert found[:4].tolist() == [day, day + 1e6, day + 2e6, 7.5]
    assert np.isnan(found[4:]).all()
    for place, cell in enumerate(cells):
        np.testing.assert_array_equal(moments_of(pd.Series([cell]))[0], found[place])


@pytest.mark.parametrize(
    ("visits", "schema", "problem"),
    [
        ({"first": 4}, {}, "declare ward_4, weight_4"),
        ({"columns": ["weight", "age"]}, {}, "declare age_1, age_2, age_3"),
        ({"order": "age"}, {}, "age in visits alone"),
        ({}, {"ignore": ["ward"]}, "ward in visits alone"),
        ({}, {"constraints": [{"holds": "weight_1 <= weight_2"}]}, "none of weight_1, weight_2"),
        ({}, {"nullable": False}, "weight_2 to be nullable"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(visits, schema, problem):
    document = SCHEMA.model_dump(mode="json")
    if "nullable" in schema:
        document["columns"][3]["nullable"] = schema.pop("nullable")
    fitting = VisitColumns.model_validate({**VISITS.model_dump(), **visits})
    with pytest.raises(ValueError, match=problem):
        fitting.check_schema(TableSchema.model_validate({**document, **schema}))
