from pathlib import Path

import made_up_release as made
import pytest

from flows.cli import main
from privacy.errors import ClustMixError, ConfigurationError, IntegrityError, LedgerError
from storage.keys.key_store import read_public_keys
from storage.releases.bundles import verify_bundle


@pytest.fixture
def requester(installation, person):
    return person("engineer")


@pytest.fixture
def officer(installation, person):
    return person("officer", is_officer=True)


@pytest.fixture
def waiting(installation, requester, officer):
    path = made.write_site(installation, approval="officer")
    return made.release_without_engine(path, requester=requester.key_id)


def test_release_waits_and_the_officer_sees_it(waiting, site):
    assert waiting.state == "sealed"
    (entry,) = site.ledger.entries()
    assert (entry.state, entry.needs_approval) == ("sealed", True)
    assert not (site.settings.releases / "made-up").exists()
    shown = {path.name for path in Path(waiting.bundle).iterdir()}
    assert {"report.html", "data_card.md", "manifest.json", "synthetic.csv"} <= shown
    assert Path(waiting.bundle).stat().st_mode & 0o777 == 0o700


def test_approved_release_is_published_as_it_was_seen(waiting, site, officer, installation):
    seen = {path.name: path.read_bytes() for path in Path(waiting.bundle).iterdir()}
    outcome = site.decide(
        waiting.release_id, decision="approve", key=officer, reason="within the protocol"
    )
    assert outcome.state == "published"
    published = {path.name: path.read_bytes() for path in Path(outcome.bundle).iterdir()}
    assert {name: published[name] for name in seen} == seen
    assert published.keys() - seen.keys() == {"signature.json", "approval.json"}
    trusted, officers = site.keys.pipeline_public(), site.keys.officers()
    verified = verify_bundle(Path(outcome.bundle), trusted=trusted, officers=officers)
    assert (verified.approved_by, verified.reason) == (officer.key_id, "within the protocol")
    rows = site.ledger.history()
    assert [row.state.value for row in rows] == [
        "reserved", "executing", "sealed", "approved", "published",
    ]  # fmt: skip
    assert (rows[3].signers, rows[3].note) == ((officer.key_id,), "within the protocol")
    assert list(site.settings.pending.iterdir()) == []
    keys = [site.settings.key_folder / "pipeline.pub", installation / "people" / "officer.pub"]
    verify_bundle(Path(outcome.bundle), trusted=read_public_keys(keys))
    with pytest.raises(IntegrityError):
        verify_bundle(Path(outcome.bundle), trusted=read_public_keys(keys[:1]))
    more = site.publisher.resample(waiting.release_id, rows=50)
    again = verify_bundle(Path(more.bundle), trusted=trusted, officers=officers)
    assert again.approved_by == officer.key_id
    assert again.manifest.resampled_from == waiting.release_id


def test_requester_cannot_approve(site, person, requester, waiting):
    decide, stranger = site.decide, person("stranger")
    with pytest.raises(ConfigurationError, match=f"NOT_AN_OFFICER: .* found {stranger.key_id}"):
        decide(waiting.release_id, decision="approve", key=stranger, reason="why not")
    requester.public.write(site.settings.key_folder / "officers" / "engineer.pub")
    for decision in ("approve", "reject"):
        with pytest.raises(ConfigurationError, match="APPROVER_IS_REQUESTER: expected the key of"):
            decide(waiting.release_id, decision=decision, key=requester, reason="mine")
    assert [entry.state.value for entry in site.ledger.entries()] == ["sealed"]


def test_request_is_signed_too(installation):
    path = made.write_site(installation, approval="officer")
    with pytest.raises(ConfigurationError, match=r"REQUESTER_MISSING: .* person who asks, because"):
        made.release_without_engine(path)
    assert not (installation / "home" / "ledger.sqlite").exists()


def test_rejected_release_is_never_published_and_stays_charged(
    installation, waiting, site, officer, capsys
):
    before, key = site.ledger.balance("made-up").spent_rho, installation / "people" / "officer.key"
    words = ["approve", waiting.release_id, "--reject", "--key", str(key)]
    assert main([*words, "--reason", "too few patients"]) == 0
    assert capsys.readouterr().out.startswith(f"withheld made-up/{waiting.release_id}; its charge")
    entry = site.ledger.entries()[-1]
    assert (entry.state, entry.note) == ("withheld", "too few patients")
    assert entry.signers == (officer.key_id,)
    assert site.ledger.balance("made-up").spent_rho == before
    assert not Path(waiting.bundle).exists()
    for decision in ("approve", "reject"):
        again = f"NOTHING_TO_DECIDE: .* found {waiting.release_id} withheld"
        with pytest.raises(LedgerError, match=again):
            site.decide(waiting.release_id, decision=decision, key=officer, reason="again")


def test_approval_cannot_be_turned_off(installation, waiting):
    path = made.write_site(installation, privacy={"epsilon": 1.5})
    with pytest.raises(ClustMixError, match="APPROVAL_REQUIRED"):
        made.release_without_engine(path)


def test_asking_again_waits_as_well(installation, waiting, requester, site):
    path = made.write_site(installation, approval="officer")
    again = made.release_without_engine(path, requester=requester.key_id)
    assert (again.state, again.release_id, again.reused) == ("sealed", waiting.release_id, True)
    assert len(site.ledger.entries()) == 1


def test_other_rows_than_the_officer_saw_are_refused(waiting, site, officer):
    def refused(path, content, message):
        before = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(IntegrityError, match=message):
            site.decide(waiting.release_id, decision="approve", key=officer, reason="agreed")
        path.write_bytes(before)

    rows = Path(waiting.bundle) / "synthetic.csv"
    changed = rows.read_bytes().replace(b"icu", b"ICU", 1)
    refused(rows, changed, f"PENDING_DAMAGED: .* of {waiting.release_id} is da")
    measurement = site.settings.measurements / waiting.release_id / "released.npz"
    refused(measurement, measurement.read_bytes()[:-1], "MEASUREMENT_DAMAGED")
    assert [entry.state.value for entry in site.ledger.entries()] == ["sealed"]
