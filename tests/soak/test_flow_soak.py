"""Force against the whole flow: what is charged is never below what was drawn.

Runs that are killed, a ledger that goes away, disks that are full; moments are drawn at random.
"""

import os
import re
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import forced_installation as forced
import numpy as np
import postgres_server
import pytest
from forced_release import FILLER, FullDisk

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800)]

N_KILLS = int(os.environ.get("SOAK_KILLS", "200"))
"""Random moments for each ledger; fewer for a try."""

KILLS_PER_INSTALLATION = 25
SEED = int(os.environ.get("SOAK_SEED", int.from_bytes(os.urandom(4))))
"""Other moments every time, unless those of an earlier run are wanted again."""


@pytest.fixture
def say(capsys):
    def line(text):
        with capsys.disabled():
            print(f"\n  {text}", flush=True)  # noqa: T201 -- the figures are the result

    return line


@pytest.fixture
def rng(request, say):
    """Return the generator of this test; its seed is printed."""
    say(f"{request.node.name}: SOAK_SEED={SEED}")
    return np.random.default_rng([SEED, *request.node.name.encode()])


@pytest.fixture(params=["sqlite", "postgres"])
def install(request, tmp_path):
    """Return a maker of installations with a ledger in a file, or in a database of its own."""
    server = postgres_server.server() if request.param == "postgres" else None

    def make(name, *, draws=None):
        url = None if server is None else server.url(server.new_database())
        return forced.Installation(tmp_path / name, ledger_url=url, draws=draws)

    return make


@dataclass
class Tally:
    """What was seen of runs that were killed."""

    states: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def kill_and_go_on(installation, tables, n_kills, moment, rng):
    """Kill runs in one installation, each followed by others of the same request."""
    tally, number = Tally(), 0
    while tally.states.total() < n_kills:
        site, killed = tables(number), []
        number += 1
        while True:
            measured = [release for release in killed if installation.is_measured(release)]
            run = installation.start(site)
            if tally.states.total() < n_kills and (not killed or rng.random() < 0.4):
                drawn = moment()
                if run.kill(drawn):
                    killed.append(run.release_id)
                    tally.states[installation.state(run.release_id)] += 1
                    tally.wrong += [f"{text} [{drawn}]" for text in installation.damages()]
                    continue
            break
        tally.wrong += finished(installation, run, killed, measured, tally.endings)
    return tally


def finished(installation, run, killed, measured, endings):
    """Return what is wrong after a run of a request whose earlier runs were killed."""
    answer = run.answer()
    who = f"{run.release_id} after {killed}"
    if answer.get("state") != "published":
        return [f"{who}: {answer}, {run.places[-3:]}"]
    wrong = installation.faults()
    states = {release: installation.state(release) for release in (*killed, run.release_id)}
    if measured:
        # Paid for once and for all: finished by whoever comes next, at no cost.
        expected = dict.fromkeys(states, "free") | {measured[0]: "published"}
        good = answer["reused"] and answer["release_id"] == measured[0] and len(measured) == 1
        good &= run.release_id not in installation.drawn()
    else:
        expected = dict.fromkeys(states, "free") | {run.release_id: "published"}
        good = not answer["reused"] and answer["release_id"] == run.release_id
    free = ("none", "void", "burned")
    found = {release: "free" if s in free else s for release, s in states.items()}
    if not good or found != expected:
        wrong.append(f"{who}, measured {measured}: {answer}, {states}")
    if killed:
        endings["free" if measured else "paid anew"] += 1
    return wrong


def all_at_once(jobs):
    tally = Tally()
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2))) as pool:
        for one in pool.map(lambda job: job(), jobs):
            tally.states += one.states
            tally.endings += one.endings
            tally.wrong += one.wrong
    return tally


def test_killed_at_random_moments(install, rng, say, tmp_path):
    started = time.monotonic()
    # As busy as the runs that are killed: two at a time.
    calibrate, whole = forced.Tables(tmp_path / "calibration"), install("calibration")
    forced.Undisturbed.of(whole, calibrate(0))
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda n: forced.Undisturbed.of(whole, calibrate(n)), (1, 2)))
    undisturbed = max(both, key=lambda run: run.seconds)

    def series(number):
        own = np.random.default_rng(rng.integers(2**63, size=4))
        installation = install(f"installation-{number}")
        tables = forced.Tables(tmp_path / f"tables-{number}")
        n_kills = min(KILLS_PER_INSTALLATION, N_KILLS - number * KILLS_PER_INSTALLATION)
        return lambda: kill_and_go_on(
            installation, tables, n_kills, lambda: undisturbed.moment(own), own
        )

    tally = all_at_once([series(n) for n in range(-(-N_KILLS // KILLS_PER_INSTALLATION))])
    say(
        f"{N_KILLS} kills, faults {len(tally.wrong)}; entries when killed: {dict(tally.states)}; "
        f"next runs: {dict(tally.endings)}; {time.monotonic() - started:.0f} s, a run takes "
        f"{undisturbed.seconds:.2f} s and comes to {len(set(undisturbed.places))} places"
    )
    assert tally.states.total() == N_KILLS
    assert not tally.wrong, "\n".join(tally.wrong)


DISK_BYTES = 4_000_000
N_RESTARTS = 8

UNAVAILABLE = "LEDGER_UNAVAILABLE"
LINE = re.compile(r"[A-Za-z_:-]+")


@pytest.mark.timeout(1_200)
def test_ledger_server_stops_at_once_in_the_middle(rng, say, tmp_path):
    server = postgres_server.server()
    url = server.url(server.new_database())
    installation = forced.Installation(tmp_path / "installation", ledger_url=url)
    tables = forced.Tables(tmp_path)
    undisturbed = forced.Undisturbed.of(installation, tables(0))
    ends, wrong = Counter(), []
    for number in range(1, N_RESTARTS + 1):
        site, moment = tables(number), undisturbed.moment(rng)
        run = installation.start(site)
        run.reach(moment)
        server.stop("immediate")
        try:
            time.sleep(1.0)
        finally:
            server.start()
        answer = run.answer()
        ends[answer.get("code", answer.get("state"))] += 1
        faults = installation.damages()
        if answer.get("state") != "published" and answer.get("code") != UNAVAILABLE:
            faults.append(str(answer))
        faults += faults_of_next_run(installation, site, run.release_id)
        wrong += [f"{moment}: {fault}" for fault in faults]
    say(f"{N_RESTARTS} crashes of the server: {dict(ends)}; faults {len(wrong)}")
    assert not wrong, "\n".join(wrong)


def faults_of_next_run(installation, site, release_id):
    is_measured = installation.is_measured(release_id)
    again = installation.start(site).answer()
    faults = installation.faults()
    if again.get("state") != "published" or again["reused"] != is_measured:
        faults.append(f"next run, measured {is_measured}: {again}")
    return faults


@contextmanager
def small_disk(folder):
    """Mount a file system of a few megabytes; skip the test where that is not permitted."""
    folder.mkdir(parents=True)
    folder.chmod(0o755 if folder.name == "releases" else 0o700)
    options = f"size={DISK_BYTES},mode={folder.stat().st_mode & 0o777:o}"
    command = ["mount", "-t", "tmpfs", "-o", options, "clustmix-soak", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no small file system here: expected to be allowed to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)  # noqa: S607


NOISE = "before curator.discrete_gaussian_mechanism"
# What is full, from where on, how the run ends then, and its entry.
FULL = [
    (".", "stage clean-up", 1, "SEAL_UNWRITABLE|LEDGER_.*", "none|reserved"),
    (".", "before LedgerDatabase.reserve", 1, "LEDGER_.*", "none|reserved"),
    (".", "before LedgerDatabase.transition", 1, "LEDGER_.*", "reserved|burned"),
    (".", "stage ingest", 1, "ingest:OSError", "reserved|void"),
    (".", NOISE, 1, "histograms:OSError", "executing|burned"),
    (".", "before MeasurementStore.seal", 1, "seal:OSError", "executing|burned"),
    (".", "before LedgerDatabase.transition", 2, "LEDGER_.*", "executing|sealed"),
    (".", "before LedgerDatabase.transition", 3, "LEDGER_.*", "sealed|approved"),
    (".", "before LedgerDatabase.transition", 4, "LEDGER_.*", "approved|published"),
    ("home/private", "stage ingest", 1, "ingest:OSError", "void"),
    ("home/private", "stage bound-contributions", 1, "bound_shard:OSError", "void"),
    ("home/private", "before _Seals.__call__", 1, "histograms:OSError", "burned"),
    ("home/measurements", "before MeasurementStore.seal", 1, "seal:OSError", "burned"),
    ("home/pending", "before PendingBundles.write", 1, "publish:OSError", "sealed"),
    ("releases", "before ReleaseStore.publish", 1, "publish:OSError", "approved"),
    ("home-head", "before HeadFile.write", 1, "LEDGER_HEAD_UNAVAILABLE", "reserved"),
    ("home-head", "before HeadFile.write", 2, "LEDGER_HEAD_UNAVAILABLE", "burned"),
    ("home-head", "before HeadFile.write", 3, "LEDGER_HEAD_UNAVAILABLE", "sealed"),
    ("home-head", "before HeadFile.write", 4, "LEDGER_HEAD_UNAVAILABLE", "approved"),
    ("home-head", "before HeadFile.write", 5, "LEDGER_HEAD_UNAVAILABLE", "published"),
]


@pytest.mark.timeout(1_200)
def test_disk_is_full_from_some_place_on(install, say, tmp_path):
    ends, wrong = Counter(), []
    for number, (full, place, nth, code, state) in enumerate(FULL):
        folder, tables = tmp_path / f"i{number}", forced.Tables(tmp_path / f"t{number}")
        disk = folder / full
        if full != ".":
            (folder / "home").mkdir(parents=True, mode=0o700)
        with small_disk(disk):
            faults = []
            installation = install(folder.name, draws=tmp_path / f"draws-{number}")
            assert installation.start(tables(0)).answer()["state"] == "published"
            site, where = tables(1), FullDisk(place=place, time=nth, folder=str(disk))
            run = installation.start(site, disturbance=where)
            answer = run.answer()
            (disk / FILLER).unlink(missing_ok=True)
            ends[f"{answer.get('code')} {installation.state(run.release_id)}"] += 1
            faults += installation.damages()
            if not re.fullmatch(code, answer.get("code", "")) or not is_one_public_line(answer):
                faults.append(f"answer {answer}")
            if installation.state(run.release_id) not in state.split("|"):
                faults.append(f"entry {installation.state(run.release_id)}")
            faults += faults_of_next_run(installation, site, run.release_id)
            wrong += [f"{full} {place} {nth}: {fault}" for fault in faults]
    say(f"{len(FULL)} places where a disk was full: {dict(ends)}; faults {len(wrong)}")
    assert not wrong, "\n".join(wrong)


def is_one_public_line(answer):
    line = answer.get("message", "")
    return bool(LINE.fullmatch(answer.get("code", ""))) and line != "" and "\n" not in line
