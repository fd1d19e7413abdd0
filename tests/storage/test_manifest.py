import json
import math
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_manifests import EVENTS, SHA, fields_of, manifest_of
from pydantic import ValidationError

from privacy.errors import ConfigurationError, IntegrityError, Withheld
from privacy.events import event_to_dict
from storage.files.documents import canonical_json, digest_of
from storage.releases.bundles import require_publishable, verify_claims
from storage.releases.manifest import GateRecord, Manifest
from storage.releases.signatures import APPROVAL_FILE, SIGNATURE_FILE

DIGEST = digest_of(b"abc")
FIELDS = fields_of(needs_approval=True, requester="0123456789abcdef")
EVENT = EVENTS[0]
MANIFEST = manifest_of((EVENT,))

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


def test_canonical_json_has_a_form_and_refuses_what_is_none():
    value = {"b": [1, 0.5, True, None], "a": "ü\n", "B": ()}
    assert canonical_json(value) == '{"B":[],"a":"ü\\n","b":[1,0.5,true,null]}'.encode()
    numbers = [math.nan, [math.inf], {"a": -math.inf}]
    for other in (*numbers, {1: 2}, {"a": b"x"}, {"a": {1, 2}}, date.min):
        with pytest.raises(ConfigurationError, match="NOT_JSON: expected text keys, text, finite"):
            canonical_json(other)


OUT_OF_RANGE = {
    "adjacency": ["add"], "events": [()], "mu": [0.0], "rho": [math.nan], "delta": [1.0],
    "epsilon": [math.inf, -1.0], "max_rows_per_patient": [0], "rows": [0],
    "files": [
        {}, {"a.csv": SHA}, {"a.csv": {**DIGEST.model_dump(), "sha256": SHA + "\n"}},
        {"a.csv": {**DIGEST.model_dump(), "crc": 0}}, {"manifest.json": DIGEST},
        {SIGNATURE_FILE: DIGEST}, {APPROVAL_FILE.upper().replace("JSON", "json"): DIGEST},
        {"a.csv": DIGEST, "A.csv": DIGEST},
    ],
    "measurement_sha256": ["abc"], "requester": [None, "anna"], "source_rows": [32_561],
    "conditions": [{"sex": "female"}], "resampled_from": ["r-1", FIELDS["release_id"]],
}  # fmt: skip


@pytest.mark.parametrize("field", OUT_OF_RANGE)
def test_manifest_refuses(field):
    for value in OUT_OF_RANGE[field]:
        with pytest.raises(ValidationError, match=field):
            Manifest(**{**FIELDS, field: value})


def changed(**fields):
    return canonical_json({**json.loads(Manifest(**FIELDS).to_bytes()), **fields})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(source_rows=32_561), "field 'source_rows': Extra inputs are not permitted"),
        (changed(method={"name": "x", "settings": {}, "seed": 1}), "field 'method.seed': Extra"),
        (changed(gate=[{"check": "x", "passed": True, "n": 1}]), r"field 'gate\.0\.n': Extra"),
        (changed(dataset="../x"), "a name has 1 to 63 characters"),
        (changed(files={"../a.csv": DIGEST.model_dump()}), "a file name has letters"),
        (changed(rows="1000"), "is not in canonical form"),
        (Manifest(**FIELDS).to_bytes() + b"\n", "is not in canonical form"),
        (Manifest(**FIELDS).to_bytes()[:-1] + b',"rows":2000}', "is not in canonical form"),
        (Manifest(**FIELDS).to_bytes()[:-1], "field ''"),
        (b'{"rows":NaN}', "field ''|field"),
        (b"\xff", "field ''"),
        (changed(measurement_sha256="x"), "field 'measurement_sha256': String should match"),
        (changed(**{"\x1b[2J": 1}), r"field '\\x1b\[2J': Extra inputs"),
        (
            changed(events=[{"kind": 0}]).replace(b":0}", b":1e999}"),
            "expected text keys, text, fini",
        ),
        (b" " * (Manifest.MAX_BYTES + 1), "is larger than 4,000,000 bytes"),
    ],
)
def test_parse_manifest_refuses(content, message):
    with pytest.raises(IntegrityError, match=f"MANIFEST_INVALID: file manifest.json .*{message}"):
        Manifest.from_bytes(content)


@given(
    st.binary(max_size=100)
    | JSON_VALUES.map(canonical_json)
    | st.builds(
        lambda name, value: changed(**{name: value}), st.sampled_from(sorted(FIELDS)), JSON_VALUES
    )
)
def test_hostile_content_is_refused_or_is_a_manifest(content):
    refused = IntegrityError("MANIFEST_INVALID", "")
    try:
        assert Manifest.from_bytes(content).to_bytes() == content
    except IntegrityError as error:
        refused = error
    assert refused.code == "MANIFEST_INVALID"
    assert str(refused).isprintable()


@given(
    st.fixed_dictionaries(
        {"kind": JSON_VALUES | st.sampled_from(["gaussian", "composed", "parallel"])},
        optional={"events": JSON_VALUES, "adjacency": JSON_VALUES, "n_values": JSON_VALUES},
    )
    | st.builds(
        lambda name, value: {**event_to_dict(EVENT), name: value},
        st.sampled_from(sorted(event_to_dict(EVENT))),
        JSON_VALUES | st.floats(allow_nan=False),
    )
)
def test_hostile_events_are_refused(event):
    # Neither the name of a statistic nor its number of values changes what it costs.
    harmless = {**event_to_dict(EVENT), **{k: event.get(k) for k in ("statistic", "n_values")}}
    accepted = True
    try:
        verify_claims(MANIFEST.model_copy(update={"events": (event,)}))
    except IntegrityError:
        accepted = False
    assert not accepted or event == harmless


def test_what_may_not_be_published_is_withheld():
    for changes, message in (
        ({"tainted": True}, "TAINTED"),
        ({"gate": (GateRecord(check="schema", passed=False),)}, "GATE_FAILED: .*: schema"),
    ):
        manifest = MANIFEST.model_copy(update=changes)
        with pytest.raises(Withheld, match=message):
            require_publishable(manifest)
        with pytest.raises(IntegrityError, match="MANIFEST_CLAIM"):
            verify_claims(manifest)
