import copy
import json
from datetime import datetime

import fhir_export as export
import pandas as pd
import pytest
from pydantic import ValidationError

from privacy.errors import InputError
from storage.settings import Settings
from storage.sources.cohorts import CohortReader
from storage.sources.declared import FhirSource
from storage.sources.declared_fhir import parse_expression

SECRET = "MRN-SECRET-4711"  # noqa: S105 - a planted patient, no password
COLUMNS = ["patient", *(feature["column"] for feature in export.FEATURES)]


@pytest.fixture
def reader(tmp_path):
    def make(features=export.FEATURES, **fields):
        declared = {"kind": "fhir", "path": tmp_path / "export", "features": features} | fields
        settings = Settings(home=tmp_path / "home")
        return CohortReader(
            FhirSource.model_validate(declared),
            places=settings.data_places,
            scratch=settings.private_root,
        )

    return make


def read(reader, columns=COLUMNS, chunk_rows=50_000):
    frames = list(reader.chunks(columns, chunk_rows))
    assert all(len(frame) <= chunk_rows for frame in frames)
    rows = [dict(row) for frame in frames for _, row in frame.astype(object).iterrows()]
    return {r.pop("patient"): {k: None if pd.isna(v) else v for k, v in r.items()} for r in rows}


def expected(resources):
    """What the expressions say, computed the slow way."""
    found = {}
    for patient in (one for one in resources if one["resourceType"] == "Patient"):
        own = [one for one in resources if export.subject_of(one) == patient["id"]]
        of = {kind: [one for one in own if one["resourceType"] == kind]
              for kind in ("Observation", "Encounter", "Condition")}  # fmt: skip
        sodium = [o for o in of["Observation"] if o["code"]["coding"][0]["code"] == "2951-2"]
        last = max(
            sodium,
            key=lambda o: (datetime.fromisoformat(o["effectiveDateTime"]).timestamp(), o["id"]),
            default=None,
        )
        found[patient["id"]] = {
            "sex": patient["gender"],
            "born": patient["birthDate"][:4],
            "sodium": None if last is None else f"{last['valueQuantity']['value']:g}",
            "stays": str(len(of["Encounter"])),
            "diabetes": "true" if of["Condition"] else "false",
        }
    return found


def test_records_are_those_of_the_expressions_and_no_patient_moves_another(reader, tmp_path):
    resources = export.made_up(30, seed=1)
    export.write(tmp_path / "export", resources)
    assert list(reader().header()) == COLUMNS
    found = read(reader(), chunk_rows=7)
    assert found == expected(resources)
    assert all(len({row[name] for row in found.values()}) > 1 for name in COLUMNS[1:])
    export.write(tmp_path / "export", [*reversed(resources), *resources[:5]], n_files=2)
    assert read(reader()) == found  # neither files nor lines have an order that matters
    alone = [one for one in resources if export.subject_of(one) != "p3"]
    export.write(tmp_path / "export", alone)
    assert read(reader()) == {name: row for name, row in found.items() if name != "p3"}
    assert [path.name for path in (tmp_path / "home" / "private").iterdir()] == []


def test_a_row_of_a_resource_is_of_that_resource_alone(reader, tmp_path):
    resources = export.made_up(30, seed=1)
    paths = {"taken": "effective", "sodium": "value.value"}
    features = [{"column": n, "expression": f"Observation.{p}"} for n, p in paths.items()]
    each, columns = "Observation.last().where(value.value > 130)", ["patient", *paths]
    kept = [one for one in resources if one.get("valueQuantity", {"value": 0})["value"] > 130]
    values = {one["id"]: f"{one['valueQuantity']['value']:g}" for one in kept}
    rows = [(export.subject_of(o), o["effectiveDateTime"], values[o["id"]]) for o in kept]
    # Neither other resources, records of patients nor lines that occur twice make a row.
    for written in (resources, [*reversed(kept), *kept[:3]]):
        export.write(tmp_path / "export", written, n_files=2)
        frames = list(reader(features, each=each).chunks(columns, 7))
        assert all(len(frame) <= 7 for frame in frames)
        assert sorted(pd.concat(frames).itertuples(index=False, name=None)) == sorted(rows)
    broken = reader(features, each="Observation.where(value.value.substring(0, 'a') = 'b')")
    with pytest.raises(InputError, match="FHIR_VALUE: column 'each': expected expression that can"):
        list(broken.chunks(columns))
    with pytest.raises(ValidationError, match="column taken: expected the types of resources"):
        reader(features, each="Encounter")


def changed(resources, kind, **fields):
    found = copy.deepcopy(resources)
    next(one for one in found if one["resourceType"] == kind).update(fields)
    return found


BROKEN = {
    "broken line": (lambda _: f'{{"id": "{SECRET}"', "FHIR_LINE: expected on every line"),
    "not a number": (lambda _: '{"resourceType": "Patient", "id": NaN}', "FHIR_LINE"),
    "unknown type": (lambda _: f'{{"resourceType": "{SECRET}"}}', "FHIR_TYPE: expected on every"),
    "no subject": (
        lambda all_: changed(all_, "Observation", subject=None),
        "FHIR_SUBJECT: expected every Observation to name its patient",
    ),
    "subject of another server": (
        lambda all_: changed(
            all_, "Encounter", subject={"reference": "https://a.example/Patient/p1"}
        ),
        "FHIR_SUBJECT: expected every Encounter to name its patient .*, found an address, and two",
    ),
    "linked records": (
        lambda all_: changed(all_, "Patient", link=[{"other": {"reference": SECRET}}]),
        "FHIR_PATIENT_LINK: expected one record per patient",
    ),
    "patient not there": (
        lambda all_: changed(all_, "Encounter", subject={"reference": f"Patient/{SECRET}"}),
        "FHIR_PATIENT: expected one resource Patient for each patient .* none",
    ),
    "several values": (
        lambda all_: changed(all_, "Patient", gender=["male", SECRET]),
        "FHIR_VALUE: column 'sex': expected one value or none for each patient, found several",
    ),
    "no evaluation": (
        lambda all_: changed(all_, "Patient", birthDate=["2000-01-01", SECRET]),
        "FHIR_VALUE: column 'born'",
    ),
}


@pytest.mark.parametrize(("broken", "line"), BROKEN.values(), ids=BROKEN)
def test_bad_input_is_one_line_without_a_value(broken, line, reader, tmp_path):
    resources = export.made_up(5, seed=7)
    found = broken(resources)
    export.write(tmp_path / "export", found if isinstance(found, list) else resources)
    if isinstance(found, str):
        (tmp_path / "export" / "part.9.ndjson").write_text(found + "\n")
    with pytest.raises(InputError, match=line) as raised:
        read(reader())
    assert SECRET not in str(raised.value)
    assert raised.value.__context__ is None
    assert list((tmp_path / "home" / "private").iterdir()) == []


def test_a_link_and_an_empty_folder_are_refused(reader, tmp_path):
    (tmp_path / "export").mkdir()
    with pytest.raises(InputError, match="SOURCE_MISSING: expected files"):
        reader().content_sha256()
    (tmp_path / "elsewhere").write_text(json.dumps({"resourceType": "Patient", "id": "p"}) + "\n")
    (tmp_path / "export" / "a.ndjson").symlink_to(tmp_path / "elsewhere")
    for ask in (lambda: reader().content_sha256(), lambda: read(reader())):
        with pytest.raises(InputError, match="FHIR_LINK: expected files only"):
            ask()


@pytest.mark.parametrize(
    ("expression", "line"),
    [
        ("Observation.where(", "could not be parsed"),
        ("Observatoin.count()", "begin with a type of resource"),
        ("Patient.birthDate < today()", "the function today"),
        ("iif(Patient.exists(), now(), 1)", "the function now"),
        ("Patient.name.trace('x')", "the function trace"),
        ("Patient.where(%context.exists()).id", "no variable"),
    ],
)
def test_an_expression_of_more_than_paths_is_refused(expression, line):
    with pytest.raises(ValueError, match=line):
        parse_expression(expression)
    features = [{"column": "a", "expression": expression}]
    with pytest.raises(ValidationError, match=f"column a: .*{line}"):
        FhirSource.model_validate({"kind": "fhir", "path": "x", "features": features})
