"""Planted values appear nowhere but in the restricted diagnostics folder."""

import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import made_up_release as made
import psutil
import pytest
from served_prefect import served_prefect

pytestmark = pytest.mark.integration

# State of the entry after a failure at each place; None where nothing was charged.
STATES = {
    None: ["clean-up", "check-source", "plan", "identify", "reserve", "cluster"],
    "void": ["ingest", "input-gate", "bound-contributions"],
    "burned": ["histograms", "seal"],
    "sealed": ["decode", "output-gate", "report", "commit", "purge"],
    "approved": ["publish", "store"],
    "published": ["end of publish"],
}
FAILURES = {
    **{place: state for state, places in STATES.items() for place in places},
    **dict.fromkeys(made.STAGES_OF_CLUSTMIX + made.CONTRIBUTIONS, "burned"),
    **dict.fromkeys(("draw", "interrupt", "own workers"), "burned"),
}


def run_and_watch(folder, arguments, *, dask_workers, **variables):
    """Run a process in an installation of its own; keep its output and all process arguments."""
    environment = made.process_environment(folder, dask_workers=dask_workers, **variables)
    (folder / "work").mkdir()
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        process = psutil.Popen(
            [sys.executable, *arguments],
            cwd=folder / "work",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        seen = set()
        while process.poll() is None:
            for child in made.family_of(process):
                with suppress(psutil.Error):
                    seen.add(" ".join(child.cmdline()))
            time.sleep(0.1)
    (folder / "arguments").write_text("\n".join(sorted(seen)))
    return SimpleNamespace(
        folder=folder,
        exit_code=process.returncode,
        stdout=(folder / "stdout").read_text(),
        stderr=(folder / "stderr").read_text(),
        n_processes=len(seen),
    )


def _succeed(folder, site):
    # With a server that keeps what it is told: that of a single command forgets it.
    path = made.write_site(site, method=made.SMALL_CLUSTMIX)
    (folder / "home").mkdir(mode=0o700)
    (folder / "home" / "prefect").mkdir()
    with served_prefect(folder / "home" / "prefect") as named:
        command = ["-m", "flows.cli", "release", str(path)]
        return run_and_watch(folder, command, dask_workers=2, **named)


def _fail(folder, sites):
    cohort = made.made_up_cohort()
    cohort.loc[3, "died"] = made.CANARY_NOTE
    for name, method, rows in (
        ("naive", made.NAIVE_BAYES, None),
        ("clustmix", made.SMALL_CLUSTMIX, None),
        ("bad", made.NAIVE_BAYES, cohort),
    ):
        (sites / name).mkdir()
        made.write_site(
            sites / name, dataset=name, method=method, lifetime_epsilon=500.0, cohort=rows
        )
    report = sites / "report.jsonl"
    command = (
        "from made_up_release import fail_in_every_stage as run; "
        f"run({str(sites)!r}, {str(report)!r})"
    )
    run = run_and_watch(folder, ["-c", command], dask_workers=0)
    assert run.exit_code == 0, run.stderr
    cases = [json.loads(line) for line in report.read_text().splitlines()]
    return SimpleNamespace(**vars(run), cases={case["name"]: case for case in cases}, sites=sites)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Run the two processes beside each other."""
    folders = [tmp_path_factory.mktemp(name) for name in ("success", "site", "failures", "sites")]
    with ThreadPoolExecutor(2) as pool:
        success, failures = pool.submit(_succeed, *folders[:2]), pool.submit(_fail, *folders[2:])
        return success.result(), failures.result()


@pytest.fixture
def succeeded(both):
    return both[0]


@pytest.fixture
def failed(both):
    return both[1]


def test_release_succeeds_on_its_own_workers(succeeded):
    assert succeeded.exit_code == 0, succeeded.stderr
    (bundle,) = (succeeded.folder / "releases" / "made-up").iterdir()
    made.verified(succeeded.folder, bundle.name)
    assert succeeded.n_processes >= 3  # command, two workers


def test_canaries_are_in_the_source_and_would_be_found(succeeded, tmp_path):
    made.write_site(tmp_path)
    (tmp_path / "one.bin").write_bytes(b"\0" + made.CANARIES[-1])
    frame = made.made_up_cohort().tail(1_000)
    frame.to_parquet(tmp_path / "two.parquet", compression="zstd")
    found = made.found_in_tree(tmp_path, made.CANARIES)
    names = {Path(line.split(": ")[0]).name for line in found}
    assert names == {"cohort.csv", "one.bin", "two.parquet"}
    # The rows were used: their value outside the declared levels became OTHER, hence a release.
    schema = next(succeeded.folder.glob("releases/made-up/*/schema.json"))
    assert "elsewhere" in schema.read_text()


def test_success_shows_no_canary(succeeded):
    # Everything: home with database and storage, releases, output, arguments, temporary files.
    assert made.found_in_tree(succeeded.folder, made.CANARIES) == []


def test_success_leaves_nothing_private(succeeded):
    home = succeeded.folder / "home"
    assert [path.name for path in (home / "private").iterdir()] == [".lock"]
    assert not any((home / "prefect" / "storage").glob("**/*"))
    assert list((succeeded.folder / "work").iterdir()) == []
    assert list((home / "diagnostics").rglob("*.*")) == []


def test_no_count_of_the_source_is_public(succeeded):
    frame = made.made_up_cohort()
    counts = {
        len(frame),
        made.N_POSITIVE,
        len(frame) - made.N_POSITIVE,
        frame["patient"].nunique(),
        *frame.groupby("died")["patient"].nunique(),
    }
    assert min(counts) > 600  # synthetic rows and drawings have no such numbers
    numbers = "|".join(f"{count}|{count:,}" for count in sorted(counts))
    pattern = re.compile(rf"(?<![\w.#-])(?:{numbers})(?![\w-])")
    assert pattern.search(f"of {made.N_ROWS:,} rows")
    (bundle,) = (succeeded.folder / "releases" / "made-up").iterdir()
    texts = [path for path in bundle.iterdir() if path.suffix != ".parquet"]
    assert {path.suffix for path in texts} == {
        ".csv", ".json", ".jsonld", ".md", ".html", ".yaml",
    }  # fmt: skip
    for path in texts:
        assert pattern.findall(path.read_text()) == [], path.name
    cells = list(made.database_cells(succeeded.folder / "home" / "prefect" / "prefect.db"))
    assert {"flow_run", "task_run", "task_run_state"} <= {table for table, _ in cells}
    assert [cell for cell in cells if pattern.search(cell[1])] == []
    assert not pattern.search(succeeded.stdout + succeeded.stderr)


def test_bad_input_names_the_rule_and_costs_nothing(failed):
    case = failed.cases["bad input"]
    assert (case["type"], case["state"], case["workspaces"]) == ("InputError", "void", [])
    assert len(case["chain"].splitlines()) == 1
    assert "column died: expected declared label values only" in case["chain"]
    assert made.CANARY_NOTE not in case["chain"]
    (file,) = (failed.folder / "home" / "diagnostics").glob("*.jsonl")
    assert made.CANARY_NOTE in file.read_text()
    assert file.name in case["chain"]


@pytest.mark.parametrize("name", FAILURES)
def test_failure_says_the_step_leaves_no_workspace_and_keeps_its_charge(failed, name):
    case = failed.cases[name]
    if name == "interrupt":
        assert case["type"] == "KeyboardInterrupt"
    else:
        assert case["type"] == "PipelineError"
        chain = case["chain"].splitlines()
        assert len(chain) == 1, "a context or cause left the flow"
        assert not [canary for canary in made.CANARIES[:5] if canary.decode() in chain[0]]
        assert "ValueError" in chain[0]
    assert (case["workspaces"], case["staging"]) == ([], [])
    assert case["state"] == FAILURES[name]
    assert case["bundle"] == (FAILURES[name] == "published")


def test_failures_show_no_canary(failed):
    diagnostics, scratch = failed.folder / "home" / "diagnostics", failed.sites / "scratch"
    assert made.found_in_tree(failed.folder, made.CANARIES, skip=(diagnostics,)) == []
    assert scratch.is_dir()  # of Dask
    assert made.found_in_tree(scratch, made.CANARIES) == []


def test_failures_are_not_kept_by_the_orchestrator(failed):
    prefect = failed.folder / "home" / "prefect"
    assert not any((prefect / "storage").glob("**/*"))
    cells = [text for _, text in made.database_cells(prefect / "prefect.db")]
    assert any("histograms:ValueError" in text for text in cells), "the failures are not in there"


def test_what_failed_is_in_the_restricted_log(failed):
    logs = list((failed.folder / "home" / "diagnostics").glob("*/failures.log"))
    assert all(path.stat().st_mode & 0o077 == 0 for path in logs)
    with_canary = [path for path in logs if made.CANARY_RAISED in path.read_text()]
    # Also what workers raised; what was interrupted is no failure of a step.
    assert len(with_canary) == len(FAILURES) - 1
