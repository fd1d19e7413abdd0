import json

import pytest

from audits.__main__ import main as draw_folder
from audits.__main__ import read_audits
from audits.command import write
from audits.findings import AuditResult, Claim, PairFinding
from flows.cli import main
from privacy.errors import ConfigurationError


def made_up(mu, method="made_up"):
    finding = PairFinding(
        pair="outlier", attack="all draws", runs=100, epsilon=0.2, mu=mu, mu_attack="draw counts"
    )
    return AuditResult(
        method=method,
        claim=Claim.of_budget(epsilon=1.0, delta=1e-6),
        confidence=0.999,
        runs=200,
        pairs=(finding,),
    )


def test_audits_the_noise_path_and_writes_numbers_and_a_drawing(tmp_path, capsys):
    folder = tmp_path / "new" / "audits"
    options = ("noise", "--runs", "20", "--epsilon", "2", "--output", str(folder))
    assert main(["audit", *options]) == 0
    shown = capsys.readouterr().out
    assert "Claimed:    epsilon 2 at delta 1e-06, mu 0.4483" in shown
    assert "within the claim" in shown
    assert "never prove the" in shown
    assert main(["audit", "noise", "--runs", "20", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["method"], answer["claimed_epsilon"]) == ("noise", 1.0)
    assert (answer["verdict"], answer["files"]) == ("within the claim", [])
    (written,) = read_audits(folder)
    assert written["runs"] == 2 * 20 * 6
    assert written["note"] == "a lower bound: it can show a flaw, never prove the absence of one"
    assert (folder / "noise-epsilon-2.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_exit_codes_of_a_flaw_and_without_the_repository(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("audits.command.audit", lambda *arguments, **options: made_up(0.5))
    assert main(["audit", "noise"]) == 1
    assert "ABOVE THE CLAIM" in capsys.readouterr().out
    monkeypatch.setattr("flows.cli.audit.ROOT", tmp_path)
    assert main(["audit", "noise"]) == 2
    assert "AUDIT_NOT_HERE: expected the audit room" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dp_magic"], "METHOD_UNKNOWN: expected a method to audit among"),
        (["noise", "--runs", "19"], "AUDIT_RUNS_INVALID: expected 20 or more runs"),
        ([], "AUDIT_SUBJECT_INVALID: expected either a METHOD"),
        (["noise", "--whole-release", "site.yaml"], "AUDIT_SUBJECT_INVALID"),
    ],
)
def test_unusable_requests_are_refused(arguments, message, capsys):
    assert main(["audit", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_of_audits_is_drawn_and_judged(tmp_path, capsys):
    with pytest.raises(ConfigurationError, match="NO_AUDITS: expected results of audits in"):
        read_audits(tmp_path)
    for mu in (0.6, 0.1):  # the second one replaces the first
        files = write(made_up(mu, method="Published: record/count"), tmp_path)
    names = [f"published-record-count-epsilon-1.{suffix}" for suffix in ("json", "svg")]
    assert [path.name for path in files] == names
    assert [written["audited_mu"] for written in read_audits(tmp_path)] == [0.1]
    planted = tmp_path / "planted.json"
    for mu, code in ((0.6, 0), (0.1, 1)):
        written = {**made_up(mu).to_dict(), "planted": True}
        planted.write_text(json.dumps(written), encoding="utf-8")
        assert draw_folder([str(tmp_path)]) == code
    assert "within the claim" in capsys.readouterr().out
    assert "planted flaw: made up" in (tmp_path / "audit.svg").read_text(encoding="utf-8")
    assert (tmp_path / "audit.png").stat().st_size > 5_000
