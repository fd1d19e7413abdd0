"""supervisord: it starts a part of a server again that ended, and ends all when asked to."""

import os
import signal
import stat
import subprocess
import sys
import time

import psutil
import pytest
from waiting import until

from flows import supervisor as module
from flows.server_environment import Addresses
from flows.supervisor import MARK, ServerError, Supervisor

VALUES = {
    "addresses": Addresses(orchestrator="http://127.0.0.1:4", pages="http://127.0.0.1:5"),
    "database": ("postgres", "-D", "/a b"),
    "n_workers": 2,
    "gpus": ["GPU-a", "GPU-b"],
    "certificates": "/certificates",
    "orchestrator": {"PASSWORD": "a,b%c"},
    "client": {"CALLER": ""},
    "worker": {},
}
"""Everything that the template of the parts asks for."""

SLEEP = "import time; time.sleep(600)"
SILENT = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); {SLEEP}"
PARENT = (
    "import subprocess, sys; "
    f"print(subprocess.Popen([sys.executable, '-c', '{SLEEP}'], start_new_session=True).pid); "
    f"{SLEEP}"
)
PARTS = {"sleeper": SLEEP, "silent": SILENT, "parent": PARENT}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return a supervisor that runs, whose parts are those above."""
    tmp_path.chmod(0o700)
    head, _, _ = module._TEMPLATE.read_text("utf-8").partition("{% if database %}")
    parts = "".join(
        f'{{{{ part("{name}", {{"WHO": "{name}"}}) -}}}}\n'
        f"command = {{{{ [python, '-u', '-c', codes.{name}] | words }}}}\n"
        for name in PARTS
    )
    (tmp_path / "template").write_text(head + parts, encoding="utf-8")
    monkeypatch.setattr(module, "_TEMPLATE", tmp_path / "template")
    monkeypatch.setattr(module, "STOP_SECONDS", 1)
    supervisor = Supervisor(tmp_path)
    supervisor.launch({"PATH": os.defpath}, codes={k: v for k, v in PARTS.items()})
    yield supervisor
    supervisor.stop()


def state(supervisor, name):
    return next(part for part in supervisor.states() if part.name == name)


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def of(tmp_path):
    return [process for process, _ in Supervisor(tmp_path)._processes()]


@pytest.mark.integration
def test_parts_inherit_little_and_are_started_again(kept, tmp_path):
    first = until(lambda: state(kept, "sleeper").pid)
    environment = psutil.Process(first).environ()
    assert environment["WHO"] == "sleeper"
    assert {k for k in environment if not k.startswith(("SUPERVISOR_", "LC_"))} == {
        "PATH",
        "WHO",
        MARK,
    }
    assert stat.S_IMODE((tmp_path / "supervisor.sock").stat().st_mode) == 0o600
    for path in tmp_path.glob("*.*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    os.kill(first, signal.SIGKILL)
    again = until(lambda: (found := state(kept, "sleeper")).pid not in (0, first) and found)
    assert (again.runs, again.restarts) == (True, 1)
    assert state(kept, "silent").restarts == 0


@pytest.mark.integration
@pytest.mark.parametrize("is_orphaned", [False, True])
def test_stop_ends_everything_even_without_supervisord(kept, tmp_path, is_orphaned):
    until(lambda: "deaf" in (tmp_path / "silent.log").read_text())
    until(lambda: (tmp_path / "parent.log").read_text().strip())
    child = int((tmp_path / "parent.log").read_text())
    pids = [part.pid for part in kept.states()]
    if is_orphaned:
        os.kill(int((tmp_path / "supervisord.pid").read_text()), signal.SIGKILL)
        until(lambda: kept.states() == ())
    assert all(map(lives, [child, *pids]))
    kept.stop(first=["parent"])
    assert not any(map(lives, [child, *pids]))
    assert of(tmp_path) == []
    assert not (tmp_path / "supervisord.conf").exists()
    kept.stop()


@pytest.mark.integration
def test_others_are_left_alone(tmp_path):
    environment = {**os.environ, MARK: f"{tmp_path}-other"}
    stranger = subprocess.Popen([sys.executable, "-c", SLEEP], env=environment)
    try:
        begin = time.monotonic()
        Supervisor(tmp_path).stop()
        assert time.monotonic() - begin < 10
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def configuration(folder="/srv/home/server", **values):
    return module._template().render(
        folder=folder, python="/usr/bin/python", is_root=False, stop_seconds=15, **VALUES | values
    )


def section(text, name):
    return text.partition(f"[program:{name}]")[2].partition("[program:")[0]


def test_configuration_holds_every_part_and_no_secret_on_a_command_line():
    addresses = VALUES["addresses"].model_copy(update={"scheduler": "tls://127.0.0.1:8786"})
    text = configuration("/srv/50% of/server", addresses=addresses)
    names = [line[9:-1] for line in text.splitlines() if line.startswith("[program:")]
    assert names == [
        *("database", "scheduler", "cpu-workers", "gpu-worker-0", "gpu-worker-1", "pages"),
        *("orchestrator", "private-worker", "public-worker", "watcher"),
    ]
    assert "inet" not in text
    assert 'environment = PASSWORD="a,b%%c"' in section(text, "orchestrator")
    assert "command = postgres -D '/a b'" in section(text, "database")
    assert "directory = /srv/50%% of/server" in section(text, "watcher")
    for name in ("scheduler", "cpu-workers", "gpu-worker-0"):
        assert "--host 127.0.0.1 --dashboard-address 127.0.0.1:0" in section(text, name)
    assert 'CUDA_VISIBLE_DEVICES="",' not in section(text, "gpu-worker-0")
    assert 'JAX_PLATFORMS="cpu",CUDA_VISIBLE_DEVICES=""' in section(text, "cpu-workers")
    assert "--nworkers 2 --resources CPU=1" in section(text, "cpu-workers")
    assert "--resources GPU=1" in section(text, "gpu-worker-1")
    few = configuration(database=())
    assert "[program:database]" not in few
    assert "[program:scheduler]" not in few


@pytest.mark.parametrize(
    "values",
    [
        {"folder": "/srv/new\nline"},
        {"folder": "/srv/home ;comment"},
        {"client": {"A": 'quoted"'}},
        {"client": {"A": "quoted'"}},
    ],
)
def test_text_that_the_configuration_cannot_hold(values):
    with pytest.raises(ServerError, match=r"^SERVER_TEXT_UNUSABLE: expected folders and addresses"):
        configuration(**values)


def test_a_home_of_a_long_path_is_refused(tmp_path):
    folder = tmp_path / ("x" * 100)
    with pytest.raises(ServerError, match=r"^SERVER_PATH_LONG: expected a path of at most 100 byt"):
        Supervisor(folder).launch({})
