"""Jobs and table of the benchmark of all methods; nothing is measured here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import method_costs
from benchmarks.results import CLAIMED, NO_GUARANTEE, PROVEN, ResultRow
from benchmarks.tables import SITES
from flows.site import load_site


def row_of(**changes: object) -> ResultRow:
    facts: dict[str, object] = {
        "dataset": "adult", "method": "naive_bayes", "analysis": "proven", "guarantee": PROVEN,
        "epsilon": 1.0, "delta": 1e-5, "auc": 0.9, "accuracy": 0.84, "wall_seconds": 3.0,
        "cpu_seconds": 2.5, "method_seconds": 2.9, "peak_rss_mib": 900.0,
    }  # fmt: skip
    return ResultRow(**{**facts, **changes})


def test_every_form_of_every_method_is_run_once() -> None:
    jobs = method_costs.jobs_of(["adult"], None, [])
    assert jobs[0] == ("adult", "real", "none")
    assert ("adult", "naive_bayes", "proven") in jobs
    assert ("adult", "naive_bayes", "published") not in jobs
    assert {("adult", "clustmix", "proven"), ("adult", "clustmix", "published")} <= set(jobs)
    left = method_costs.jobs_of(["adult"], None, [row_of()])
    assert left == [job for job in jobs if job[1] != "naive_bayes"]


def test_a_method_that_is_named_is_run_again() -> None:
    jobs = method_costs.jobs_of(["adult", "mnist"], ["naive_bayes"], [row_of()])
    assert jobs == [("adult", "naive_bayes", "proven"), ("mnist", "naive_bayes", "proven")]
    assert method_costs.jobs_of(["adult"], ["dpgm"], [], analysis="published") == [
        ("adult", "dpgm", "published")
    ]


def test_table_has_the_forms_of_a_method_one_below_the_other() -> None:
    published = row_of(method="clustmix", analysis="published", guarantee=CLAIMED)
    proven = row_of(method="clustmix")
    real = row_of(method="real", analysis="none", guarantee=NO_GUARANTEE, epsilon=None, auc=None)
    lines = method_costs.cost_table([row_of(), published, proven, real]).splitlines()
    assert [line.split()[1] for line in lines[2:]] == [
        "real",
        "clustmix",
        "clustmix",
        "naive_bayes",
    ]
    assert lines[2].split()[2:5] == ["none", "-", "-"]
    assert "claimed, not proven" not in lines[3]
    assert "claimed, not proven" in lines[4]


def test_settings_are_those_of_the_site_file_or_the_defaults() -> None:
    site = load_site(SITES / "adult.yaml")
    assert method_costs.config_of(site, site.method.kind) is site.method
    assert method_costs.config_of(site, "naive_bayes").model_dump() == {"kind": "naive_bayes"}


def test_a_method_that_fails_leaves_one_line() -> None:
    found = method_costs.run_apart(("adult", "no-such-method", "proven"))
    assert isinstance(found, str)
    assert "expected a registered method" in found


def test_a_job_that_takes_too_long_is_given_up() -> None:
    found = method_costs.run_apart(("adult", "naive_bayes", "proven"), limit_seconds=0.01)
    assert found == "given up after 0.01 s"
