"""Tables of the OMOP common data model, written from the files of a bundle."""

import numpy as np
import omop_database as omop
import omop_model
import pandas as pd

from storage.schema.table import TableSchema
from storage.sources.omop import MODEL, OmopSource
from tasks.ingest.encoding import decode, domain_of
from tasks.reporting.omop_tables import omop_files
from tasks.reporting.tables import table_files

N = 400
FEVERS = {"column": "sodium", "condition": omop.FEVER, "take": "count", "window": ["-30d", "-3d"]}


def made(columns, features, **population):
    """Return rows of a schema, and the tables that are written of them."""
    schema = TableSchema.model_validate(omop.SCHEMA | {"columns": columns})
    rng, domain = np.random.default_rng(1), domain_of(schema)
    codes = rng.integers(domain.n_codes, size=(N, domain.n_columns)).astype(np.uint16)
    frame = decode(codes, rng.integers(2, size=N).astype(np.uint16), schema, rng=rng)
    declared = {"kind": "omop", "url": "sqlite:///cdm", "window": ["-30d", "2d"]}
    declared |= {"population": {"visit": omop.INPATIENT, **population}, "features": features}
    source = OmopSource.model_validate(declared)
    return frame, omop_model.read_model(omop_files(table_files(frame, schema), schema, source, ()))


def test_the_lists_are_those_of_the_published_definition():
    for name, fields in omop_model.FIELDS.items():
        stated = [one.removesuffix(":n") for one in fields.split()]
        required = [one.rstrip("!") for one in stated if one.endswith("!")]
        assert MODEL["required"][name].split() == required
        assert MODEL["optional"].get(name, "").split() == stated[len(required) :]


def test_columns_become_records_of_their_concepts():
    frame, tables = made(**omop.DATED)
    omop_model.check_model(tables)
    sizes = dict.fromkeys(("person", "observation_period", "visit_occurrence"), N)
    sizes |= {"measurement": frame["sodium"].notna().sum(), "death": (frame["died"] == "yes").sum()}
    sizes["condition_occurrence"] = (frame["diabetes"] == "1").sum()
    assert {name: len(table) for name, table in tables.items()} == sizes
    days, persons = tables["visit_occurrence"]["visit_start_date"], tables["person"]
    assert (pd.to_datetime(days) == frame["admitted"]).all()
    assert (persons["year_of_birth"] == frame["admitted"].dt.year - frame["age"]).all()
    assert ((persons["gender_concept_id"] == 8532) == (frame["sex"] == "FEMALE")).all()
    assert {*tables["measurement"]["unit_concept_id"]} == {omop.MMOL}


def test_a_year_of_birth_is_needed_and_days_may_be_made_up():
    age, *others = omop.FEATURES
    assert made(omop.SCHEMA["columns"], others)[1] == {}
    features = [age, FEVERS, others[-1]]
    frame, tables = made(omop.SCHEMA["columns"], features, since="2018-05-10", take="each")
    omop_model.check_model(tables)
    assert {*tables["person"]["year_of_birth"]} == {*(2018 - frame["age"])}
    assert {*tables["death"]["death_date"].astype(str)} == {"2018-06-09"}
    ills = tables["condition_occurrence"]["condition_start_date"].astype(str)
    assert (len(ills), {*ills}) == (frame["sodium"].sum(), {"2018-05-07"})
