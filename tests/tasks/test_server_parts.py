import os
import re
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
from prefect.settings.models.server.services import ServerServicesDBVacuumSettings

from flows import local_server, supervisor
from flows.local_server import (
    PASSWORD_FILE,
    Addresses,
    connection,
    find_gpus,
    free_port,
    join_server,
    kept_secret,
    part_states,
    parts_environment,
    read_addresses,
    start_server,
    stop_server,
)
from flows.orchestrator import join_ready_server
from flows.orchestrator import start_server as start_own_server
from flows.supervisor import ServerError, Supervisor
from privacy.errors import ConfigurationError
from storage.files.documents import write_kept
from storage.settings import Settings
from tasks.execution.runtime import safe_environment

ADDRESSES = Addresses(
    orchestrator="http://127.0.0.1:4321",
    scheduler="tls://127.0.0.1:1",
    pages="http://127.0.0.1:2",
    ready=True,
)


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "home" / "server").mkdir(parents=True, mode=0o700)
    (tmp_path / "home").chmod(0o700)
    return Settings(home=tmp_path / "home", releases=tmp_path / "releases")


@pytest.fixture
def supervised(monkeypatch):
    monkeypatch.setattr(Supervisor, "states", lambda self: ("running",))


def test_parts_inherit_our_settings_as_absolute_and_nobody_elses(monkeypatch, tmp_path):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_PASSWORD", "stale")
    monkeypatch.setenv("DASK_DISTRIBUTED__DASHBOARD__LINK", "x")
    monkeypatch.setenv("CLUSTMIX_LEDGER_URL", "postgresql://stale")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("PREFECT_DEBUG_MODE", "true")
    settings = Settings(
        home=Path("here"),
        ledger_url="postgresql://name:word@db/l",
        offline=True,
        dask_address=ADDRESSES.scheduler,
        releases_url=ADDRESSES.pages,
    )
    environment = parts_environment(
        settings.model_copy(update={"dask_address": None}), tmp_path, ADDRESSES
    )
    assert environment["LANG"] == "C.UTF-8"
    assert environment["CLUSTMIX_HOME"] == str(Path.cwd() / "here")
    assert environment["CLUSTMIX_LEDGER_URL"] == "postgresql://name:word@db/l"
    assert "CLUSTMIX_REQUESTER" not in environment
    assert not {"PREFECT_SERVER_DATABASE_PASSWORD", "DASK_DISTRIBUTED__DASHBOARD__LINK"} & {
        *environment
    }
    assert environment["PREFECT_DEBUG_MODE"] == "false"
    # What a part reads is what the command has read, and the addresses of the other parts.
    monkeypatch.undo()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings
    # Certificates of a cluster of the operator's own are handed on.
    monkeypatch.setenv("DASK_CONFIG", "/etc/cluster.yaml")
    alone = ADDRESSES.model_copy(update={"scheduler": ""})
    assert parts_environment(settings, tmp_path, alone)["DASK_CONFIG"] == "/etc/cluster.yaml"


def test_the_orchestrator_listens_here_and_asks_for_a_password(tmp_path):
    tmp_path.chmod(0o700)
    found = parts_environment(Settings(), tmp_path, ADDRESSES)
    assert safe_environment().items() <= found.items()
    assert found["PREFECT_SERVER_API_HOST"] == "127.0.0.1"
    assert found["PREFECT_SERVER_API_PORT"] == "4321"
    assert found["PREFECT_SERVER_API_AUTH_STRING"] == kept_secret(tmp_path, PASSWORD_FILE)
    assert found["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    assert "*" not in found["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"]


def test_the_orchestrator_forgets_old_runs(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    for name, value in parts_environment(Settings(), tmp_path, ADDRESSES).items():
        monkeypatch.setenv(name, value)
    vacuum = ServerServicesDBVacuumSettings()
    assert vacuum.enabled_vacuum_types == {"events", "flow_runs", "orphans"}
    assert vacuum.retention_period == timedelta(days=90)


def test_files_of_killed_runs_are_below_the_server_and_end_with_it(settings, monkeypatch):
    folder = settings.server_home
    left = Path(parts_environment(settings, folder, ADDRESSES)["TMPDIR"]) / "prefect" / "workspace"
    assert left.is_relative_to(folder)
    monkeypatch.setattr(local_server, "parts_environment", mock.Mock(side_effect=KeyError))
    for purge in (lambda: stop_server(folder), lambda: start_server(settings)):
        left.parent.mkdir(parents=True)
        left.write_text("password")
        with suppress(KeyError):
            purge()
        assert not left.parent.parent.exists()


def test_parts_listen_on_the_loopback_interface_and_no_secret_is_on_a_command_line(tmp_path):
    def configuration(**values):
        with mock.patch.object(supervisor.subprocess, "run", side_effect=KeyError):
            with suppress(KeyError):
                Supervisor(tmp_path).launch({"PASSWORD": "zebra"}, **values)
        return (tmp_path / "supervisord.conf").read_text()

    values = ADDRESSES.model_dump(exclude={"ready"})
    text = configuration(**values, n_workers=2, gpus=["GPU-a", "GPU-b"])
    assert re.findall(r"program:(.*)\]", text) == [
        *("scheduler", "cpu-workers", "gpu-worker-0", "gpu-worker-1", "pages", "orchestrator"),
        *("private-worker", "public-worker", "watcher"),
    ]
    assert "inet" not in text
    assert "zebra" not in text
    dask = re.findall(r"^command = .* -m (?:dask|uvicorn) .*", text, re.M)
    assert len(dask) == 6
    assert all("--host 127.0.0.1 " in command for command in dask)
    assert 'JAX_PLATFORMS="cpu",CUDA_VISIBLE_DEVICES=""' in text
    assert "--nworkers 2 --resources CPU=1" in text
    assert text.count("--resources GPU=1") == 2
    few = configuration(**values | {"scheduler": "", "pages": ""}, n_workers=2, gpus=[])
    assert re.findall(r"program:(.*)\]", few)[0] == "orchestrator"


def test_gpus_get_a_worker_each_where_jax_can_use_them(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho GPU-a\necho GPU-b\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    told = []
    monkeypatch.setattr(local_server, "_CUDA_PLUGINS", ("json",))
    assert find_gpus(told.append) == ["GPU-a", "GPU-b"]
    monkeypatch.setattr(local_server, "_CUDA_PLUGINS", ("no_such_plugin",))
    assert told == []
    assert find_gpus(told.append) == []
    assert told == ["no GPU worker: a GPU is here, but jax has no CUDA plugin"]


def test_without_a_server_there_is_no_connection(settings, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    folder = settings.server_home
    assert connection(folder) == {}
    write_kept(folder / "addresses.json", ADDRESSES)
    assert connection(folder) == {}
    assert not join_server(folder)
    with pytest.raises(ServerError, match=r"^SERVER_UNSUPERVISED: "):
        part_states(folder)
    for _ in range(2):
        assert stop_server(folder) == ()
        assert read_addresses(folder) is None
    assert stop_server(settings.home / "never") == ()
    assert part_states(settings.home / "never") == ()


def test_a_running_orchestrator_is_found_by_other_commands(settings, monkeypatch, supervised):
    folder = settings.server_home
    write_kept(folder / "addresses.json", ADDRESSES)
    expected = {
        "PREFECT_API_URL": "http://127.0.0.1:4321/api",
        "PREFECT_API_AUTH_STRING": kept_secret(folder, PASSWORD_FILE),
        "PREFECT_UI_URL": "http://127.0.0.1:4321",
        "PREFECT_HOME": str(folder / "client"),
        "CLUSTMIX_DASK_ADDRESS": "tls://127.0.0.1:1",
        "CLUSTMIX_RELEASES_URL": "http://127.0.0.1:2",
        "DASK_CONFIG": str(folder / "certificates" / "client" / "dask.yaml"),
    }
    assert connection(folder) == expected
    monkeypatch.setattr(os, "environ", {})
    assert join_server(folder)
    assert os.environ == expected
    os.environ["PREFECT_API_URL"] = "http://elsewhere/api"
    assert join_server(folder)
    assert os.environ["PREFECT_API_URL"] == "http://elsewhere/api"
    # And a second start changes nothing.
    assert start_server(settings) == (ADDRESSES, False)


def test_a_single_command_joins_the_server_once_it_is_ready(without_prefect, settings, supervised):
    folder = settings.server_home
    write_kept(folder / "addresses.json", ADDRESSES.model_copy(update={"ready": False}))
    assert not join_ready_server(folder)
    write_kept(folder / "addresses.json", ADDRESSES)
    assert join_ready_server(folder)
    assert without_prefect["PREFECT_API_URL"] == "http://127.0.0.1:4321/api"
    assert without_prefect["PREFECT_API_AUTH_STRING"] == kept_secret(folder, PASSWORD_FILE)
    assert "CLUSTMIX_DASK_ADDRESS" not in without_prefect
    assert start_own_server() is None  # one is named


def test_damaged_addresses_and_an_open_folder_are_refused(settings):
    folder = settings.server_home
    path = folder / "addresses.json"
    path.write_text("{}")
    calls = (lambda: start_server(settings), lambda: stop_server(folder))
    for call in (*calls, lambda: connection(folder)):
        with pytest.raises(ServerError) as caught:
            call()
        assert str(caught.value).startswith("SERVER_RECORD_INVALID: ")
    folder.chmod(0o755)
    for call in calls:
        with pytest.raises(ConfigurationError, match=r"^DIRECTORY_MODE: "):
            call()


@pytest.mark.integration
def test_a_start_that_fails_leaves_nothing(settings, monkeypatch):
    """The pages start and answer, the orchestrator ends at once."""
    code = "flows.pages:nothing"
    changed = local_server.Supervisor.launch

    def launch(self, environment, **values):
        changed(self, environment, **values)
        assert read_addresses(settings.server_home).ready is False

    template = local_server.Path(local_server.__file__).with_name("supervisord.conf")
    broken = settings.home / "template"
    broken.write_text(template.read_text("utf-8").replace("flows.pages:orchestrator_page", code))
    monkeypatch.setattr("flows.supervisor._TEMPLATE", broken)
    monkeypatch.setattr(local_server.Supervisor, "launch", launch)
    told = []
    alone = settings.model_copy(update={"dask_address": "tls://cluster:1"})
    with pytest.raises(ServerError, match=r"^SERVER_PART_FAILED: .* orchestrator to answer, found"):
        start_server(alone, port=free_port(), log=told.append)
    assert told[-1] == "ending what was started"
    assert Supervisor(settings.server_home)._processes() == []
    assert read_addresses(settings.server_home) is None
    assert (settings.server_home / "pages.log").exists()
