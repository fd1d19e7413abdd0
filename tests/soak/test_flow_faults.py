"""Force against the whole flow: races, a ledger that goes away, full disks, lost workers."""

import re
import subprocess
import time
from collections import Counter
from contextlib import contextmanager

import forced_installation as forced
import postgres_server
import pytest
from forced_release import FILLER, FullDisk

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_200)]

DISK_BYTES = 4_000_000
N_RESTARTS = 8

UNAVAILABLE = "LEDGER_UNAVAILABLE"
LINE = re.compile(r"[A-Za-z_:-]+")


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
    faults = installation.damages() + installation.leftovers()
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
    (".", "stage clean-up", 1, "LEDGER_UNAVAILABLE|LEDGER_HEAD_UNAVAILABLE", "none|reserved"),
    (".", "before LedgerDatabase.reserve", 1, "LEDGER_.*", "none|reserved"),
    (".", "before LedgerDatabase.transition", 1, "LEDGER_.*", "reserved|burned"),
    (".", "stage ingest", 1, "ingest:OSError", "executing|burned"),
    (".", NOISE, 1, "histograms:OSError", "executing|burned"),
    (".", "before MeasurementStore.seal", 1, "seal:OSError", "executing|burned"),
    (".", "before LedgerDatabase.transition", 2, "LEDGER_.*", "executing|sealed"),
    (".", "before LedgerDatabase.transition", 3, "LEDGER_.*", "sealed|approved"),
    (".", "before LedgerDatabase.transition", 4, "LEDGER_.*", "approved|published"),
    ("home/private", "stage ingest", 1, "ingest:OSError", "burned"),
    ("home/private", "stage bound-contributions", 1, "bound_shard:OSError", "burned"),
    ("home/private", "before Seals.__call__", 1, "histograms:OSError", "burned"),
    ("home/measurements", "before MeasurementStore.seal", 1, "seal:OSError", "burned"),
    ("home/pending", "before PendingBundles.write", 1, "publish:OSError", "sealed"),
    ("releases", "before ReleaseStore.publish", 1, "publish:OSError", "approved"),
    ("home-head", "before HeadFile.write", 1, "LEDGER_HEAD_UNAVAILABLE", "reserved"),
    ("home-head", "before HeadFile.write", 2, "LEDGER_HEAD_UNAVAILABLE", "burned"),
    ("home-head", "before HeadFile.write", 3, "LEDGER_HEAD_UNAVAILABLE", "sealed"),
    ("home-head", "before HeadFile.write", 4, "LEDGER_HEAD_UNAVAILABLE", "approved"),
    ("home-head", "before HeadFile.write", 5, "LEDGER_HEAD_UNAVAILABLE", "published"),
]


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
