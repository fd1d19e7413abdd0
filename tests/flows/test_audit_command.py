import json

import pytest

from benchmarks.audit import read_audits
from flows.cli import main
from flows.cli.audit import write_audit
from privacy.errors import ConfigurationError
from privacy.parameters import Adjacency
from tasks.audit.findings import AuditResult, ClaimedGuarantee, PairFinding
from tasks.reporting.audit_plot import draw_audits


def made_up(mu, method="made_up"):
    finding = PairFinding(
        pair="outlier", attack="all draws", runs=100, epsilon=0.2, mu=mu, mu_attack="draw counts"
    )
    return AuditResult(
        method=method,
        claim=ClaimedGuarantee.of_budget(epsilon=1.0, delta=1e-6),
        adjacency=Adjacency.ADD_REMOVE,
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


def test_exit_code_and_words_of_a_flaw(monkeypatch, capsys):
    monkeypatch.setattr("tasks.audit.subjects.audit", lambda *arguments, **options: made_up(0.5))
    assert main(["audit", "noise"]) == 1
    assert "ABOVE THE CLAIM" in capsys.readouterr().out


def test_unknown_methods_are_refused(capsys):
    assert main(["audit", "dp_magic"]) == 2
    assert "METHOD_UNKNOWN: expected a method to audit among" in capsys.readouterr().err


def test_a_folder_without_audits_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="NO_AUDITS: expected results of audits in"):
        read_audits(tmp_path)


def test_draws_methods_and_planted_flaws(tmp_path):
    audits = [made_up(0.1).to_dict(), {**made_up(0.6).to_dict(), "planted": True}]
    for suffix in ("svg", "png"):
        draw_audits(audits, tmp_path / f"audit.{suffix}")
        assert (tmp_path / f"audit.{suffix}").stat().st_size > 5_000
    text = (tmp_path / "audit.svg").read_text(encoding="utf-8")
    assert "proven methods" in text
    assert "planted flaws" in text


def test_a_second_audit_of_the_same_claim_replaces_the_first(tmp_path):
    for mu in (0.1, 0.2):
        files = write_audit(made_up(mu, method="Published: record/count"), tmp_path)
    names = [f"published-record-count-epsilon-1.{suffix}" for suffix in ("json", "svg")]
    assert [path.name for path in files] == names
    assert [written["audited_mu"] for written in read_audits(tmp_path)] == [0.2]
