import json
from decimal import Decimal
from unittest import mock

import made_up_release as made
import pytest

from flows.cli import main
from flows.site.request import job_of
from flows.site.site_file import load_site
from privacy.errors import BudgetRefused
from storage.ledger.adjustments import Adjustment
from storage.ledger.ledger_db import LedgerDatabase


@pytest.fixture
def installation(after_a_release, monkeypatch):
    monkeypatch.chdir(after_a_release)
    return after_a_release


@pytest.fixture
def officers(person):
    return {name: person(name, is_officer=True) for name in ("first", "second")}


def signed_by(*names):
    return [part for name in names for part in ("--key", f"people/{name}.key")]


def test_every_row_is_exported(installation, site, capsys):
    file = installation / "rows.jsonl"
    assert main(["ledger", "export", str(file)]) == 0
    assert capsys.readouterr().out == f"wrote 5 rows to {file}\n"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    history = site.ledger.history()
    assert [row["hash"] for row in rows] == [row.hash for row in history]
    assert [row["state"] for row in rows] == [
        "reserved", "executing", "sealed", "approved", "published",
    ]  # fmt: skip
    assert main(["ledger", "export", str(file)]) == 2
    assert f"FILE_EXISTS: expected no file at {file}" in capsys.readouterr().err


def test_two_officers_add_a_charge(installation, site, officers, capsys):
    before = site.ledger.balance("made-up").spent_rho
    arguments = ["made-up", "--rho", "0.25", "--reason", "a table left on paper"]
    assert main(["ledger", "adjust", *arguments, *signed_by(*officers)]) == 0
    charged, signed = capsys.readouterr().out.splitlines()
    assert charged.startswith("charged rho 0.250000000000 to made-up: entry e-")
    ledger = site.ledger
    [file] = (installation / "home" / "adjustments").iterdir()
    assert signed == f"what was signed: {file}"
    assert file.stat().st_mode & 0o777 == 0o600
    adjustment = Adjustment.from_bytes(file.read_bytes())
    adjustment.verify(ledger.entries()[-1], officers=[key.public for key in officers.values()])
    assert ledger.balance("made-up").spent_rho == before + Decimal("0.25")
    entry = ledger.entries()[-1]
    assert entry.signers == tuple(key.key_id for key in officers.values())
    ledger.verify()
    assert main(["ledger", "show", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["entries"][-1]
    assert (row["state"], row["epsilon"], row["rho"]) == ("adjusted", None, "0.250000000000")


@pytest.mark.parametrize(
    ("names", "line"),
    [(["first", "first"], "TWO_PEOPLE"), (["first", "stranger"], "NOT_AN_OFFICER")],
)
def test_one_person_cannot_adjust(installation, site, officers, person, capsys, names, line):
    person("stranger")
    rows = site.ledger.history()
    adjust = ["ledger", "adjust", "made-up", "--rho", "0.1", "--reason", "why"]
    assert main([*adjust, *signed_by(*names)]) != 0
    assert line in capsys.readouterr().err
    assert site.ledger.history() == rows
    assert not (installation / "home" / "adjustments").exists()


def test_crash_after_the_signatures_charges_nothing(installation, site, officers, capsys):
    adjust = ["ledger", "adjust", "made-up", "--rho", "0.1", "--reason", "why"]
    arguments = [*adjust, *signed_by(*officers)]
    rows = site.ledger.history()
    with mock.patch.object(LedgerDatabase, "adjust", side_effect=OSError(28, "full")):
        assert main(arguments) == 1
    assert site.ledger.history() == rows
    assert main(arguments) == 0
    files = {path.stem for path in (installation / "home" / "adjustments").iterdir()}
    assert len(files) == 2
    ids = [entry.entry_id for entry in site.ledger.entries()]
    assert files & set(ids) == {ids[-1]}


@pytest.mark.parametrize("rho", ["-0.1", "NaN", "much", "0.0000000000001"])
def test_amounts_that_are_none(installation, site, officers, capsys, rho):
    rows = site.ledger.history()
    adjust = ["ledger", "adjust", "made-up", f"--rho={rho}", "--reason", "why"]
    assert main([*adjust, *signed_by(*officers)]) == 2
    assert "RHO_INVALID" in capsys.readouterr().err
    assert site.ledger.history() == rows
    assert not (installation / "home" / "adjustments").exists()


def test_the_budget_is_shown_in_words(installation, site, capsys):
    site_file = made.write_site(installation, lifetime_epsilon=1.5)
    assert main(["check", str(site_file)]) == 0
    made.release_without_engine(site_file, new_draw=True)
    given = job_of(load_site(site_file), "r-20260101-00000000").caps
    assert made.write_site(installation, lifetime_epsilon=9.0) == site_file
    raised = job_of(load_site(site_file), "r-20260101-00000000").caps
    kept = [site.entries.keeps_smaller_cap("made-up", caps) for caps in (given, raised)]
    assert kept == [False, True]
    with pytest.raises(BudgetRefused, match="the larger cap of the site file is not kept, as caps"):
        made.release_without_engine(site_file, new_draw=True)
    capsys.readouterr()
    assert main(["ledger", "show"]) == 0
    output = capsys.readouterr().out
    left = site.ledger.balance("made-up")
    percent = 100 * left.remaining_rho // left.cap_rho
    assert f" {percent} % left\n  0 more releases at epsilon 1, or one at 0." in output
    assert "rho" not in output
    assert "void" not in output
    assert output.endswith("  1 that cost nothing (--verbose lists them)\n")
    assert main(["ledger", "show", "--verbose"]) == 0
    output = capsys.readouterr().out
    assert f"  rho {left.spent_rho:f} spent, lifetime cap {left.cap_rho:f}\n" in output
    assert output.count("  void  ") == 1
