"""Figures that the papers print, and the jobs that measure them here."""

import json
import tomllib

import pytest

from benchmarks.jobs import asked, listed
from benchmarks.suites import papers
from benchmarks.tables import ROOT

KEYS = {"paper", "where", "dataset", "method", "metric", "value", "protocol"}
MORE = {"epsilon", "deviation", "settings"}


def test_every_printed_figure_has_its_place_and_protocol_and_stands_once():
    printed = tomllib.loads((ROOT / "benchmarks" / "papers.toml").read_text("utf-8"))
    known = set()
    for figure in printed["figure"]:
        assert figure.keys() >= KEYS
        assert figure.keys() <= KEYS | MORE
        assert figure["protocol"] in printed["protocol"]
        place = {
            name: value for name, value in figure.items() if name not in ("value", "deviation")
        }
        known.add(json.dumps(place, sort_keys=True))
    assert len(known) == len(printed["figure"])


def test_words_of_jobs_are_understood():
    for command in (job.command for job in listed("papers")):
        asked(papers.function_of(command[1]), command[2:])


def test_equation_8_asks_for_the_noise_that_forbids_the_printed_figure(capsys):
    papers.main(["noise", "--dataset", "mnist", "--size", "118"])
    row = json.loads(capsys.readouterr().out)
    assert row["figures"]["epsilon_1"] == pytest.approx(2.80, abs=0.005)
    papers.main(["noise", "--dataset", "mnist", "--size", "20"])
    row = json.loads(capsys.readouterr().out)
    assert row["figures"]["epsilon_0.2"] == pytest.approx(72.2, abs=0.05)
