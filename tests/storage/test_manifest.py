import json
import math
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from privacy.errors import ConfigurationError, IntegrityError
from storage.manifest import (
    MAX_MANIFEST_BYTES,
    GateRecord,
    Manifest,
    MethodRecord,
    canonical_json,
    file_digests,
    parse_manifest,
)

SHA = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
FIELDS = {
    "dataset": "adult",
    "release_id": "r-20250131-0f3a9c21",
    "created_on": date(2025, 1, 31),
    "analysis": "proven",
    "guarantee": "Ein Satz über die Garantie.",
    "method": MethodRecord(name="clustmix", settings={"clusters": 4}),
    "request": {"epsilon": 1.0},
    "code_version": "0.1.0",
    "events": ({"kind": "gaussian"},),
    "mu": 0.3,
    "rho": 0.045,
    "epsilon": 1.0,
    "delta": 1e-6,
    "replace_one_epsilon": 2.2,
    "adjacency": "add_remove",
    "privacy_unit": "patient_nbr",
    "max_rows_per_patient": 5,
    "ledger_entry": "17",
    "gate": (GateRecord(check="schema", passed=True),),
    "rows": 1000,
    "tainted": False,
    "files": {"synthetic.csv": SHA},
}

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_canonical_json_is_json_and_has_one_form(value):
    content = canonical_json(value)
    assert json.loads(content) == value
    assert canonical_json(json.loads(content)) == content


def test_canonical_json_form():
    value = {"b": [1, 0.5, True, None], "a": "ü\n", "B": ()}
    assert canonical_json(value) == '{"B":[],"a":"ü\\n","b":[1,0.5,true,null]}'.encode()


@pytest.mark.parametrize(
    "value", [math.nan, [math.inf], {"a": -math.inf}, {1: 2}, {"a": b"x"}, {"a": {1, 2}}, date.min]
)
def test_canonical_json_refuses(value):
    with pytest.raises(ConfigurationError, match="NOT_JSON: expected text keys, text, finite"):
        canonical_json(value)


def test_manifest_survives_its_file():
    manifest = Manifest(**FIELDS)
    assert parse_manifest(manifest.to_bytes()) == manifest
    assert str(manifest.ref) == "adult/r-20250131-0f3a9c21"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("analysis", "none"),
        ("adjacency", "add"),
        ("accountant", "trust-me"),
        ("events", ()),
        ("mu", 0.0),
        ("rho", math.nan),
        ("epsilon", math.inf),
        ("epsilon", -1.0),
        ("delta", 1.0),
        ("max_rows_per_patient", 0),
        ("rows", 0),
        ("files", {}),
        ("files", {"a.csv": "abc"}),
        ("files", {"a.csv": SHA + "\n"}),
        ("files", {"manifest.json": SHA}),
        ("files", {"a.csv": SHA, "A.csv": SHA}),
        ("source_rows", 32_561),
    ],
)
def test_manifest_refuses(field, value):
    with pytest.raises(ValidationError, match=field):
        Manifest(**{**FIELDS, field: value})


@pytest.mark.parametrize("name", ["../a.csv", "/etc/passwd", ".a", "a/b"])
def test_manifest_refuses_paths(name):
    with pytest.raises(ConfigurationError, match="INVALID_FILE_NAME"):
        Manifest(**{**FIELDS, "files": {name: SHA}})
    with pytest.raises(ConfigurationError, match="INVALID_NAME"):
        Manifest(**{**FIELDS, "dataset": name})


def changed(**fields):
    return canonical_json({**json.loads(Manifest(**FIELDS).to_bytes()), **fields})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(source_rows=32_561), "field 'source_rows': Extra inputs are not permitted"),
        (changed(method={"name": "x", "settings": {}, "seed": 1}), "field 'method.seed': Extra"),
        (changed(gate=[{"check": "x", "passed": True, "n": 1}]), r"field 'gate\.0\.n': Extra"),
        (changed(dataset="../x"), "a name has 1 to 63 characters"),
        (changed(rows="1000"), "is not in canonical form"),
        (Manifest(**FIELDS).to_bytes() + b"\n", "is not in canonical form"),
        (Manifest(**FIELDS).to_bytes()[:-1] + b',"rows":2000}', "is not in canonical form"),
        (Manifest(**FIELDS).to_bytes()[:-1], "field ''"),
        (b'{"rows":NaN}', "field ''|field"),
        (b"\xff", "field ''"),
        (b" " * (MAX_MANIFEST_BYTES + 1), "is larger than 4 MB"),
    ],
)
def test_parse_manifest_refuses(content, message):
    with pytest.raises(IntegrityError, match=f"MANIFEST_INVALID: file manifest.json .*{message}"):
        parse_manifest(content)


def test_file_digests(tmp_path):
    (tmp_path / "x").write_bytes(b"abc")
    assert file_digests({"a.csv": b"abc", "b.csv": tmp_path / "x"}) == {"a.csv": SHA, "b.csv": SHA}
