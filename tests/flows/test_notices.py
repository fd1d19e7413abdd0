from datetime import timedelta

import pytest
from made_up_entries import enter, move

from flows.watching.outbox import FIRST_LOOK_BACK, Cursor, notices, read_cursor
from privacy.errors import IntegrityError
from privacy.ledger import EntryState
from privacy.spending import moment

NOTHING = Cursor()


def told(site, cursor=NOTHING):
    events = notices(site.ledger.history(), cursor, owner=site.owner)
    return [(event.name, event.payload.get("reason")) for event in events]


def after(site):
    sequence, row_hash = site.ledger.head()
    return Cursor(sequence=sequence, row_hash=row_hash)


@pytest.mark.parametrize(
    ("state", "note", "expected"),
    [
        ("reserved", None, []),
        ("void", "ABANDONED", [("release.refused", "ABANDONED")]),
        ("burned", "ingest:ValueError", [("release.burned", "ingest:ValueError")]),
        ("sealed", None, [("measurement.sealed", None)]),
        ("approved", None, [("measurement.sealed", None)]),
        ("withheld", "OUTPUT_GATE", [("release.withheld", "OUTPUT_GATE")]),
        ("published", None, [("release.published", "PUBLISHED")]),
        ("revoked", None, [("release.published", "PUBLISHED"), ("release.revoked", "REVOKED")]),
    ],
)
def test_each_state_has_its_event(site, state, note, expected):
    enter(site, EntryState(state), note=note)
    # Other installations tell of their own.
    enter(site, EntryState(state), note=note, owner="f" * 16)
    assert told(site) == expected


def test_an_officer_is_told_that_a_release_waits(site):
    entry = enter(site, EntryState.SEALED, needs_approval=True)
    assert told(site) == [("measurement.sealed", None), ("release.waiting", "SEALED")]
    place = after(site)
    move(site, entry, EntryState.APPROVED, note="looks good")
    assert told(site, place) == []
    # Told late, there is still something to publish and nobody to wait for.
    assert told(site) == [("measurement.sealed", None)]


def test_what_an_officer_writes_is_not_repeated(site):
    entry = enter(site, EntryState.SEALED, needs_approval=True)
    place = after(site)
    move(site, entry, EntryState.WITHHELD, note="secret", signers=("b" * 16,))
    assert told(site, place) == [("release.withheld", "BY_OFFICER")]
    place = after(site)
    enter(site, EntryState.WITHHELD, note="two words, and more", cohort="others")
    assert told(site, place) == [("release.withheld", "WITHHELD")]


def test_a_ledger_from_an_older_copy_is_refused(site):
    enter(site, EntryState.SEALED)
    place = after(site)
    rows = site.ledger.history()
    for others in (rows[:-1], ()):
        with pytest.raises(IntegrityError, match=r"^LEDGER_ROLLED_BACK: sequence 3: expected"):
            notices(others, place, owner=site.owner)


@pytest.mark.parametrize("content", ["{", '{"sequence": -1}', '{"secret": 1}'])
def test_a_damaged_memory_is_refused(tmp_path, content):
    (tmp_path / "watcher.json").write_text(content)
    with pytest.raises(IntegrityError, match=r"^WATCHER_MEMORY_DAMAGED: .* in watcher.json, "):
        read_cursor(tmp_path)


def test_the_first_watcher_tells_of_yesterday_and_not_of_history(site):
    enter(site, EntryState.BURNED)
    enter(site, EntryState.WITHHELD)
    rows = site.ledger.history()
    last_of_first = moment(rows[2].recorded_at)
    assert Cursor.at_first((), now=last_of_first) == Cursor()
    assert Cursor.at_first(rows, now=last_of_first + timedelta(hours=1)) == Cursor()
    late = Cursor.at_first(rows, now=moment(rows[-1].recorded_at) + FIRST_LOOK_BACK * 2)
    assert late == after(site)
