import numpy as np
import pandas as pd
import pytest

from privacy.errors import InputError
from privacy.parameters import PrivacyUnit
from storage.schema.table import TableSchema
from tasks.ingest.patient_rows import N_SHARDS, encoded_shards

SCHEMA = TableSchema.model_validate(
    {
        "columns": [
            {"name": "age", "kind": "integer", "lower": 0, "upper": 9, "bins": 10},
            {"name": "number", "kind": "integer", "lower": 0, "upper": 199, "bins": 200},
        ],
        "label": {"name": "died", "levels": {"no": ["n"], "yes": ["y"]}, "missing": ["?"]},
    }
)


def table(n_patients, rows_of_each):
    n = n_patients * rows_of_each
    return pd.DataFrame(
        {
            "patient": np.repeat([f"p{i}" for i in range(n_patients)], rows_of_each),
            "age": np.arange(n) % 10,
            "number": np.repeat(np.arange(n_patients), rows_of_each),
            "died": np.resize(["n", "y"], n),
        }
    )


@pytest.mark.parametrize(("max_rows", "kept"), [(1, 1), (2, 2), (3, 3), (9, 3)])
def test_a_patient_is_in_one_shard_with_bounded_rows_that_weigh_one(max_rows, kept):
    unit = PrivacyUnit(column="patient", max_rows=max_rows)
    shards = encoded_shards(table(200, 3), SCHEMA, unit)
    assert len(shards) == N_SHARDS
    assert sum(len(shard) for shard in shards) == 200 * kept
    n_patients = 0
    for shard in shards:
        patients, rows = np.unique(shard.codes[:, 1], return_counts=True)
        assert (rows == kept).all()
        np.testing.assert_allclose(shard.weight, 1.0 / kept)
        n_patients += len(patients)
    assert n_patients == 200
    # The order of the table decides nothing.
    again = encoded_shards(table(200, 3).iloc[::-1], SCHEMA, unit)
    for one, other in zip(shards, again, strict=True):
        assert sorted(one.codes.ravel()) == sorted(other.codes.ravel())


def test_without_a_column_every_row_is_a_patient():
    shards = encoded_shards(table(200, 3), SCHEMA, PrivacyUnit(column=None, max_rows=1))
    assert sum(len(shard) for shard in shards) == 600
    assert all((shard.weight == 1.0).all() for shard in shards)


def test_rows_without_a_label_are_left_out_and_rows_without_a_patient_refused():
    unit = PrivacyUnit(column="patient", max_rows=3)
    frame = table(200, 3)
    frame.loc[:299, "died"] = "?"
    assert sum(len(shard) for shard in encoded_shards(frame, SCHEMA, unit)) == 300
    frame.loc[7, "patient"] = None
    with pytest.raises(InputError, match="column patient: expected a value in every cell"):
        encoded_shards(frame, SCHEMA, unit)
