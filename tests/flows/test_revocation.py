import hashlib
import json
import shutil
from unittest import mock

import forced_installation as forced
import made_up_release as made
import pytest
from forced_release import Death, decide_and_die
from made_up_entries import enter

from flows import decisions
from flows.cli import main
from privacy.errors import ClustMixError, ConfigurationError, IntegrityError, LedgerError, Withheld
from privacy.ledger import EntryState
from storage.keys.keys import SigningKey
from storage.ledger.ledger_db import LedgerDatabase
from storage.releases.revocations import REVOKED_FILE, read_revocations


@pytest.fixture
def installation(after_a_release, monkeypatch):
    monkeypatch.chdir(after_a_release)
    return after_a_release


@pytest.fixture
def entry(released):
    return released


@pytest.fixture
def officer(installation, person):
    return person("ada", is_officer=True)


def bundle_of(site, release_id):
    return site.releases.path(site.releases.find(release_id))


def listed(site):
    path = site.settings.releases / REVOKED_FILE
    return read_revocations(path, trusted=site.keys.pipeline_public()).revocations


def states(site):
    return [entry.state.value for entry in site.ledger.entries()]


def verified(bundle, capsys, *more):
    code = main(["verify", str(bundle), "--json", *map(str, more)])
    return code, json.loads(capsys.readouterr().out)


def error_of(bundle, capsys):
    code, answer = verified(bundle, capsys)
    assert code == 1
    return answer["error"]


def test_revoked_release_is_listed_and_its_charge_stands(
    installation, site, entry, officer, capsys
):
    bundle = bundle_of(site, entry.release_id)
    assert verified(bundle, capsys)[1]["revocations_checked"] is False
    before = site.ledger.balance("made-up")
    outcome = site.revoke(entry.release_id, key=officer, reason="bounds were taken from rows")
    address = f"made-up/{entry.release_id}"
    assert (outcome.listed, outcome.listed_before) == ((address,), ())
    assert outcome.ledger_state == "revoked"
    # An operator removes the files.
    assert outcome.bundles == (str(bundle),)
    assert bundle.is_dir()
    row = site.ledger.entry(entry.entry_id)
    assert (row.state, row.note) == ("revoked", "bounds were taken from rows")
    assert row.signers == (officer.key_id,)
    assert site.ledger.balance("made-up") == before
    site.ledger.verify()
    [item] = listed(site)
    manifest = (bundle / "manifest.json").read_bytes()
    assert item.manifest_sha256 == hashlib.sha256(manifest).hexdigest() == row.digest
    assert (item.ledger_entry, item.revoked_by) == (entry.entry_id, officer.key_id)
    code, answer = verified(bundle, capsys)
    assert (code, answer["error"]) == (1, "RELEASE_REVOKED")
    assert f"on {item.revoked_on}: bounds were taken from rows; do not use it" in answer["message"]
    # Nothing more is made from it.
    with pytest.raises(Withheld, match="NOT_PUBLISHED"):
        site.publisher.resample(entry.release_id)
    with pytest.raises(Withheld, match=r"MEASUREMENT_WITHHELD: .* was revoked"):
        made.release_without_engine(installation / "site.yaml")


def test_resamples_fall_with_the_release_that_paid(site, entry, officer, capsys):
    outcomes = [site.publisher.resample(entry.release_id, rows=rows) for rows in (50, 60)]
    outcome = site.revoke(entry.release_id, key=officer, reason="wrong table")
    ids = {entry.release_id, *(done.release_id for done in outcomes)}
    assert {item.release_id for item in listed(site)} == ids
    assert len(outcome.bundles) == 3
    assert [error_of(done.bundle, capsys) for done in outcomes] == ["RELEASE_REVOKED"] * 2
    assert {item.ledger_entry for item in listed(site)} == {entry.entry_id}


def test_resample_made_at_the_same_time_falls_too(site, entry, officer, capsys):
    # It passed its check before the revocation and was published after it.
    late = site.publisher.resample(entry.release_id, rows=50)
    with mock.patch.object(decisions, "manifests_in", return_value=()):
        site.revoke(entry.release_id, key=officer, reason="wrong table")
    assert late.release_id not in {item.release_id for item in listed(site)}
    assert error_of(late.bundle, capsys) == "RELEASE_REVOKED"
    outcome = site.revoke(entry.release_id, key=officer, reason="wrong table")
    assert outcome.listed == (f"made-up/{late.release_id}",)


def test_crash_between_list_and_ledger_is_finished_by_the_next_call(site, entry, officer, capsys):
    full = mock.patch.object(LedgerDatabase, "transition", side_effect=OSError(28, "full"))
    with full, pytest.raises(OSError, match="full"):
        site.revoke(entry.release_id, key=officer, reason="wrong table")
    assert states(site) == ["published"]
    assert error_of(bundle_of(site, entry.release_id), capsys) == "RELEASE_REVOKED"
    outcome = site.revoke(entry.release_id, key=officer, reason="wrong table")
    assert (outcome.listed, outcome.ledger_state) == ((), "revoked")
    assert states(site) == ["revoked"]


@pytest.mark.integration
@pytest.mark.parametrize(
    "place", ["before os.replace", "after os.replace", "before LedgerDatabase.transition"]
)
def test_killed_in_any_place_no_entry_is_revoked_and_unlisted(
    installation, site, entry, officer, place
):
    key_file = str(installation / "people" / "ada.key")
    asked = ("revoke", entry.release_id, key_file, Death(place=place))
    forced.kill_itself(decide_and_die, made.environment_of(installation), *asked)
    if states(site) == ["revoked"]:
        assert [item.release_id for item in listed(site)] == [entry.release_id]
    site.revoke(entry.release_id, key=officer, reason="wrong table")
    assert states(site) == ["revoked"]
    assert [item.release_id for item in listed(site)] == [entry.release_id]


def test_lost_list_is_written_again_from_the_ledger(site, entry, officer):
    bundle = bundle_of(site, entry.release_id)
    site.revoke(entry.release_id, key=officer, reason="wrong table")
    (site.settings.releases / REVOKED_FILE).unlink()
    shutil.rmtree(bundle)
    outcome = site.revoke(entry.release_id, key=officer, reason="wrong table")
    assert (outcome.listed, outcome.bundles) == ((f"made-up/{entry.release_id}",), ())
    assert [item.manifest_sha256 for item in listed(site)] == [
        site.ledger.entry(entry.entry_id).digest
    ]


def test_stranger_cannot_revoke_and_a_reason_is_one_line(site, entry, officer, person):
    for key in (person("stranger"), site.keys.pipeline()):
        with pytest.raises(ConfigurationError, match=f"NOT_AN_OFFICER: .* found {key.key_id}"):
            site.revoke(entry.release_id, key=key, reason="why not")
    with pytest.raises(ConfigurationError, match="REASON_INVALID: expected a reason of 1 to 200"):
        site.revoke(entry.release_id, key=officer, reason="two\nlines")
    assert not (site.settings.releases / REVOKED_FILE).exists()
    assert states(site) == ["published"]


@pytest.mark.parametrize("release_id", ["r-20260131-0a1b2c3d", "", "../made-up", "e-1"])
def test_unknown_release(site, officer, release_id):
    with pytest.raises(LedgerError, match=f"RELEASE_UNKNOWN: .* found no {release_id!r}; clustmi"):
        site.revoke(release_id, key=officer, reason="why")


def test_what_was_not_published_cannot_be_revoked(site, officer):
    waiting = enter(site, EntryState.SEALED)
    with pytest.raises(LedgerError, match=r"NOTHING_TO_REVOKE: .* sealed; nobody was given it"):
        site.revoke(waiting.release_id, key=officer, reason="why")


def test_published_by_a_run_that_ended_before_it_said_so(installation, site, officer, capsys):
    transition = LedgerDatabase.transition

    def full(ledger, entry_id, state, **how):
        if state is EntryState.PUBLISHED:
            raise OSError(28, "full")
        return transition(ledger, entry_id, state, **how)

    with (
        mock.patch.object(LedgerDatabase, "transition", full),
        pytest.raises(ClustMixError, match="OSError"),
    ):
        made.release_without_engine(installation / "site.yaml", new_draw=True)
    assert states(site) == ["published", "approved"]
    release_id = site.ledger.entries()[1].release_id
    site.revoke(release_id, key=officer, reason="wrong table")
    assert states(site) == ["published", "revoked"]
    assert error_of(bundle_of(site, release_id), capsys) == "RELEASE_REVOKED"


def test_tampered_list_fails_every_bundle_and_is_not_written_over(site, entry, officer, capsys):
    resampled = [site.publisher.resample(entry.release_id, rows=rows) for rows in (50, 60)]
    for done in resampled:
        site.revoke(done.release_id, key=officer, reason="too few rows")
    path, bundle = site.settings.releases / REVOKED_FILE, bundle_of(site, entry.release_id)
    document = json.loads(path.read_bytes())
    del document["revocations"][0]
    path.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")))
    for checked in (bundle, resampled[0].bundle):
        assert error_of(checked, capsys) == "SIGNATURE_WRONG"
    with pytest.raises(IntegrityError, match="SIGNATURE_WRONG"):
        site.revoke(entry.release_id, key=officer, reason="wrong table")
    assert states(site) == ["published"]


def test_old_list_is_signed_too_and_knows_less(installation, site, entry, officer, capsys):
    done = site.publisher.resample(entry.release_id, rows=50)
    path = site.settings.releases / REVOKED_FILE
    site.revoke(done.release_id, key=officer, reason="too few rows")
    old = installation / "old.json"
    shutil.copy(path, old)
    site.revoke(entry.release_id, key=officer, reason="wrong table")
    bundle = bundle_of(site, entry.release_id)
    # Nothing in an old list says that it is old: a reader needs a fresh one.
    code, answer = verified(bundle, capsys, "--revoked", old)
    assert (code, answer["revocations_checked"]) == (0, True)
    assert verified(bundle, capsys, "--revoked", path)[0] == 1
    # An old list that was put back is made whole by asking again.
    shutil.copy(old, path)
    site.revoke(entry.release_id, key=officer, reason="wrong table")
    assert verified(bundle, capsys)[0] == 1


def test_new_key_answers_from_bundles_of_the_old_one(installation, site, entry, officer, capsys):
    keys = site.settings.key_folder
    done = site.publisher.resample(entry.release_id, rows=50)
    site.revoke(done.release_id, key=officer, reason="too few rows")
    (keys / "retired").mkdir(mode=0o700)
    (keys / "pipeline.key").rename(installation / "old.key")
    (keys / "pipeline.pub").rename(keys / "retired" / "2025.pub")
    again = made.release_without_engine(installation / "site.yaml")
    assert (again.release_id, again.reused) == (entry.release_id, True)
    old, new = SigningKey.read(installation / "old.key"), site.keys.pipeline()
    assert new.key_id != old.key_id
    assert verified(again.bundle, capsys)[1]["signed_by"] == old.key_id
    fresh = made.release_without_engine(installation / "site.yaml", new_draw=True)
    assert verified(fresh.bundle, capsys)[1]["signed_by"] == new.key_id
    site.revoke(entry.release_id, key=officer, reason="wrong table")
    whole = read_revocations(site.settings.releases / REVOKED_FILE, trusted=[new.public])
    assert len(whole.revocations) == 2


def test_command_line(site, entry, officer, capsys):
    bundle = bundle_of(site, entry.release_id)
    assert main(["verify", str(bundle)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Revoked: not checked, no list of revocations is here (--revoked names one)" in shown
    arguments = ["revoke", entry.release_id, "--reason", "wrong table", "--key"]
    done = site.publisher.resample(entry.release_id, rows=50)
    assert main(["revoke", done.release_id, "--reason", "why", "--key", "people/ada.key"]) == 0
    path = site.settings.releases / REVOKED_FILE
    said = capsys.readouterr().out
    assert all(word in said for word in (f"revoked made-up/{done.release_id}\n", done.bundle))
    assert main(["verify", str(bundle)]) == 0
    today = listed(site)[0].revoked_on
    assert f"last entry is of {today}" in " ".join(capsys.readouterr().out.split())
    assert main([*arguments, "people/ada.key", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {
        "listed": [f"made-up/{entry.release_id}"],
        "listed_before": [f"made-up/{done.release_id}"],
        "ledger_entry": entry.entry_id,
        "ledger_state": "revoked",
        "list_file": str(path),
        "bundles": [str(bundle), done.bundle],
    }
    assert main([*arguments, "people/ada.key"]) == 0
    assert f"was revoked before: made-up/{entry.release_id}" in capsys.readouterr().out
    assert main(["verify", str(bundle), "--revoked", "none.json"]) == 1
    assert "FILE_MISSING: file none.json" in capsys.readouterr().err
    key = str(site.settings.key_folder / "pipeline.pub")
    assert main(["verify", str(bundle), "--key", key, "--revoked", str(path)]) == 1
    assert "RELEASE_REVOKED" in capsys.readouterr().err
