import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from unittest import mock

import duckdb
import made_up_release as made
import pandas as pd
import pytest
import yaml

from flows.cli import main
from flows.site.request import job_of
from flows.site.site_file import load_site
from privacy.errors import ClustMixError
from tasks.steps import entries, janitor, publish_steps, source
from tasks.steps.job import ReleaseJob

ROOT = Path(__file__).parents[2]


def test_the_same_table_is_measured_once(installation, site):
    site_file = made.write_site(installation)
    first = made.release_without_engine(site_file)
    before = {path.name: path.read_bytes() for path in installation.glob("releases/made-up/*/*")}
    second = made.release_without_engine(site_file)
    assert (first.reused, second.reused) == (False, True)
    assert second.release_id == first.release_id
    assert second.charged_rho == "0"
    assert second.remaining_rho == first.remaining_rho
    after = {path.name: path.read_bytes() for path in installation.glob("releases/made-up/*/*")}
    assert after == before
    assert len(site.ledger.entries()) == 1


def test_an_answer_from_before_deletes_the_rows_of_a_killed_run(after_a_release, site, capsys):
    killed = site.settings.private_root / "r-20261127-0a1b2c3d"
    killed.mkdir(mode=0o700)
    (killed / "shard-0.npz").write_bytes(b"rows")
    assert main(["release", str(after_a_release / "site.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reused"]
    assert not killed.exists()


def test_a_touched_moved_and_uploaded_again_file_costs_nothing(after_a_release, site, released):
    os.utime(after_a_release / "cohort.csv", (1, 1))
    assert (
        made.release_without_engine(after_a_release / "site.yaml").release_id == released.release_id
    )
    other = after_a_release / "other"
    other.mkdir()
    moved = made.write_site(other)
    (after_a_release / "cohort.csv").unlink()
    assert made.release_without_engine(moved).release_id == released.release_id
    assert len(site.ledger.entries()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"cohort": made.made_up_cohort().head(-1)},
        {"privacy": {"epsilon": 1.5}},
        {"privacy_unit": {"max_rows_per_patient": 2}},
        {"method": made.SMALL_CLUSTMIX},
        {"source": {"delimiter": ",", "select": {"note": "made-up"}}},
    ],
    ids=["one row less", "epsilon", "unit", "method", "selection"],
)
def test_what_shapes_the_measurement_is_a_new_charge(after_a_release, site, released, change):
    second = made.release_without_engine(made.write_site(after_a_release, **change))
    assert second.release_id != released.release_id
    assert not second.reused
    assert len(site.ledger.entries()) == 2


@pytest.mark.parametrize("version", ["method", "encoding"])
def test_a_measurement_that_draws_something_else_is_a_new_charge(
    after_a_release, released, monkeypatch, version
):
    if version == "method":
        monkeypatch.setattr(ReleaseJob, "method_version", 2)
    else:
        monkeypatch.setattr(source, "ENCODING_VERSION", 2)
    again = made.release_without_engine(after_a_release / "site.yaml")
    assert again.release_id != released.release_id


def test_other_numbers_of_rows_and_titles_cost_nothing(after_a_release, site, released):
    more = made.release_without_engine(
        made.write_site(after_a_release, rows=450, title="Another title", lifetime_epsilon=40.0)
    )
    assert more.reused
    assert more.release_id != released.release_id
    assert len(pd.read_parquet(f"{more.bundle}/synthetic.parquet")) == 450
    manifest = json.loads((after_a_release / more.bundle / "manifest.json").read_text())
    assert manifest["resampled_from"] == released.release_id
    again = made.release_without_engine(made.write_site(after_a_release, rows=450))
    assert again.release_id == more.release_id
    # The release that paid is the answer, whatever was sampled from it and whatever their ids are.
    for _ in range(5):
        site.publisher.resample(released.release_id)
    usual = made.release_without_engine(made.write_site(after_a_release))
    assert usual.release_id == released.release_id
    assert len(site.ledger.entries()) == 1


def test_new_noise_has_to_be_asked_for_and_is_paid_again(after_a_release, site, released):
    site_file = after_a_release / "site.yaml"
    second = made.release_without_engine(site_file, new_draw=True)
    assert second.release_id != released.release_id
    assert site.ledger.balance("made-up").spent_rho == 2 * released.rho
    draws = [path.read_bytes() for path in after_a_release.glob("home/measurements/*/sealed-*.npz")]
    assert len(set(draws)) == 2
    assert made.release_without_engine(site_file).release_id == second.release_id


def test_two_tables_with_the_same_content_have_keys_of_their_own():
    settings = {"dataset": "a", "label": {"a": 1, "b": 2}}
    turned = {"label": {"b": 2, "a": 1}, "dataset": "a"}  # another order of keys means nothing
    requests = [
        (b"k" * 32, "0" * 64, settings),
        (b"l" * 32, "0" * 64, settings),
        (b"k" * 32, "1" * 64, settings),
        (b"k" * 32, "0" * 64, {**settings, "dataset": "b"}),
    ]
    keys = {
        source.request_key(secret, content_sha256=content, settings=settings, method_version=1)
        for secret, content, settings in [*requests, (b"k" * 32, "0" * 64, turned)]
    }
    assert [len(key) for key in keys] == [64] * 4


def test_a_sealed_release_is_published_without_its_table(installation, site, capsys):
    site_file = made.write_site(installation)
    with (
        mock.patch.object(publish_steps, "sample_rows", side_effect=RuntimeError),
        pytest.raises(ClustMixError, match="publish:RuntimeError"),
    ):
        made.release_without_engine(site_file)
    (installation / "cohort.csv").unlink()
    (entry,) = site.ledger.entries()
    assert main(["publish", entry.release_id, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["state"], answer["charged_rho"]) == ("published", "0")
    assert main(["publish", entry.release_id]) == 1
    nothing = f"NOTHING_TO_PUBLISH: .* found {entry.release_id} published"
    assert re.search(nothing, capsys.readouterr().err)


def test_a_run_of_the_same_request_that_does_not_end(installation, site, monkeypatch):
    site_file = made.write_site(installation)
    monkeypatch.setattr(entries, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(entries, "_POLL_SECONDS", 0.01)
    with (
        mock.patch.object(entries.Entries, "begin", side_effect=KeyboardInterrupt),
        mock.patch.object(entries.Entries, "_close_failed"),
        pytest.raises(KeyboardInterrupt),
    ):
        made.release_without_engine(site_file)
    (entry,) = site.ledger.entries()
    assert entry.state == "reserved"
    with (
        mock.patch.object(janitor.Janitor, "clean_up"),
        mock.patch.object(entries, "live_run_ids", return_value={entry.release_id}),
        pytest.raises(ClustMixError, match=f"RELEASE_RUNNING: .* {entry.release_id} .* reserved; "),
    ):
        made.release_without_engine(site_file)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "tables"])
def test_a_database_is_measured_at_every_release(installation, monkeypatch, kind):
    # What it holds is not known before it is read, and reading is paid for.
    path, cohort = installation / f"cohort.{kind}", made.made_up_cohort()
    query = "select * from cohort"
    if kind == "sqlite":
        with sqlite3.connect(path) as connection:
            cohort.to_sql("cohort", connection, index=False)
        connection.close()
        monkeypatch.setenv("COHORT_URL", f"sqlite:///{path}")
        table = {"kind": "sql", "url_env": "COHORT_URL", "dialect": "sqlite", "query": query}
    elif kind == "duckdb":
        with duckdb.connect(str(path)) as connection:
            connection.sql("CREATE TABLE cohort AS FROM cohort")
        table = {"kind": "duckdb", "database": str(path), "query": query}
    else:
        path.mkdir()
        for part in range(2):
            cohort[part::2].to_parquet(path / f"{part}.parquet", index=False)
        table = {"kind": "duckdb", "tables": {"cohort": {"parquet": str(path)}}, "query": query}
    site = installation / "site.yaml"
    site.write_text(yaml.safe_dump(made.site_of("made-up", table)))
    first, second = made.release_without_engine(site), made.release_without_engine(site)
    assert not second.reused
    assert first.release_id != second.release_id


def test_an_upgrade_charges_nobody(after_a_release, site, released, tmp_path):
    upgraded = tmp_path / "upgraded"
    for package in ("clustmix", "flows", "privacy", "storage", "tasks"):
        shutil.copytree(ROOT / package, upgraded / package, ignore=shutil.ignore_patterns("*.pyc"))
    for module in upgraded.rglob("*.py"):
        module.write_text(module.read_text() + "\n# Another comment.\n")
    program = (
        "import pathlib, sys, flows, made_up_release as made; "
        f"assert flows.__file__.startswith({str(upgraded)!r}); "
        "print(made.release_without_engine(pathlib.Path(sys.argv[1])).release_id)"
    )
    path = os.pathsep.join([str(upgraded), str(ROOT / "tests" / "helpers")])
    ran = subprocess.run(
        [sys.executable, "-c", program, str(after_a_release / "site.yaml")],
        env={**made.process_environment(after_a_release, dask_workers=0), "PYTHONPATH": path},
        cwd=upgraded, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout.split()) == (0, [released.release_id]), ran.stderr
    assert len(site.ledger.entries()) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"title": "Another title"},
        {"rows": 451},
        {"catalogue": {"purpose": "Another purpose", "keywords": ["wards"]}},
        {"lifetime_epsilon": 40.0},
        {"public_benchmark_data": True},
        {"arrival": {"max_age_hours": 2}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_shapes_no_measurement_has_the_same_key(tmp_path, change):
    before, after = (
        job_of(load_site(made.write_site(tmp_path, **changes)), "r-20260101-00000000")
        for changes in ({}, change)
    )
    assert before.site != after.site
    assert before.measurement_settings == after.measurement_settings
