import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from benchmarks import releases, report, runner, tables
from benchmarks.jobs import asked, listed
from benchmarks.report_sections import verdicts
from benchmarks.results import BUNDLE, IN_PROCESS, RESULTS, ResultRow, read_rows
from benchmarks.rivals.registry import RIVALS
from benchmarks.score import score
from benchmarks.stored_rows import Stored
from benchmarks.suites import sizes
from privacy.errors import InputError
from storage.settings import Settings
from storage.sources.cohorts import CohortReader
from tasks.ingest.encoding import encode_chunk
from tasks.methods.registry import METHODS
from tasks.steps.source import check_source
from tests.processes import ROOT, python


def row_of(**changes):
    facts = {
        "dataset": "adult", "method": "clustmix", "analysis": "proven", "source": BUNDLE,
        "epsilon": 1.0, "delta": 1e-5, "seed": 0, "rows": 24_000, "auc": 0.9, "accuracy": 0.84,
        "wall_seconds": 30.0, "method_seconds": 4.0, "stage_seconds": {"kip": 2.5},
        "peak_rss_mib": 900.0,
    }  # fmt: skip
    return ResultRow(**{**facts, **changes})


REAL = {"method": "real", "analysis": "none", "source": IN_PROCESS, "epsilon": None, "delta": None}


def test_stored_rows_have_the_one_form_and_a_command_each():
    rows = [row for path in RESULTS.glob("*.json") for row in read_rows(path)]
    assert rows
    assert len({row.command for row in rows}) == len(rows)
    for row in rows:
        assert row.suite in runner.SUITES
        assert row.command.startswith("python -m benchmarks.")
        assert (tables.ROOT / f"{row.command.split()[2].replace('.', '/')}.py").is_file()
        shares = (row.auc, row.accuracy, row.tvd_1way, row.tvd_2way, row.cnn_accuracy)
        assert all(share is None or 0 <= share <= 1 for share in shares)


RELEASED = ("quick", "tables", "rivals")


def test_a_job_is_what_its_command_says():
    jobs = [job for suite in runner.SUITES for job in listed(suite)]
    assert len({job.words for job in jobs}) == len(jobs)
    assert {job.suite for job in jobs} == {*runner.SUITES}
    words = " ".join(job.words for job in jobs if job.suite == "tables")
    forms = [f"{kind} --form {form}" for kind, one in RIVALS.items() for form in one.forms]
    assert all(f"--method {name} " in words for name in [*forms, *(one.kind for one in METHODS)])
    for job in jobs:
        assert job.command[0] == f"benchmarks.suites.{job.suite}"
        assert job.suite not in RELEASED or asked(releases.Run, job.command[1:])


KILLED = """
import sys
from pathlib import Path
from benchmarks import runner
from benchmarks.jobs import Job
if __name__ == "__main__":
    named = [Job(suite="tiny", command=("one_row", "--draw", str(n)), limit_seconds=2)
             for n in range(20)]
    folder = Path(sys.argv[1])
    runner.run(runner.missing(named, folder), folder, workers=2)
"""


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_run_killed_twice_and_resumed_has_every_row_once(tmp_path):
    script, rows = tmp_path / "run.py", tmp_path / "rows"
    script.write_text(KILLED)
    places = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])
    start = partial(
        subprocess.Popen,
        [sys.executable, str(script), str(rows)],
        env={**os.environ, "PYTHONPATH": places},
        stderr=subprocess.DEVNULL,
    )
    for kept in (4, 9):
        process = start()
        while len(read_rows(rows / "tiny.json")) < kept:
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
        process.wait()
        assert len(read_rows(rows / "tiny.json")) < 19
    assert start().wait() == 0
    found = {row.seed: row for row in read_rows(rows / "tiny.json")}
    assert sorted(found) == [n for n in range(20) if n != 3]  # lacks an environment: no row
    assert len(read_rows(rows / "tiny.json")) == 19
    outcomes = {seed: row.outcome for seed, row in found.items() if row.outcome}
    assert outcomes == {1: "did not end", 2: "failed"}
    assert all(row.auc == seed / 100 for seed, row in found.items() if not row.outcome)


OWN_SITES = sorted(
    path.stem
    for folder in tables.SITES
    for path in folder.glob("*.yaml")
    if "like:" not in path.read_text(encoding="utf-8") and not path.stem.startswith("audit")
)


@pytest.mark.integration
@pytest.mark.parametrize("name", OWN_SITES)
def test_public_table_is_what_its_site_file_declares(name, tmp_path):
    site = tables.write_site(tables.site_document(name), tmp_path / "site.yaml")
    try:
        reader = CohortReader(site.source, places=Settings(home=tmp_path, offline=True).data_places)
        check_source(site.columns_to_read, site.table_schema, reader)
    except InputError as absent:
        if absent.code not in ("DATA_UNAVAILABLE", "SOURCE_MISSING"):
            raise
        pytest.skip(f"{name}: {absent.code}")
    levels = set()
    codes = [np.zeros(column.n_codes, bool) for column in site.table_schema.columns]
    for frame in reader.chunks(site.columns_to_read):
        chunk = encode_chunk(frame, site.table_schema)
        assert chunk.violations == ()
        levels |= set(chunk.label[chunk.valid].tolist())
        for place, seen in enumerate(codes):
            seen[np.unique(chunk.codes[:, place])] = True
    assert levels == set(range(len(site.table_schema.label.level_names)))
    # A column whose every row is one code was declared wrongly, but for leads that show no wave,
    # drugs that nobody took and borders of images.
    known = name.startswith(("arrhythmia", "cardiotocography", "diabetes130", "mnist"))
    assert known or all(seen.sum() > 1 for seen in codes)


def test_split_keeps_a_patient_on_one_side_and_the_levels_on_both(tmp_path):
    document = sizes.site(tmp_path / "table.parquet", 30, patients=2_000)
    sizes.write_table(tmp_path / "table.parquet", 4_000)
    changed, test, n_rows = tables.divided(document, 1, tmp_path)
    train, held_out = pd.read_parquet(changed["source"]["path"]), pd.read_parquet(test)
    assert len(train) == n_rows
    assert len(train) + len(held_out) == 4_000
    assert not set(train.patient) & set(held_out.patient)
    assert tables.write_site(changed, tmp_path / "site.yaml").source.path.is_file()


LABEL = {
    "name": "outcome",
    "levels": [{"name": "yes", "values": ["1"]}, {"name": "no", "values": ["0"]}],
}
COLUMNS = [
    {"name": "age", "kind": "integer", "lower": 0, "upper": 99, "bins": 10, "missing": ["-1"]},
    {"name": "group", "kind": "categorical", "levels": ["a", "b", "other"], "other": "other",
     "missing": ["?"], "groups": {"b": ["B"]}, "numeric_ranges": {"a": [[1, 3]]}},
]  # fmt: skip


def made_bundle(folder, frame, label=None):
    folder.mkdir()
    schema = {"columns": COLUMNS, "label": {**LABEL, "positive": "yes", **(label or {})}}
    (folder / "schema.json").write_text(json.dumps(schema))
    frame.to_parquet(folder / "synthetic.parquet", index=False)
    return folder


def made_rows(seed, n=3_000):
    rng = np.random.default_rng(seed)
    sick = rng.random(n) < 0.2
    return pd.DataFrame({
        "age": np.clip(rng.normal(40 + 25 * sick, 10), 0, 99).round().astype(int),
        "group": np.where(rng.random(n) < 0.5, "a", np.where(sick, "b", "other")),
        "outcome": np.where(sick, "yes", "no"),
    })  # fmt: skip


def test_score_of_the_same_rows_is_that_of_the_table(tmp_path):
    real = tmp_path / "real.csv"
    raw = made_rows(1).replace({"outcome": {"yes": "1", "no": "0"}})
    raw.to_csv(real, index=False)
    bundle = made_bundle(tmp_path / "r-1", made_rows(1))
    found = score(bundle, real, trees=20)
    assert found["tvd_1way"] == found["tvd_2way"] == 0.0
    assert found["auc"] > 0.9
    mapping = made_bundle(tmp_path / "r-2", made_rows(1), {"levels": {"yes": ["1"], "no": ["0"]}})
    assert score(mapping, real, trees=20) == found


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (lambda rows: rows.assign(outcome=rows.outcome.map({"yes": "no", "no": "yes"})), "(label)"),
        (lambda rows: rows.assign(age=(rows.age + 10).clip(upper=99)), "age"),
        (lambda rows: rows.assign(group=rows.group.map({"a": "b", "b": "a"})), "group"),
    ],
    ids=["labels-turned-round", "bins-shifted", "levels-permuted"],
)
def test_faults_are_seen_from_outside(tmp_path, change, changed):
    made_rows(2).to_csv(tmp_path / "real.csv", index=False)
    bundle = made_bundle(tmp_path / "r-1", change(made_rows(1)))
    found = score(bundle, tmp_path / "real.csv", trees=20)
    assert next(iter(found["worst_columns"])) == changed
    assert found["worst_columns"][changed] > 0.1
    assert (found["auc"] < 0.5) == (changed == "(label)")


def split_rows(method, aucs, **changes):
    same = {"dataset": "flchain", "accuracy": 0.8, "log_loss": 0.5, "tvd_1way": 0.02}
    same |= {"tvd_2way": 0.1, "calibration_error": 0.04, **changes}
    same |= REAL if method == "real" else {"method": method}
    return [row_of(seed=n, auc=auc, **same) for n, auc in enumerate(aucs)]


def test_methods_are_compared_on_the_splits_of_both_and_errors_decide():
    rows = split_rows("naive_bayes", (0.70, 0.74, 0.72))
    rows += split_rows("clustmix", (0.72, 0.77, 0.74, 0.9), log_loss=0.51, tvd_2way=0.099)
    stored = Stored(tuple(replace(row, suite="tables") for row in rows), (), {})
    [(cells, _)] = verdicts(stored).lines
    assert cells[2:5] == (
        "3", "+0.0233 ± 0.0033 ahead", "+0.0000 ± 0.0000 level"
    )  # fmt: skip
    assert cells[5].endswith("below")


def test_report_is_the_same_twice_and_leaves_out_what_is_empty(tmp_path):
    pages = [report.html_page(Stored.read()) for _ in "12"]
    assert pages[0] == pages[1]
    nothing = report.html_page(Stored.read(tmp_path, tmp_path / "no.toml"))
    assert "<h2" not in nothing.replace('<h2 id="3a">', "")


def test_groups_and_importances_are_scored(tmp_path):
    rows = made_rows(1)
    for name, frame in (("real", made_rows(2)), ("trained", made_rows(3))):
        frame.replace({"outcome": {"yes": "1", "no": "0"}}).to_csv(tmp_path / f"{name}.csv")
    bundle = made_bundle(tmp_path / "r-1", rows)
    found = score(bundle, tmp_path / "real.csv", trees=20, trained=tmp_path / "trained.csv")
    assert [name for name in found["figures"] if name.startswith("auc, ")] == [
        f"auc, age, {n} third" for n in ("lowest", "middle", "highest")
    ]
    assert found["figures"]["importance_agreement"] == 1.0


def test_scorer_imports_nothing_of_the_pipeline():
    code = (
        "import sys, benchmarks.score; "
        "sys.exit(str([name for name in sys.modules "
        "if name.split('.')[0] in ('privacy', 'storage', 'tasks', 'flows')] or ''))"
    )
    assert python("-c", code, cwd=ROOT).stderr.strip() == ""
