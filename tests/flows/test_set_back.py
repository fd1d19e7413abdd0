import shutil
from contextlib import closing
from decimal import Decimal
from sqlite3 import connect
from unittest import mock

import made_up_release as made
import pytest

from flows.cli import main
from privacy.errors import BudgetRefused, IntegrityError
from storage.ledger.ledger_db import LedgerDatabase
from tasks.steps.entries import Entries

KEPT = ("home/ledger.sqlite", "home-head/ledger-head")


class Backup:
    def __init__(self, folder):
        self.folder, self.copy = folder, folder / "backup"
        self.copy.mkdir()
        with closing(connect(folder / KEPT[0])) as ledger:
            ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for name in KEPT:
            shutil.copy2(folder / name, self.copy)

    def put_back(self):
        for name in KEPT:
            place = self.folder / name
            for left in place.parent.glob(f"{place.name}*"):
                left.unlink()
            shutil.copy2(self.copy / place.name, place)


def release(folder, **request):
    return made.release_without_engine(folder / "site.yaml", new_draw=True, **request)


def run(capsys, *words):
    code = main([*map(str, words)])
    return code, "".join(capsys.readouterr())


def signed(person):
    names = [person(name, is_officer=True) and f"people/{name}.key" for name in ("ada", "ben")]
    return [part for name in names for part in ("--key", name)]


@pytest.mark.parametrize("lost", ["nothing", "the seal", "the bundle"])
def test_what_was_forgotten_stops_every_charge_until_it_is_charged(
    after_a_release, site, person, capsys, monkeypatch, lost
):
    monkeypatch.chdir(after_a_release)
    made.write_site(after_a_release, lifetime_epsilon=1.5)
    backup = Backup(after_a_release)
    second = release(after_a_release).release_id
    spent = site.ledger.balance("made-up").spent_rho
    if lost == "the seal":
        shutil.rmtree(after_a_release / "home" / "measurements" / second)
    elif lost == "the bundle":
        shutil.rmtree(after_a_release / "releases" / "made-up" / second)
    backup.put_back()
    with pytest.raises(IntegrityError, match=f"LEDGER_INCOMPLETE: .* for {second}: the ledger was"):
        release(after_a_release)
    code, output = run(capsys, "doctor")
    assert code == 1
    assert "FAIL  charges" in output
    assert second in output
    code, output = run(capsys, "ledger", "restore")
    assert code == 0
    assert f"  {second}  made-up  0." in output
    assert len(site.ledger.entries()) == 1

    keys = signed(person)
    assert run(capsys, "ledger", "restore", *keys[:2])[0] == 1
    assert len(site.ledger.entries()) == 1
    # An attempt that died after it had signed.
    with mock.patch.object(LedgerDatabase, "adjust", side_effect=OSError(28, "full")):
        assert run(capsys, "ledger", "restore", *keys)[0] == 1
    assert run(capsys, "ledger", "restore", *keys)[0] == 0
    assert abs(site.ledger.balance("made-up").spent_rho - spent) < Decimal("1e-9")
    with pytest.raises(BudgetRefused):
        release(after_a_release)
    assert run(capsys, "ledger", "restore")[1].endswith("none\n")
    assert run(capsys, "doctor")[0] == 0


def test_a_ledger_that_is_gone_with_its_head_is_noticed(after_a_release, released):
    for name in KEPT:
        for left in (after_a_release / name).parent.glob(f"{(after_a_release / name).name}*"):
            left.unlink()
    with pytest.raises(IntegrityError, match=f"LEDGER_INCOMPLETE: .* for {released.release_id}:"):
        release(after_a_release)


def test_a_head_that_is_gone_is_said_until_officers_begin_another(
    after_a_release, site, person, capsys, monkeypatch
):
    monkeypatch.chdir(after_a_release)
    (after_a_release / KEPT[1]).unlink()
    with pytest.raises(IntegrityError, match="LEDGER_HEAD_GONE"):
        release(after_a_release)
    # Nor does a step of a charge that stands put another in its place.
    [entry] = site.entries.all()
    key = person("carl", is_officer=True)
    site.revoke(entry.release_id, key=key, reason="wrong table")
    assert "FAIL  ledger" in run(capsys, "doctor")[1]
    assert "the exported head: gone" in run(capsys, "ledger", "restore")[1]
    assert run(capsys, "ledger", "restore", *signed(person))[0] == 0
    assert release(after_a_release).state == "published"


def test_a_run_that_the_ledger_saw_begin_is_charged_although_it_was_reserved(
    installation, site, monkeypatch
):
    begin, backups = Entries.begin, []

    def backed_up(entries, *about):
        backups.append(Backup(installation))
        begin(entries, *about)

    monkeypatch.setattr(Entries, "begin", backed_up)
    site_file = made.write_site(installation)
    first = made.release_without_engine(site_file)
    backups[0].put_back()
    assert [entry.state.value for entry in site.ledger.entries()] == ["reserved"]
    shutil.rmtree(installation / "releases" / "made-up")
    again = made.release_without_engine(site_file)
    assert (again.reused, again.release_id) == (True, first.release_id)
    assert [entry.state.value for entry in site.ledger.entries()] == ["published"]


def test_what_only_the_bundle_is_left_of_is_charged_to_its_cohort(
    installation, capsys, monkeypatch
):
    monkeypatch.chdir(installation)
    budget = {"cohort": "heart"}
    released = made.release_without_engine(made.write_site(installation, budget=budget)).release_id
    shutil.rmtree(installation / "home")
    shutil.rmtree(installation / "home-head")
    with pytest.raises(IntegrityError, match="LEDGER_INCOMPLETE"):
        release(installation)
    assert f"  {released}  heart " in run(capsys, "ledger", "restore")[1]
