"""A run that is killed: the budget is never under-counted and no half bundle is seen."""

import os
import signal
import subprocess
import sys
import time
from decimal import Decimal

import forced_installation as forced
import made_up_release as made
import psutil
import pytest

from storage.ledger.ledger_db import LedgerDatabase

pytestmark = pytest.mark.integration

KILLED_ID = "r-20250101-0badcafe"

# Where the run dies, the state of its entry then, and what the next run makes of it.
STATES = (
    ((None, None), ["clean-up", "check-source", "plan", "identify", "reserve"]),
    (("reserved", "void"), ["ingest", "input-gate", "bound-contributions"]),
    (("reserved", "void"), ["between reserve and begin"]),
    (("executing", "burned"), ["histograms"]),
    (("executing", "burned"), ["between noise and seal", "after a seal", "seal"]),
    (("executing", "published"), ["before the SEALED row"]),
    (("sealed", "published"), ["purge", "decode", "output-gate", "report", "commit"]),
    (("approved", "published"), ["publish", "inside publish", "before rename", "after rename"]),
    (("approved", "published"), ["before the PUBLISHED row"]),
)
POINTS = {point: states for states, points in STATES for point in points}
METHOD_POINTS = [
    *(("clustmix", point) for point in made.STAGES_OF_CLUSTMIX),
    *(("dpgm", point) for point in ("clustering", "train-03-of-03")),
]
SMALL_DPGM = {
    "kind": "dpgm", "clusters": 2, "clustering_rounds": 1, "fourier_features": 4,
    "hidden_units": 2, "epochs": 3, "norm_bins": 4,
    "min_cluster_size": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    methods = {"naive": made.NAIVE_BAYES, "clustmix": made.SMALL_CLUSTMIX, "dpgm": SMALL_DPGM}
    return {
        name: made.write_site(tmp_path_factory.mktemp(name), method=method)
        for name, method in methods.items()
    }


def check_after_kill(folder, state, draws):
    """What holds at once, before anybody has cleaned up."""
    path = folder / "home" / "ledger.sqlite"
    entries = LedgerDatabase(path).entries() if path.exists() else ()
    assert [entry.state.value for entry in entries] == ([] if state is None else [state])
    assert sum(entry.rho for entry in entries if entry.counts) >= forced.rho_of(draws)
    for bundle in (folder / "releases").glob("made-up/*"):
        charged = {entry.entry_id for entry in entries if entry.counts}
        assert made.verified(folder, bundle.name).manifest.ledger_entry in charged


def check_after_next_run(folder, outcome, state, draws):
    """What holds once the same was asked for again: it is finished for free, or paid anew."""
    ledger = LedgerDatabase(folder / "home" / "ledger.sqlite")
    ledger.verify()
    entries = {entry.release_id: entry for entry in ledger.entries()}
    states = {} if state is None else {KILLED_ID: state}
    assert outcome.reused == (state == "published")
    if state == "published":
        assert outcome.release_id == KILLED_ID
    assert {name: entry.state.value for name, entry in entries.items()} == (
        states | {outcome.release_id: "published"}
    )
    spent = ledger.balance("made-up").spent_rho
    assert spent - (0 if outcome.reused else Decimal(outcome.charged_rho)) >= forced.rho_of(draws)
    assert [path.name for path in (folder / "releases" / "made-up").iterdir()] == [
        outcome.release_id
    ]
    bundle, entry = made.verified(folder, outcome.release_id), entries[outcome.release_id]
    assert (entry.digest, entry.entry_id) == (bundle.manifest_sha256, bundle.manifest.ledger_entry)
    home = folder / "home"
    assert [path.name for path in (home / "private").iterdir()] == [".lock"]
    assert list((home / "pending").iterdir()) == []
    assert [path.name for path in (home / "measurements").iterdir()] == [outcome.release_id]
    assert sorted(path.name for path in (folder / "releases").iterdir()) == [".lock", "made-up"]


@pytest.fixture
def kill_and_run_again(dies, tmp_path, monkeypatch):
    """Return a check of a run that dies at a point, and of the next one."""

    def check(site, next_site, point, states):
        environment, draws = made.environment_of(tmp_path), tmp_path / "draws.jsonl"
        dies(made.release_and_die, environment, str(site), KILLED_ID, point, str(draws))
        check_after_kill(tmp_path, states[0], draws)
        made.install(monkeypatch, tmp_path)
        outcome = made.release_without_engine(next_site)
        check_after_next_run(tmp_path, outcome, states[1], draws)

    return check


@pytest.mark.parametrize("point", POINTS)
def test_killed_run_is_paid_for_and_cleaned_up(kill_and_run_again, sites, point):
    kill_and_run_again(sites["naive"], sites["naive"], point, POINTS[point])


@pytest.mark.parametrize(("method", "point"), METHOD_POINTS)
def test_killed_method_stage_is_paid_for(kill_and_run_again, sites, method, point):
    kill_and_run_again(sites[method], sites["naive"], point, ("executing", "burned"))


@pytest.mark.parametrize(("point", "state"), [("histograms", "executing"), ("publish", "approved")])
def test_live_run_is_not_cleaned_up(sites, tmp_path, monkeypatch, point, state):
    arguments = (made.environment_of(tmp_path), str(sites["naive"]), KILLED_ID, point)
    live = forced.processes().Process(target=made.release_and_pause, args=arguments)
    live.start()
    try:
        while psutil.Process(live.pid).status() != psutil.STATUS_STOPPED:
            assert live.exitcode is None
            time.sleep(0.02)
        made.install(monkeypatch, tmp_path)
        outcome = made.release_without_engine(sites["naive"], new_draw=True)
        ledger = LedgerDatabase(tmp_path / "home" / "ledger.sqlite")
        states = {entry.release_id: entry.state.value for entry in ledger.entries()}
        assert states == {KILLED_ID: state, outcome.release_id: "published"}
        assert (tmp_path / "home" / "private" / KILLED_ID).is_dir()
    finally:
        os.kill(live.pid, signal.SIGCONT)
        live.join(60)
    assert live.exitcode == 0
    assert {entry.state.value for entry in ledger.entries()} == {"published"}
    made.verified(tmp_path, KILLED_ID)


def test_killed_command_leaves_no_process(sites, tmp_path, monkeypatch):
    command = (
        "import made_up_release as made; "
        f"made.command_at('constrained-gmm', {str(sites['clustmix'])!r}, made.die)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command],
        env=made.process_environment(tmp_path, dask_workers=1),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    started = set()
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            started.update(watched.children(recursive=True))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.05)
    assert process.wait(120) == -signal.SIGKILL
    # The server, a worker and what multiprocessing runs beside it end with the command.
    assert len(started) >= 2
    _, alive = psutil.wait_procs(started, timeout=20)
    assert [child.cmdline() for child in alive] == []

    check_after_kill(tmp_path, "executing", tmp_path / "none")
    assert [path.name for path in (tmp_path / "home" / "private").iterdir() if path.is_dir()]
    made.install(monkeypatch, tmp_path)
    made.release_without_engine(sites["naive"])
    states = [e.state.value for e in LedgerDatabase(tmp_path / "home" / "ledger.sqlite").entries()]
    assert states == ["burned", "published"]
    assert [path.name for path in (tmp_path / "home" / "private").iterdir()] == [".lock"]
