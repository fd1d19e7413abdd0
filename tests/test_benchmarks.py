"""The rows, tables and samplers of the benchmarks, on generated data only."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import cost, counting_queries, method_costs, million_rows, utility
from benchmarks.process_memory import run_measured
from benchmarks.results import (
    CLAIMED,
    NO_GUARANTEE,
    PROVEN,
    ResultRow,
    figure,
    read_rows,
    table,
    write_rows,
)
from flows.site import load_site
from storage.cohorts import CohortReader
from tasks.encoding import encode_chunk

ASKED_KEYS = {
    "dataset", "method", "analysis", "epsilon", "delta", "seed", "auc", "accuracy",
    "wall_seconds", "stage_seconds", "peak_rss_mib", "tvd_1way", "tvd_2way",
}  # fmt: skip


def row_of(**changes: object) -> ResultRow:
    facts: dict[str, object] = {
        "dataset": "adult", "method": "clustmix", "analysis": "proven", "guarantee": PROVEN,
        "epsilon": 1.0, "delta": 1e-5, "seed": 0, "auc": 0.9, "accuracy": 0.84, "tvd_1way": 0.02,
        "tvd_2way": 0.07, "wall_seconds": 30.0, "cpu_seconds": 40.0, "method_seconds": 4.0,
        "stage_seconds": {"kip": 2.5}, "peak_rss_mib": 900.0,
    }  # fmt: skip
    return ResultRow(**{**facts, **changes})


def test_rows_are_a_json_list_with_the_asked_keys_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "results" / "utility.json"
    rows = [row_of(), row_of(method="real", analysis="none", guarantee=NO_GUARANTEE, epsilon=None)]
    write_rows(path, rows)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(written, list)
    for row in written:
        assert row.keys() >= ASKED_KEYS
    assert written[0]["stage_seconds"] == {"kip": 2.5}
    assert read_rows(path) == rows
    assert read_rows(tmp_path / "absent.json") == []


OTHER_ROWS = {"clustering.json", "counting_queries.json", "dp_cda_images.json"}
"""Results with rows of their own form."""

ROWS_OF_RUNS = sorted(
    path for path in Path(utility.RESULT_FILE).parent.glob("*.json") if path.name not in OTHER_ROWS
)


@pytest.mark.parametrize("path", ROWS_OF_RUNS, ids=lambda path: path.name)
def test_shipped_results_have_the_row_schema(path: Path) -> None:
    rows = read_rows(path)
    assert rows
    assert all(row.wall_seconds >= 0 and row.peak_rss_mib > 0 for row in rows)


def test_proven_forms_have_the_better_utility_in_the_shipped_results() -> None:
    # An AUC of up to 0.6 is that of noise: two forms that learn nothing are not compared.
    rows = [row for row in read_rows(method_costs.RESULT_FILE) if row.dataset == "adult"]
    auc = {(row.method, row.analysis): row.auc for row in rows if row.auc is not None}
    compared = {
        method: (auc[method, "proven"], found)
        for (method, analysis), found in auc.items()
        if analysis == "published" and found > 0.6
    }
    assert compared.keys() >= {"dp_cda", "dp_merf"}
    assert all(proven >= published for proven, published in compared.values()), compared


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"guarantee": "sound"}, "expected a known guarantee"),
        ({"analysis": "published"}, "expected the word proven for the proven analysis"),
        ({"guarantee": CLAIMED}, "expected the word proven for the proven analysis"),
        ({"epsilon": None}, "expected an epsilon for every method but the real rows"),
    ],
)
def test_row_refuses_a_guarantee_that_it_does_not_have(changes: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        row_of(**changes)


def test_requirement_is_the_mean_over_the_splits() -> None:
    rows = [row_of(seed=seed, auc=auc) for seed, auc in enumerate((0.898, 0.901, 0.904))]
    rows += [row_of(method="naive_bayes", auc=0.95)]
    (met,) = utility.requirements(rows)
    assert (met.asked, met.met) == (">= 0.900", True)
    assert met.measured == "0.9010 (beside naive Bayes 0.9500)"
    (missed,) = utility.requirements([dataclasses.replace(row, auc=0.89) for row in rows])
    assert not missed.met


def test_counting_queries_at_some_epsilons_are_shown_and_not_met() -> None:
    def row(method: str, epsilon: float, error: float) -> counting_queries.QueryRow:
        return counting_queries.QueryRow(
            dataset="mnist-binarised", method=method, guarantee=PROVEN, epsilon=epsilon,
            delta=1e-6, design="short", max_length=5, errors=[[error] * 5], seconds=1.0,
        )  # fmt: skip

    rival = [row("mwem", epsilon, 0.3) for epsilon in (0.1, 0.2, 1.0)]
    own = [row("dpgm_vae", 0.2, 0.4), row("dpgm_vae", 1.0, 0.1)]
    falling, below = counting_queries.requirements([*rival, *own])
    assert (falling.measured, falling.met) == ("0.4000 to 0.1000", False)
    assert (below.asked, below.measured) == ("at 5 epsilons", "at 1 of 2 that were run")
    assert not below.met
    assert counting_queries.requirements([*rival, own[0]]) == []
    whole = [
        row(method, epsilon, error / epsilon)
        for method, error in (("mwem", 0.3), ("dpgm_vae", 0.2))
        for epsilon in counting_queries.EPSILONS
    ]
    assert [found.met for found in counting_queries.requirements(whole)] == [True, True]


def test_published_analysis_is_never_taken_for_the_proven_one() -> None:
    published = row_of(analysis="published", guarantee=CLAIMED, auc=0.99)
    assert utility.requirements([published]) == []
    assert "claimed, not proven" in utility.utility_table([published])


def test_cost_requirements_take_the_largest_memory() -> None:
    rows = [row_of(peak_rss_mib=900.0), row_of(peak_rss_mib=2100.0, wall_seconds=50.0)]
    assert [found.met for found in cost.requirements(rows)] == [True, True, False]


def test_memory_requirement_is_largest_over_smallest_table() -> None:
    small, large = row_of(rows=100_000), row_of(rows=1_000_000, peak_rss_mib=1100.0)
    (grown,) = million_rows.requirements([small, large])
    assert (grown.measured, grown.met) == ("1.22 (1100 MiB)", False)
    (flat,) = million_rows.requirements([small, dataclasses.replace(large, peak_rss_mib=950.0)])
    assert flat.met


def test_figure_and_table_text() -> None:
    assert figure([0.9, 0.92], 2) == "0.91 ±0.01"
    assert figure([None]) == "-"
    assert table(("a", "b"), [("x", "10")]) == "a   b\n-  --\nx  10"


@pytest.mark.parametrize("kind", million_rows.FORMATS)
def test_generated_table_is_what_its_site_file_declares(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(million_rows, "CHUNK_ROWS", 300)
    source, site_path = tmp_path / f"table.{kind}", tmp_path / "generated.yaml"
    million_rows.write_table(source, 700, kind)
    site_path.write_text(yaml.safe_dump(million_rows.site(source, kind)), encoding="utf-8")
    site = load_site(site_path)
    reader = CohortReader(site.source)
    site.check_header(reader.header())
    assert len(site.columns_to_read) == 30
    (frame,) = reader.chunks(site.columns_to_read)
    chunk = encode_chunk(frame, site.table_schema)
    assert (len(chunk), chunk.violations) == (700, ())
    assert set(np.unique(chunk.label)) == {0, 1}


def test_memory_of_a_command_covers_its_children() -> None:
    child = "import time; block = b'x' * (80 * 2**20); time.sleep(1)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    measured = run_measured([sys.executable, "-c", parent], {})
    assert measured.exit_code == 0
    assert measured.peak_rss_mib > 80
    assert measured.peak_processes == 2


def test_command_gets_the_environment_and_its_exit_code_is_kept() -> None:
    code = "import os, sys; print(os.environ['CLUSTMIX_HOME']); sys.exit(3)"
    measured = run_measured([sys.executable, "-c", code], {"CLUSTMIX_HOME": "home"})
    assert (measured.exit_code, measured.stdout) == (3, "home\n")
    assert os.environ.get("CLUSTMIX_HOME") != "home"
