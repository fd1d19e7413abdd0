"""Readers of the release store learn nothing of the ledger but what each bundle was charged."""

import json
import re
import stat
from pathlib import Path

import ledger_requests
import made_up_release as made
from stores import Stores

from privacy.ledger import EntryState
from storage.settings import load_settings


def said_of(outcome):
    """Return the card, the schema and the manifest of a bundle, without what is its own."""
    bundle = Path(outcome.bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    card = (bundle / "data_card.md").read_text()
    for name in ("release_id", "ledger_entry", "created_on"):
        card = card.replace(manifest.pop(name), name)
    # How near the rows came to the gate's bounds is a property of the rows, which differ.
    card = re.sub(r"\| ([a-z].*) \| passed; .* \|", r"| \1 | passed |", card)
    manifest["gate"] = [{"check": r["check"], "passed": r["passed"]} for r in manifest["gate"]]
    for name in ("measurement_sha256", "files"):
        del manifest[name]
    page = (bundle / "report.html").read_text()
    budget = page.partition("<h3>Budget</h3>")[2].partition("</div>")[0]
    return card, (bundle / "schema.json").read_text(), manifest, budget.count("<")


def test_burned_and_void_runs_change_nothing_that_readers_see(tmp_path, monkeypatch):
    made.install(monkeypatch, tmp_path)
    site_file = made.write_site(tmp_path)
    first = made.release_without_engine(site_file)
    settings = load_settings()
    ledger, store = Stores(settings).ledger, settings.releases
    before = store.stat()
    for number, ends in enumerate(([EntryState.EXECUTING, EntryState.BURNED], [EntryState.VOID])):
        charge = ledger_requests.charge(number, cohort="made-up", dataset="made-up")
        entry = ledger.reserve(charge).entry
        for state in ends:
            entry = ledger.transition(entry.entry_id, state, expected_from=entry.state)
    # Neither a file, nor the time at which the folder was last written to.
    assert store.stat() == before
    assert {path.name for path in store.iterdir()} == {".lock", "made-up"}
    second = made.release_without_engine(site_file, new_draw=True, again=True)
    assert len(ledger.entries()) == 4
    assert said_of(second) == said_of(first)
    # What counts the runs lies where the operator alone can read it.
    head = settings.ledger_head_path
    assert json.loads(head.read_text())["sequence"] == ledger.head()[0]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (head.parent, head)]
    assert modes == [0o700, 0o600]
