"""Tables of a bundle held against the published definition of OMOP CDM 5.4."""

import io
import tomllib
from pathlib import Path

import pandas as pd

from tasks.reporting.tables import texts_agree

FIELDS = tomllib.loads(Path(__file__).with_name("omop_fields.toml").read_text())
KINDS = {":n": "float64", "te": "date32[day][pyarrow]"}  # by the ends of their names


def read_model(files):
    """Return the tables by name, read from the files of a bundle, in both formats alike."""
    names = [name[5:-8] for name in files if name.startswith("omop_") and name.endswith("parquet")]
    assert all(texts_agree(files, f"omop_{name}") for name in names)
    return {name: pd.read_parquet(io.BytesIO(files[f"omop_{name}.parquet"])) for name in names}


def check_model(tables):
    """Hold types, required fields, keys and the order of dates against the definition."""
    died = tables.get("death", pd.DataFrame(columns=["person_id", "death_date"]))
    parts = [tables["person"], tables["observation_period"], died]
    people = pd.concat([one.set_index("person_id") for one in parts], axis=1)
    assert len(people) == len(tables["person"]) == len(tables["observation_period"])
    for name, table in tables.items():
        stated = {one.rstrip("!").removesuffix(":n"): one for one in FIELDS[name].split()}
        required = [field for field, about in stated.items() if about.endswith("!")]
        assert [*table] == [one for one in stated if one in table or one in required]
        assert table[required[0]].is_unique
        assert table[required].notna().all(axis=None)
        kinds = [KINDS.get(stated[one].rstrip("!")[-2:], "Int64") for one in table]
        assert [*map(str, table.dtypes)] == kinds
        own = people.loc[table["person_id"]].reset_index()  # a KeyError, if of nobody
        days = [pd.to_datetime(table[one]) for one in table if one.endswith("_date")]
        for day in days:
            assert (day.dt.year >= own["year_of_birth"]).all()
            for first in (days[0], pd.to_datetime(own["observation_period_start_date"])):
                assert not (day < first).any()
            for last in ("observation_period_end_date", "death_date"):
                assert not (day > pd.to_datetime(own[last])).any()
