"""Processes that outlive the command that started them, and end when they are told to."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flows.server.processes import (
    MARK,
    Part,
    ServerError,
    is_running,
    start_part,
    stop_marked,
    stop_part,
    wait_until_answers,
)

SLEEP = "import time; time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf')"


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Part]]:
    mark = os.urandom(8).hex()

    def start(code: str, name: str = "part") -> Part:
        command = [sys.executable, "-u", "-c", code]
        return start_part(
            name, command, environment={"PATH": os.defpath}, folder=tmp_path, mark=mark
        )

    yield start
    stop_marked(mark, grace_seconds=0)


def test_a_part_leads_a_session_and_writes_into_a_private_log(started, tmp_path) -> None:
    part = started("import os; print(os.getcwd(), 'is here'); " + SLEEP)
    assert is_running(part)
    assert os.getsid(part.pid) == part.pid
    until(lambda: "is here" in part.log.read_text())
    assert psutil.Process(part.pid).environ() == {"PATH": os.defpath, MARK: part.mark}
    assert part.log.read_text().startswith(str(tmp_path))
    assert stat.S_IMODE(part.log.stat().st_mode) == 0o600


def test_the_log_of_the_start_before_is_kept(started, tmp_path) -> None:
    first = started("print('first')")
    until(lambda: not is_running(first))
    started("print('second')")
    assert (tmp_path / "part.log.1").read_text() == "first\n"


def test_stop_ends_children_too_also_those_that_left_the_group(started) -> None:
    part = started(
        "import subprocess, sys\n"
        f"child = [sys.executable, '-c', {SLEEP!r}]\n"
        "print(subprocess.Popen(child).pid, subprocess.Popen(child, start_new_session=True).pid)\n"
        + SLEEP
    )
    until(lambda: len(part.log.read_text().split()) == 2)
    children = [psutil.Process(int(pid)) for pid in part.log.read_text().split()]
    assert all(child.is_running() for child in children)
    stop_part(part)
    assert not is_running(part)
    assert not any(child.is_running() and child.status() != "zombie" for child in children)


def test_orphans_of_a_part_that_was_killed_are_ended(started) -> None:
    part = started(
        "import subprocess, sys\n"
        f"print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid)\n" + SLEEP
    )
    until(lambda: part.log.read_text().strip())
    orphan = psutil.Process(int(part.log.read_text()))
    os.kill(part.pid, signal.SIGKILL)
    until(lambda: not is_running(part))
    assert orphan.is_running()
    stop_part(part)
    until(lambda: not orphan.is_running() or orphan.status() == "zombie")


def test_a_part_that_does_not_hear_is_killed_after_the_grace(started) -> None:
    part = started(f"{STUBBORN}; {SLEEP}")
    until(lambda: "deaf" in part.log.read_text())
    begin = time.monotonic()
    stop_part(part, grace_seconds=0.5)
    assert time.monotonic() - begin >= 0.5
    assert not is_running(part)


def test_another_process_of_the_same_number_is_left_alone(started) -> None:
    part = started(SLEEP)
    stop_part(part)
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    try:
        # As after a reboot: the number that was written down belongs to somebody else.
        reused = part.model_copy(update={"pid": stranger.pid, "created": part.created - 3600})
        assert not is_running(reused)
        stop_part(reused, grace_seconds=0)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_clock_that_was_set_does_not_lose_a_part(started) -> None:
    part = started("print('is here'); " + SLEEP)
    # A process that is only just becoming its program has no environment that could be read.
    until(lambda: "is here" in part.log.read_text())
    assert is_running(part.model_copy(update={"created": part.created - 3600}))


def test_a_part_that_ends_is_named_with_its_log(started) -> None:
    part = started("raise SystemExit(3)")
    with pytest.raises(ServerError) as caught:
        wait_until_answers(
            "the page",
            lambda: False,
            timeout_seconds=30,
            log=part.log,
            runs=lambda: is_running(part),
        )
    assert caught.value.code == "SERVER_PART_ENDED"
    assert caught.value.message == (
        f"expected the page to start, found that it ended; {part.log} says why"
    )


def test_a_part_that_stays_silent_is_named_with_its_log(tmp_path) -> None:
    def refused() -> bool:
        raise ConnectionRefusedError

    with pytest.raises(ServerError) as caught:
        wait_until_answers("the page", refused, timeout_seconds=0.2, log=tmp_path / "page.log")
    assert caught.value.code == "SERVER_PART_SILENT"
    assert caught.value.message == (
        "expected the page to answer within 0.2 seconds, found no answer; "
        f"{tmp_path / 'page.log'} may say why"
    )


def test_a_process_that_cannot_be_killed_is_reported(started, monkeypatch) -> None:
    part = started(SLEEP)
    monkeypatch.setattr("flows.server.processes._KILLED_SECONDS", 0.2)
    monkeypatch.setattr(psutil.Process, "kill", lambda self: None)
    monkeypatch.setattr(psutil.Process, "send_signal", lambda self, number: None)
    with pytest.raises(ServerError) as caught:
        stop_part(part, grace_seconds=0)
    monkeypatch.undo()
    assert caught.value.code == "SERVER_PART_STAYS"
    assert caught.value.message == (
        f"expected every process to end when it is killed, found that {part.pid} did not; see "
        "what holds it"
    )
