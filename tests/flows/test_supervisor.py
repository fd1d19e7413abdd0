import os
import signal
import stat
import subprocess
import sys

import psutil
import pytest
from waiting import until

from flows import supervisor as module
from flows.supervisor import MARK, ServerError, Supervisor

SLEEP = "import time; time.sleep(600)"
SILENT = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); {SLEEP}"
PARENT = (
    "import subprocess, sys; "
    f"print(subprocess.Popen([sys.executable, '-c', '{SLEEP}'], start_new_session=True).pid); "
    f"{SLEEP}"
)
PARTS = {"sleeper": SLEEP, "silent": SILENT, "parent": PARENT}
VALUES = {"orchestrator": "http://127.0.0.1:4", "pages": "", "scheduler": "", "gpus": ["GPU-a"]}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return a supervisor that runs, whose parts are those above, in a folder with a blank."""
    folder = tmp_path / "a ;b"
    folder.mkdir(mode=0o700)
    head, _, _ = module._TEMPLATE.read_text("utf-8").partition("{% if scheduler %}")
    parts = "".join(
        f"{{{{ part('{name}', 'WHO=\"{name}\"') -}}}}\n"
        f'command = {{{{ python }}}} -u -c "{code}"\n'
        for name, code in PARTS.items()
    )
    (tmp_path / "template").write_text(head + parts, encoding="utf-8")
    monkeypatch.setattr(module, "_TEMPLATE", tmp_path / "template")
    monkeypatch.setattr(module, "STOP_SECONDS", 1)
    supervisor = Supervisor(folder)
    supervisor.launch({"PATH": os.defpath}, **VALUES)
    yield supervisor
    supervisor.stop()


def state(supervisor, name):
    return next(part for part in supervisor.states() if part.name == name)


def lives(pid):
    return psutil.pid_exists(pid) and module._lives(psutil.Process(pid))


@pytest.mark.integration
def test_parts_inherit_little_and_are_started_again(kept):
    first = until(lambda: state(kept, "sleeper").pid)
    # Before its program begins a child has the environment of its parent.
    environment = until(lambda: "WHO" in (own := psutil.Process(first).environ()) and own)
    assert environment["WHO"] == "sleeper"
    inherited = {k for k in environment if not k.startswith(("SUPERVISOR_", "LC_"))}
    assert inherited == {"PATH", "WHO", "SERVER_PYTHON", MARK}
    for path in kept._folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    os.kill(first, signal.SIGKILL)
    again = until(lambda: (found := state(kept, "sleeper")).pid not in (0, first) and found)
    assert (again.runs, again.restarts) == (True, 1)
    assert state(kept, "silent").restarts == 0


@pytest.mark.integration
@pytest.mark.parametrize("is_orphaned", [False, True])
def test_stop_ends_everything_of_its_own_even_without_supervisord(kept, is_orphaned):
    until(lambda: "deaf" in (kept._folder / "silent.log").read_text())
    until(lambda: (kept._folder / "parent.log").read_text().strip())
    child = int((kept._folder / "parent.log").read_text())
    pids = [part.pid for part in kept.states()]
    if is_orphaned:
        os.kill(int((kept._folder / "supervisord.pid").read_text()), signal.SIGKILL)
        until(lambda: kept.states() == ())
    assert all(map(lives, [child, *pids]))
    environment = {**os.environ, MARK: f"{kept._folder}-other"}
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP], env=environment)
    try:
        kept.stop(first=["parent"])
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert not any(map(lives, [child, *pids]))
    assert not (kept._folder / "supervisord.conf").exists()


@pytest.mark.integration
def test_a_supervisor_that_does_not_answer_is_ended(kept, monkeypatch):
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.2)
    pid = int((kept._folder / "supervisord.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    assert kept.states() == ()
    kept.stop()
    assert not lives(pid)


def test_a_home_of_a_long_path_is_refused(tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    with pytest.raises(ServerError, match=r"^SERVER_SUPERVISOR_FAILED: .* path too long"):
        Supervisor(folder).launch({}, **VALUES)
