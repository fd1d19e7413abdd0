"""A run that is killed: the budget is never under-counted and no half bundle is seen."""

import os
import signal
import subprocess
import sys
import time

import forced_installation as forced
import made_up_release as made
import psutil
import pytest
from forced_release import Death, Pause

from storage.ledger.ledger_db import LedgerDatabase

pytestmark = pytest.mark.integration

# Where the run dies, the state of its entry then, and what the next run makes of it.
STATES = (
    (("none", None), ["stage clean-up", "stage check-source", "stage plan", "stage identify"]),
    (("none", None), ["stage reserve"]),
    (("reserved", "void"), ["stage ingest", "stage input-gate", "stage bound-contributions"]),
    (("reserved", "void"), ["before LedgerDatabase.transition"]),
    (("executing", "burned"), ["stage histograms", "stage seal"]),
    (("executing", "burned"), ["before _Seals.__call__", "after _Seals.__call__"]),
    (("executing", "published"), ["after MeasurementStore.seal"]),
    (("sealed", "published"), ["stage purge", "stage decode", "stage output-gate", "stage report"]),
    (("sealed", "published"), ["stage commit"]),
    (("approved", "published"), ["stage publish", "before release_store.verify_bundle"]),
    (("approved", "published"), ["after release_store.verify_bundle"]),
    (("approved", "published"), ["after ReleaseStore.publish"]),
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


@pytest.fixture
def kill_and_run_again(installation):
    """Return a check of a run that dies at a point, and of the next one."""

    def check(site, next_site, point, states):
        killed = installation.start(site, disturbance=Death(place=point))
        assert killed.answer() == {}
        before, after = states
        # At once, before anybody has cleaned up.
        assert installation.state(killed.release_id) == before
        assert installation.damages() == []
        # The same is asked for again: it is finished for free, or paid anew.
        answer = installation.start(next_site).answer()
        assert answer["state"] == "published", answer
        assert answer["reused"] == (after == "published")
        expected = {} if after is None else {killed.release_id: after}
        found = {name: entry.state.value for name, entry in installation.entries().items()}
        assert found == expected | {answer["release_id"]: "published"}
        (bundle,) = (installation.releases / forced.DATASET).iterdir()
        assert bundle.name == answer["release_id"]
        assert installation.faults() == []

    return check


@pytest.mark.parametrize("point", POINTS)
def test_killed_run_is_paid_for_and_cleaned_up(kill_and_run_again, sites, point):
    kill_and_run_again(sites["naive"], sites["naive"], point, POINTS[point])


@pytest.mark.parametrize(("method", "point"), METHOD_POINTS)
def test_killed_method_stage_is_paid_for(kill_and_run_again, sites, method, point):
    kill_and_run_again(sites[method], sites["naive"], f"stage {point}", ("executing", "burned"))


@pytest.mark.parametrize(("point", "state"), [("histograms", "executing"), ("publish", "approved")])
def test_live_run_is_not_cleaned_up(installation, sites, point, state):
    live = installation.start(sites["naive"], disturbance=Pause(place=f"stage {point}"))
    try:
        live.wait_until_stopped()
        other = installation.start(sites["naive"], new_draw=True)
        assert other.answer()["state"] == "published"
        states = {name: entry.state.value for name, entry in installation.entries().items()}
        assert states == {live.release_id: state, other.release_id: "published"}
        assert (installation.home / "private" / live.release_id).is_dir()
    finally:
        os.kill(live.process.pid, signal.SIGCONT)
    assert live.answer()["state"] == "published"
    assert {entry.state.value for entry in installation.entries().values()} == {"published"}
    assert installation.damages() == []


def states(folder):
    return [e.state.value for e in LedgerDatabase(folder / "home" / "ledger.sqlite").entries()]


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

    private = tmp_path / "home" / "private"
    assert states(tmp_path) == ["executing"]
    assert not list((tmp_path / "releases").glob("made-up/*"))
    assert [path.name for path in private.iterdir() if path.is_dir()]
    made.install(monkeypatch, tmp_path)
    made.release_without_engine(sites["naive"], again=True)
    assert states(tmp_path) == ["burned", "published"]
    assert [path.name for path in private.iterdir()] == [".lock"]
