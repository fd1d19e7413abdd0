import json

import fhir_export
import omop_database as omop
import omop_model
import pandas as pd
import pytest

from flows.cli import main

N_PATIENTS = 400
FHIR_SCHEMA = {
    "columns": [
        {"name": "sex", "kind": "categorical", "levels": ["female", "male"]},
        {"name": "born", "kind": "integer", "lower": 1900, "upper": 2020, "bins": 12},
        {"name": "sodium", "kind": "real", "lower": 100, "upper": 180, "decimals": 1, "bins": 8}
        | {"nullable": True},
        {"name": "stays", "kind": "integer", "lower": 0, "upper": 10, "bins": 5},
    ],
    "label": {"name": "diabetes", "levels": {"no": ["false"], "yes": ["true"]}},
}


def declare(desk, source, unit, schema):
    desk.site |= {
        "source": source,
        "privacy_unit": {"column": unit, "max_rows_per_patient": 1},
        "schema": schema,
    }
    return desk


def omop_source(**place):
    population = {"visit": omop.INPATIENT, "descendants": True}
    declared = {"kind": "omop", "window": ["-30d", "2d"], "features": omop.FEATURES}
    return declared | {"population": population} | place


@pytest.fixture
def omop_desk(desk):
    omop.write_sqlite(desk.folder / "cdm.sqlite", omop.made_up(N_PATIENTS, seed=11))
    place = {"url": f"sqlite:///{desk.folder}/cdm.sqlite"}
    return declare(desk, omop_source(**place), "person_id", omop.SCHEMA)


@pytest.fixture
def fhir_desk(desk):
    fhir_export.write(desk.folder / "export", fhir_export.made_up(N_PATIENTS, seed=12))
    source = {"kind": "fhir", "path": "export", "features": fhir_export.FEATURES}
    return declare(desk, source, "patient", FHIR_SCHEMA)


def judge(desk, schema, ids):
    table = pd.read_parquet(desk.bundle / "synthetic.parquet")
    names = [*(column["name"] for column in schema["columns"]), schema["label"]["name"]]
    assert list(table.columns) == names
    assert len(table) == desk.site["rows"]
    for column in schema["columns"]:
        found = table[column["name"]].dropna()
        if column["kind"] == "categorical":
            assert set(found) <= set(column["levels"])
        else:
            assert found.between(column["lower"], column["upper"]).all()
    manifest = json.loads((desk.bundle / "manifest.json").read_text())
    assert all(check["passed"] for check in manifest["gate"])
    assert main(["verify", str(desk.bundle)]) == 0
    for path in desk.bundle.iterdir():
        assert not any(one.encode() in path.read_bytes() for one in ids)


@pytest.mark.integration
def test_an_omop_database_is_released(omop_desk):
    assert omop_desk.release() == 0, omop_desk.errors
    judge(omop_desk, omop.SCHEMA, [str(omop_desk.folder)])
    assert omop_desk.states == ["published"]


def with_labs(desk, source, tests, **taken):
    columns = [
        {"name": "taken", "kind": "date"} | taken,
        {"name": "test", "kind": "categorical", "levels": [*map(str, tests)]},
        {"name": "result", "kind": "real", "lower": 100, "upper": 180, "decimals": 1, "bins": 8},
    ]
    table = {"name": "labs", "source": source, "max_rows_per_patient": 3, "columns": columns}
    table |= {"kind": "test", "value": "result", "at": {"column": "taken"}}
    desk.site |= {"events": [table], "method": {"kind": "clustmix"}}
    return table


def frames(desk):
    people, labs = (pd.read_parquet(desk.bundle / f"{n}.parquet") for n in ("synthetic", "labs"))
    key = people.columns[0]
    assert {*labs[key]} <= {*people[key]}
    assert labs.groupby(key)["taken"].is_monotonic_increasing.all()
    assert labs.groupby(key).size().max() <= 3
    assert main(["verify", str(desk.bundle)]) == 0
    return people, labs


@pytest.mark.integration
def test_omop_in_and_omop_out(omop_desk):
    source = omop_desk.site["source"] | {"features": omop.DATED["features"]}
    declare(omop_desk, source, "person_id", omop.SCHEMA | {"columns": omop.DATED["columns"]})
    query = (
        "SELECT m.person_id, m.measurement_date AS taken, m.measurement_concept_id AS test, "
        "m.value_as_number AS result FROM measurement AS m WHERE m.value_as_number IS NOT NULL"
    )
    own = {"kind": "sql", "query": query, "url": source["url"]}
    table = with_labs(omop_desk, own, (omop.SODIUM, omop.WEIGHT), **omop.DAY)
    table["at"]["since"] = "admitted"
    assert omop_desk.release() == 0, omop_desk.errors
    people, labs = frames(omop_desk)
    tables = omop_model.read_model({f.name: f.read_bytes() for f in omop_desk.bundle.iterdir()})
    omop_model.check_model(tables)
    assert len(tables["death"]) == (people["died"] == "yes").sum()
    # Sodium is that of the events, of which none is after a death.
    found = tables["measurement"]
    assert 0 < len(found) <= len(labs)
    assert {*found["measurement_concept_id"]} == {omop.SODIUM, omop.WEIGHT}
    listed = json.loads((omop_desk.bundle / "datapackage.json").read_text())["resources"]
    assert {f"omop_{name}.csv" for name in tables} <= {one["path"] for one in listed}


@pytest.mark.integration
def test_a_fhir_export_is_released_and_once(fhir_desk):
    assert fhir_desk.release() == 0, fhir_desk.errors
    judge(fhir_desk, FHIR_SCHEMA, ["Patient/p17", str(fhir_desk.folder)])
    assert fhir_desk.release() == 0  # the same files: the same release, paid for once
    assert fhir_desk.states == ["published"]


@pytest.mark.integration
def test_resources_are_a_table_of_events(fhir_desk):
    paths = {"taken": "effective", "test": "code.coding.code", "result": "value.value"}
    features = [{"column": one, "expression": f"Observation.{path}"} for one, path in paths.items()]
    source = fhir_desk.site["source"] | {"features": features}
    day = {"lower": "2020-01-01", "upper": "2020-01-04", "bins": 4, "timezone": "Europe/Berlin"}
    table = with_labs(fhir_desk, source, ("2951-2", "2823-3"), **day)
    # The log of a bulk client lies in the export.
    (fhir_desk.folder / "export" / "log.ndjson").write_text('{"exportId": "e1"}\n')
    table["source"] = source | {"each": "Observation | Condition"}  # which have no date here
    assert fhir_desk.release() == 2
    assert "taken of labs: expected" in fhir_desk.line
    table["source"] = source | {"each": "Observation.where(value.exists())"}
    assert fhir_desk.run("check") == 0, fhir_desk.errors
    assert fhir_desk.release() == 0, fhir_desk.errors
    _, labs = frames(fhir_desk)
    assert {*labs["test"]} == {"2951-2", "2823-3"}
    assert sorted(fhir_desk.states) == ["published", "void", "void"]  # the check is one of them
