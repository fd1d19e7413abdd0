"""The server of a single command: there in time, without a file, and gone with the command."""

import os
import subprocess
import sys

import psutil
import pytest

from flows.server import environment as server_environment
from flows.server.orchestrator import join_ready_server, start_server
from flows.server.parts import ORCHESTRATOR
from flows.server.record import Part, ServerRecord, write_record
from storage.settings import Settings

pytestmark = pytest.mark.integration


COMMAND = """
import sys
from pathlib import Path
from storage.settings import Settings
from flows.server.orchestrator import start_server
from tasks.execution.runtime import configure_prefect

configure_prefect(Settings(home=Path(sys.argv[1])))
server = start_server()
with server.answering():
    from prefect import flow

    flow(lambda: print("ran", flush=True), name="one")()
    assert "prefect.server.api.server" not in sys.modules  # it takes seconds to load
    sys.stdin.read()
"""


def test_it_serves_a_run_keeps_nothing_and_ends_with_a_killed_command(tmp_path):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "CLUSTMIX"))}
    command = psutil.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path / "home")],
        env=inherited,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with command:
        assert command.stdout.readline() == b"ran\n"
        (server,) = command.children()
        assert "flows.server.orchestrator" in server.cmdline()
        (listener,) = {
            one.laddr for one in server.net_connections("inet") if one.status == psutil.CONN_LISTEN
        }
        assert listener.ip == "127.0.0.1"
        command.kill()
    assert psutil.wait_procs([server], timeout=60)[1] == []
    assert not list(tmp_path.rglob("*.db*"))


def test_the_server_of_the_installation_is_joined_once_it_is_ready(without_prefect, tmp_path):
    settings = Settings(home=tmp_path, releases=tmp_path / "releases")
    settings.server_home.mkdir(mode=0o700)
    me = psutil.Process()
    part = Part(
        name=ORCHESTRATOR,
        pid=me.pid,
        created=me.create_time(),
        address="http://127.0.0.1:4321",
        log=tmp_path,
        mark="m",
    )
    scheduler = part.model_copy(update={"name": "scheduler", "address": "tls://127.0.0.1:1"})
    record = ServerRecord(mark="m", parts=(scheduler, part))
    write_record(settings.server_home, record)
    assert not join_ready_server(settings)
    write_record(settings.server_home, record.model_copy(update={"ready": True}))
    assert join_ready_server(settings)
    assert without_prefect["PREFECT_API_URL"] == "http://127.0.0.1:4321/api"
    password = server_environment.page_password(settings.server_home)
    assert without_prefect["PREFECT_API_AUTH_STRING"] == password
    assert "CLUSTMIX_DASK_ADDRESS" not in without_prefect
    assert start_server() is None  # one is named
