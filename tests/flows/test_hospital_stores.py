import json

import fhir_export
import omop_database as omop
import pandas as pd
import pytest

from flows.cli import main

N_PATIENTS = 400
OMOP_FEATURES = [
    {"column": "age", "person": "age"},
    {"column": "sex", "person": "gender"},
    {"column": "sodium", "measurement": omop.SODIUM, "take": "last", "unit": omop.MMOL},
    {"column": "diabetes", "condition": omop.DIABETES, "take": "any", "descendants": True},
    {"column": "died", "death": True, "take": "any", "window": ["0d", "30d"]},
]
OMOP_SCHEMA = {
    "columns": [
        {"name": "age", "kind": "integer", "lower": 0, "upper": 110, "bins": 11},
        {"name": "sex", "kind": "categorical", "levels": ["FEMALE", "MALE"], "nullable": True},
        {"name": "sodium", "kind": "integer", "lower": 100, "upper": 180, "bins": 8}
        | {"nullable": True},
        {"name": "diabetes", "kind": "categorical", "levels": ["0", "1"]},
    ],
    "label": {"name": "died", "levels": {"no": ["0"], "yes": ["1"]}, "positive": "yes"},
}
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
    declared = {"kind": "omop", "window": ["-30d", "2d"], "features": OMOP_FEATURES}
    return declared | {"population": population} | place


@pytest.fixture
def omop_desk(desk):
    omop.write_sqlite(desk.folder / "cdm.sqlite", omop.made_up(N_PATIENTS, seed=11))
    place = {"url": f"sqlite:///{desk.folder}/cdm.sqlite"}
    return declare(desk, omop_source(**place), "person_id", OMOP_SCHEMA)


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
    judge(omop_desk, OMOP_SCHEMA, [str(omop_desk.folder)])
    assert omop_desk.states == ["published"]


@pytest.mark.integration
def test_a_fhir_export_is_released_and_once(fhir_desk):
    assert fhir_desk.release() == 0, fhir_desk.errors
    judge(fhir_desk, FHIR_SCHEMA, ["Patient/p17", str(fhir_desk.folder)])
    assert fhir_desk.release() == 0  # the same files: the same release, paid for once
    assert fhir_desk.states == ["published"]
