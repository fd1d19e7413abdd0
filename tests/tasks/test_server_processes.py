"""Processes that outlive the command that started them, and end when they are told to."""

import os
import signal
import stat
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest
from waiting import until

from flows.server import processes
from flows.server.record import ServerError

SLEEP = "import time; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf')"
CHILDREN = f"""
import subprocess, sys
for i in range(3):
    # One in a session of its own, as a worker starts a run.
    child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=i == 0)
    print(child.pid, flush=True)
"""


def program(code):
    command = [sys.executable, "-u", "-c", code]
    return processes.Program(name="page", command=command, environment={"PATH": os.defpath})


@pytest.fixture
def started(tmp_path):
    mark = os.urandom(8).hex()
    yield lambda code: processes.start_part(program(code), folder=tmp_path, mark=mark)
    processes.stop_processes(partial(processes.marked, mark), grace_seconds=0)


def stop(part, grace_seconds=15):
    processes.stop_processes(partial(processes.marked, part.mark), grace_seconds=grace_seconds)


def lives(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_part_leads_a_session_and_writes_into_a_private_log(started, tmp_path):
    part = started("import os; print(os.getcwd(), 'is here'); " + SLEEP)
    assert processes.is_running(part)
    assert os.getsid(part.pid) == part.pid
    until(lambda: "is here" in part.log.read_text())
    # The clock may be set meanwhile.
    assert processes.is_running(part.model_copy(update={"created": part.created - 3600}))
    assert psutil.Process(part.pid).environ() == {"PATH": os.defpath, processes.MARK: part.mark}
    assert part.log.read_text().startswith(str(tmp_path))
    assert stat.S_IMODE(part.log.stat().st_mode) == 0o600


def test_a_log_of_last_time_is_kept_and_a_link_is_not_followed(started, tmp_path):
    (tmp_path / "page.log").write_text("before")
    part = started("print('after'); " + SLEEP)
    assert (tmp_path / "page.log.1").read_text() == "before"
    stop(part)
    (tmp_path / "victim").write_text("kept")
    part.log.unlink()
    part.log.symlink_to(tmp_path / "victim")
    started(SLEEP)
    assert (tmp_path / "victim").read_text() == "kept"


def test_a_program_is_run_to_its_end(tmp_path, monkeypatch):
    run = partial(processes.run_program, folder=tmp_path, mark="m")
    assert run(program("print('done')"))
    assert (tmp_path / "page.log").read_text() == "done\n"
    assert not run(program("raise SystemExit(3)"))
    monkeypatch.setattr("flows.server.processes.TIMEOUT_SECONDS", 0.1)
    assert not run(program(SLEEP))
    assert processes.marked("m") == []


@pytest.mark.parametrize("is_orphaned", [False, True])
def test_all_processes_of_a_part_are_ended(started, is_orphaned):
    part = started(CHILDREN + SLEEP)
    until(lambda: len(part.log.read_text().splitlines()) == 3)
    children = [psutil.Process(int(pid)) for pid in part.log.read_text().split()]
    if is_orphaned:
        os.kill(part.pid, signal.SIGKILL)
        until(lambda: not processes.is_running(part))
    assert all(map(lives, children))
    stop(part)
    assert not processes.is_running(part)
    until(lambda: not any(map(lives, children)))


def test_a_part_that_does_not_hear_is_killed_after_the_grace(started):
    part = started(f"{STUBBORN}; {SLEEP}")
    until(lambda: "deaf" in part.log.read_text())
    begin = time.monotonic()
    stop(part, grace_seconds=0.5)
    assert time.monotonic() - begin >= 0.5
    assert not processes.is_running(part)


def test_others_are_left_alone(started):
    part = started(SLEEP)
    stop(part)
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    try:
        # As after a reboot: the number that was written down belongs to somebody else.
        reused = part.model_copy(update={"pid": stranger.pid, "created": part.created - 3600})
        # As an earlier version wrote down its database: whoever has no mark is not meant.
        former = reused.model_copy(update={"mark": "", "created": 0.0})
        for one in (reused, former, part.model_copy(update={"mark": part.mark[:-1]})):
            assert not processes.is_running(one)
            assert processes.marked(one.mark) == []
            stop(one, grace_seconds=0)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_part_that_ends_or_stays_silent_is_named_with_its_log(started):
    expected = {
        "raise SystemExit(3)": "ENDED: expected the page to start, found that it ended; {} says",
        SLEEP: "SILENT: expected the page to answer within 3 seconds, found no answer; {} may say",
    }
    for code, message in expected.items():
        part = started(code)
        with pytest.raises(ServerError) as caught:
            processes.wait_until_answers(part, lambda: False, timeout_seconds=3)
        assert str(caught.value) == f"SERVER_PART_{message.format(part.log)} why"
