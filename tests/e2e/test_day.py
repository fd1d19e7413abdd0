"""A day in which an hour takes a minute: schedules and arrivals, and processes that are killed."""

import os
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing, suppress

import made_up_release as made
import numpy as np
import psutil
import pytest
from forced_installation import PAID
from served_installation import running

from privacy.ledger import EntryState

SEED = int(os.environ.get("E2E_SEED", int.from_bytes(os.urandom(4))))
"""Other moments every time, unless those of an earlier day are wanted again."""

N_HOURS = int(os.environ.get("E2E_HOURS", "24"))
HOUR_SECONDS = 60.0
SETTLING_SECONDS = 1_200.0
N_RUNS_WANTED = 200 * N_HOURS // 24

DATASETS = {"wards": made.NAIVE_BAYES, "labs": made.NAIVE_BAYES, "icu": made.SMALL_CLUSTMIX}

KILLED = {
    "run": 0.5,
    "dask-worker": 0.2,
    "private-worker": 0.07,
    "public-worker": 0.05,
    "watcher": 0.08,
    "orchestrator": 0.06,
    "scheduler": 0.04,
}
"""What is killed, and how often among the others."""

KILL_EVERY_SECONDS = 20.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(N_HOURS * HOUR_SECONDS + 1_800)]


class Trouble(threading.Thread):
    """Kills something now and then."""

    def __init__(self, installation):
        super().__init__(daemon=True)
        self.killed = Counter()
        self._installation, self._over = installation, threading.Event()
        self._rng = np.random.default_rng(SEED)
        self._failure = None

    def run(self):
        try:
            next_kill = time.monotonic() + KILL_EVERY_SECONDS
            while not self._over.wait(1.0):
                if time.monotonic() > next_kill:
                    next_kill += float(self._rng.uniform(0.5, 1.5)) * KILL_EVERY_SECONDS
                    self._kill_something()
        except BaseException as error:
            self._failure = error

    def _kill_something(self):
        name = str(self._rng.choice(list(KILLED), p=list(KILLED.values())))
        installation = self._installation
        with suppress(psutil.Error):  # it has ended by itself
            if name == "run":
                processes = installation.run_processes()
            elif name == "dask-worker":
                processes = installation.dask_workers()
            else:
                processes = [psutil.Process(installation.parts[name].pid)]
            if processes:
                processes[int(self._rng.integers(len(processes)))].kill()
                self.killed[name] += 1

    def end(self):
        """End."""
        self._over.set()
        self.join(60)
        if self._failure is not None:
            raise self._failure


def prepare(installation):
    for dataset, method in DATASETS.items():
        installation.add_site(dataset, method=method, lifetime_epsilon=500.0)
    installation.write_deployments(**dict.fromkeys(DATASETS, "* * * * *"))


def test_a_day_with_its_troubles_leaves_ledger_and_draws_equal(tmp_path, say):
    say(f"E2E_SEED={SEED}")
    with running(tmp_path / "day", prepare) as installation:
        trouble, begin = Trouble(installation), time.monotonic()
        trouble.start()
        try:
            for hour in range(N_HOURS):
                for number, dataset in enumerate(DATASETS):
                    # What arrives is not what the schedule reads.
                    installation.arrive(dataset, content=10_000 + hour)
                    if hour % 6 == 2 * number:
                        installation.change_source(dataset, content=20_000 + hour)
                time.sleep(max(0.0, begin + (hour + 1) * HOUR_SECONDS - time.monotonic()))
        finally:
            trouble.end()
        installation.wait_until_answers()
        installation.deploy()
        installation.wait_until_quiet(seconds=SETTLING_SECONDS, still_seconds=90)
        report(installation, trouble, say, time.monotonic() - begin)
        check(installation)


def report(installation, trouble, say, seconds):
    runs = [run for run in installation.flow_runs() if run.started]
    ends = Counter(f"{run.flow} {run.state_name}" for run in runs)
    say(f"{len(runs)} runs in {seconds:.0f} s, hours: {N_HOURS}: {dict(sorted(ends.items()))}")
    say(f"killed: {dict(trouble.killed)}; entries: {dict(installation.states())}")
    assert len(runs) >= N_RUNS_WANTED
    assert sum(trouble.killed.values()) >= N_HOURS


def check(installation):
    entries, drawn = installation.entries(), installation.drawn()
    # What was drawn is charged, each statistic once; what is published was drawn.
    assert installation.damages() == []
    assert set(drawn) <= set(entries)
    assert {e.release_id for e in entries.values() if e.state in PAID} <= set(drawn)
    assert {e.release_id for e in entries.values() if not e.counts} & set(drawn) == set()
    # Whatever was sealed is published, whatever came was read, and nothing else is left.
    assert {e.state for e in entries.values()} <= {
        EntryState.PUBLISHED,
        EntryState.BURNED,
        EntryState.VOID,
    }
    assert installation.leftovers() == []
    # Every table of every hour came to an end. One whose run was killed while it drew is paid for
    # and not drawn again without a person.
    ended = Counter(e.dataset for e in entries.values() if e.state is not EntryState.VOID)
    for dataset in DATASETS:
        assert ended[dataset] + given_up(installation)[dataset] >= N_HOURS, ended
    for entry in entries.values():
        if entry.state is EntryState.PUBLISHED:
            assert (installation.releases / entry.dataset / entry.release_id).is_dir()


def given_up(installation):
    """Count, by dataset, the tables whose runs were killed three times before they were charged."""
    path = installation.home / "arrivals" / "arrivals.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT dataset, count(*) FROM arrivals WHERE outcome = 'failed' GROUP BY dataset"
        )
        return Counter(dict(rows.fetchall()))
