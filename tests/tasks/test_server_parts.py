"""The parts of a local server: their settings, what is written down, and what is refused."""

import os
import socket
from functools import partial
from pathlib import Path

import psutil
import pytest

from flows.server import cluster as server_cluster
from flows.server import environment as server_environment
from flows.server import start as server_start
from flows.orchestrator import join_ready_server
from flows.orchestrator import start_server as start_own_server
from flows.server.parts import connection, join_server, start_server, stop_server
from flows.server.ports import HOST, free_port, page_port
from flows.server.processes import marked
from flows.server.record import Part, ServerError, ServerRecord, read_record, write_record
from privacy.errors import ConfigurationError
from storage.settings import Settings
from tasks.execution.runtime import safe_environment


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "home" / "server").mkdir(parents=True, mode=0o700)
    (tmp_path / "home").chmod(0o700)
    return Settings(home=tmp_path / "home", releases=tmp_path / "releases")


def part_of(settings, name, address="", *, lives=False):
    """Return a part whose process is this one, or is none."""
    me = psutil.Process()
    pid, created = (me.pid, me.create_time()) if lives else (2**22 + 1, 1.0)
    log = settings.home / "log"
    return Part(name=name, pid=pid, created=created, address=address, log=log, mark=f"gone/{name}")


def keep(settings, *parts, ready=True):
    write_record(settings.server_home, ServerRecord(mark="gone", parts=parts, ready=ready))


def test_parts_inherit_our_settings_as_absolute_and_nobody_elses(monkeypatch, tmp_path):
    monkeypatch.setenv("PREFECT_SERVER_API_HOST", "192.0.2.1")
    monkeypatch.setenv("DASK_DISTRIBUTED__DASHBOARD__LINK", "x")
    monkeypatch.setenv("CLUSTMIX_LEDGER_URL", "postgresql://stale")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("PREFECT_DEBUG_MODE", "true")
    settings = Settings(home=Path("here"), ledger_url="postgresql://name:word@db/l", offline=True)
    environment = server_environment.inherited_environment(settings)
    assert environment["LANG"] == "C.UTF-8"
    assert environment["CLUSTMIX_HOME"] == str(Path.cwd() / "here")
    assert environment["CLUSTMIX_LEDGER_URL"] == "postgresql://name:word@db/l"
    assert environment["CLUSTMIX_OFFLINE"] == "True"
    assert "CLUSTMIX_REQUESTER" not in environment
    foreign = {k for k in environment if k.startswith(("PREFECT", "DASK"))}
    assert foreign == {k for k in safe_environment() if k.startswith("PREFECT")}
    assert environment["PREFECT_DEBUG_MODE"] == "false"
    # What a part reads is what the command has read.
    monkeypatch.undo()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings
    # Certificates of a cluster of the operator's own are handed on.
    monkeypatch.setenv("DASK_CONFIG", "/etc/cluster.yaml")
    settings = Settings(dask_address="tls://cluster:8786")
    assert server_environment.inherited_environment(settings)["DASK_CONFIG"] == "/etc/cluster.yaml"


def test_the_orchestrator_listens_here_and_asks_for_a_password(tmp_path):
    tmp_path.chmod(0o700)
    find = partial(server_environment.orchestrator_environment, tmp_path, 4321)
    found = find("")
    assert found["PREFECT_SERVER_API_HOST"] == "127.0.0.1"
    password = server_environment.page_password(tmp_path)
    assert found["PREFECT_SERVER_API_AUTH_STRING"] == password
    assert found["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    assert found["PREFECT_SERVER_UI_API_URL"] == "/api"
    assert "*" not in found["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"]
    url = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
    assert found[url] == f"sqlite+aiosqlite:///{tmp_path / 'prefect' / 'prefect.db'}"
    word = server_environment.database_password(tmp_path)
    assert find("127.0.0.1:5432")[url] == (
        f"postgresql+asyncpg://clustmix:{word}@127.0.0.1:5432/prefect?ssl=disable"
    )


def test_a_port_that_was_asked_for_is_taken_or_refused():
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError) as caught:
            page_port(port)
    assert str(caught.value) == (
        f"SERVER_PORT_TAKEN: expected port {port} of 127.0.0.1 to be free, found that it cannot be "
        "used; choose another one, or none to be given one"
    )
    with pytest.raises(ServerError):
        page_port(70_000)


def test_gpus_get_a_worker_each_where_jax_can_use_them(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho GPU-a\necho GPU-b\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    told = []
    monkeypatch.setattr(server_cluster, "_CUDA_PLUGINS", ("json",))
    assert server_cluster.find_gpus(told.append) == ["GPU-a", "GPU-b"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, ")
    assert server_cluster.find_gpus(told.append) == ["1"]
    monkeypatch.setattr(server_cluster, "_CUDA_PLUGINS", ("no_such_plugin",))
    assert told == []
    assert server_cluster.find_gpus(told.append) == []
    assert told == ["no GPU worker: a GPU is here, but jax has no CUDA plugin"]
    program.write_text("#!/bin/sh\necho No devices; exit 9\n")
    assert server_cluster.find_gpus(told.append) == []
    assert len(told) == 1


def test_workers_offer_what_they_have_and_nothing_else(tmp_path):
    tmp_path.chmod(0o700)
    address = "tls://127.0.0.1:8786"
    for _ in range(2):  # certificates are made anew
        parts = server_cluster.cluster_parts(
            tmp_path, address, {"LC_ALL": "C"}, n_workers=2, gpus=["GPU-a"]
        )
    assert [part.name for part in parts] == ["scheduler", "cpu-workers", "gpu-worker-0"]
    scheduler, cpu, gpu = parts
    assert [part.address for part in parts] == [address, "", ""]
    assert scheduler.command[-3:] == ("--port", "8786", "--no-show")
    assert cpu.command[-4:] == ("--nworkers", "2", "--resources", "CPU=1")
    assert cpu.environment["JAX_PLATFORMS"] == "cpu"
    assert cpu.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert gpu.command[-2:] == ("--resources", "GPU=1")
    assert gpu.environment["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert "JAX_PLATFORMS" not in gpu.environment
    for part, role in ((scheduler, "scheduler"), (cpu, "worker"), (gpu, "worker")):
        assert part.command[part.command.index("--host") + 1] == "127.0.0.1"
        assert part.command[part.command.index("--dashboard-address") + 1] == "127.0.0.1:0"
        assert part.environment["LC_ALL"] == "C"
        assert part.environment["DASK_CONFIG"].endswith(f"{role}/dask.yaml")
    assert server_cluster.client_config(tmp_path).exists()


def test_without_a_server_there_is_no_connection(settings, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert connection(settings) is None
    keep(settings, part_of(settings, "orchestrator"))
    assert connection(settings) is None
    assert not join_server(settings)
    assert stop_server(settings) == ()
    assert read_record(settings.server_home) is None
    assert stop_server(settings) == ()
    assert stop_server(Settings(home=settings.home / "never")) == ()


def test_a_running_orchestrator_is_found_by_other_commands(settings, monkeypatch):
    page, scheduler, pages = "http://127.0.0.1:4321", "tls://127.0.0.1:1", "http://127.0.0.1:2"
    keep(
        settings,
        part_of(settings, "scheduler", scheduler),
        part_of(settings, "pages", pages),
        part_of(settings, "orchestrator", page, lives=True),
    )
    expected = {
        "PREFECT_API_URL": f"{page}/api",
        "PREFECT_API_AUTH_STRING": server_environment.page_password(settings.server_home),
        "PREFECT_UI_URL": page,
        "PREFECT_HOME": str(settings.server_home / "client"),
        "CLUSTMIX_DASK_ADDRESS": scheduler,
        "CLUSTMIX_RELEASES_URL": pages,
        "DASK_CONFIG": str(settings.server_home / "certificates" / "client" / "dask.yaml"),
    }
    assert connection(settings) == expected
    monkeypatch.setattr(os, "environ", {})
    assert join_server(settings)
    assert os.environ == expected
    os.environ["PREFECT_API_URL"] = "http://elsewhere/api"
    assert join_server(settings)
    assert os.environ["PREFECT_API_URL"] == "http://elsewhere/api"


def test_a_single_command_joins_the_server_once_it_is_ready(without_prefect, settings):
    page = part_of(settings, "orchestrator", "http://127.0.0.1:4321", lives=True)
    parts = part_of(settings, "scheduler", "tls://127.0.0.1:1", lives=True), page
    keep(settings, *parts, ready=False)
    assert not join_ready_server(settings)
    keep(settings, *parts)
    assert join_ready_server(settings)
    assert without_prefect["PREFECT_API_URL"] == "http://127.0.0.1:4321/api"
    password = server_environment.page_password(settings.server_home)
    assert without_prefect["PREFECT_API_AUTH_STRING"] == password
    assert "CLUSTMIX_DASK_ADDRESS" not in without_prefect
    assert start_own_server() is None  # one is named


@pytest.mark.parametrize("call", [start_server, stop_server, connection])
def test_a_damaged_record_is_refused(settings, call):
    record = settings.server_home / "parts.json"
    record.write_text("{}")
    with pytest.raises(ServerError) as caught:
        call(settings)
    assert caught.value.__context__ is None
    assert str(caught.value) == (
        f"SERVER_RECORD_INVALID: expected the record of the started parts in {record}, found "
        "something else; end the processes of the server by hand and delete the file"
    )


@pytest.mark.parametrize("call", [start_server, stop_server])
def test_an_open_folder_is_refused(settings, call):
    settings.server_home.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"^DIRECTORY_MODE: "):
        call(settings)


def test_a_start_that_fails_leaves_nothing(settings, monkeypatch):
    """The pages start; what comes next does not."""
    marks = []

    def fail(start):
        marks.append(start.record.mark)
        assert len(marked(start.record.mark)) == 1
        assert read_record(settings.server_home) == start.record
        raise ServerError("SERVER_DEPLOY_FAILED", "for this test")

    monkeypatch.setattr(server_start.Start, "_start_database", fail)
    monkeypatch.setattr(server_start.Start, "_start_cluster", lambda self, n_workers: 0)
    told = []
    with pytest.raises(ServerError, match="for this test"):
        start_server(settings, port=free_port(), log=told.append)
    assert told == ["ending what was started"]
    assert marked(marks[0]) == []
    assert read_record(settings.server_home) is None
    assert (settings.server_home / "pages.log").exists()
