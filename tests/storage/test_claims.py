import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_manifests import EVENTS, manifest_of

from privacy.errors import IntegrityError, Withheld
from privacy.event_records import event_to_dict
from storage.releases.bundles import require_publishable, verify_claims
from storage.releases.manifest import GateRecord, Manifest

EVENT = EVENTS[0]
MANIFEST = manifest_of((EVENT,))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def with_events(*events):
    return MANIFEST.model_copy(update={"events": events})


def test_what_the_events_give_is_accepted():
    require_publishable(MANIFEST)
    verify_claims(MANIFEST)
    verify_claims(with_events({"kind": "composed", "events": [event_to_dict(EVENT)]}))


@given(
    st.fixed_dictionaries(
        {"kind": JSON_VALUES | st.sampled_from(["gaussian", "composed", "parallel"])},
        optional={"events": JSON_VALUES, "adjacency": JSON_VALUES, "n_values": JSON_VALUES},
    )
    | st.builds(
        lambda name, value: {**event_to_dict(EVENT), name: value},
        st.sampled_from(sorted(event_to_dict(EVENT))),
        JSON_VALUES,
    )
)
def test_hostile_events_are_refused(event):
    # Neither the name of a statistic nor its number of values changes what it costs.
    harmless = {**event_to_dict(EVENT), **{k: event.get(k) for k in ("statistic", "n_values")}}
    accepted = True
    try:
        verify_claims(with_events(event))
    except IntegrityError:
        accepted = False
    assert not accepted or event == harmless


def test_events_about_rows_are_no_guarantee_of_a_release():
    with pytest.raises(IntegrityError, match=r"MANIFEST_CLAIM: .* protects rows, expected events"):
        verify_claims(with_events({**event_to_dict(EVENT), "unit": "row"}))


def test_events_in_as_many_containers_as_a_file_can_hold():
    event = event_to_dict(EVENT)
    while True:
        deeper = {"kind": "composed", "events": [event]}
        try:
            Manifest.from_bytes(with_events(deeper).to_bytes())
        except IntegrityError:
            break
        event = deeper
    with pytest.raises(IntegrityError, match=r"MANIFEST_CLAIM: .* nested"):
        verify_claims(Manifest.from_bytes(with_events(event).to_bytes()))


def test_what_may_not_be_published_is_withheld():
    for changes, message in (
        ({"tainted": True}, "TAINTED"),
        ({"analysis": "published"}, "ANALYSIS_NOT_PROVEN"),
        ({"gate": (GateRecord(check="schema", passed=False),)}, "GATE_FAILED: .*: schema"),
    ):
        manifest = MANIFEST.model_copy(update=changes)
        with pytest.raises(Withheld, match=message):
            require_publishable(manifest)
        with pytest.raises(IntegrityError, match="MANIFEST_CLAIM"):
            verify_claims(manifest)
