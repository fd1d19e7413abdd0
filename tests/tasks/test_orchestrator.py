import os
import subprocess
import sys

import psutil
import pytest

COMMAND = """
import sys
from pathlib import Path
from storage.settings import Settings
from flows.orchestrator import answering, start_server
from tasks.execution.runtime import configure_prefect

configure_prefect(Settings(home=Path(sys.argv[1])))
with answering(start_server()):
    from prefect import flow

    flow(lambda: print("ran", flush=True), name="one")()
    assert "prefect.server.api.server" not in sys.modules  # it takes seconds to load
    sys.stdin.read()
"""


@pytest.mark.integration
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
        assert "flows.orchestrator" in server.cmdline()
        (listener,) = {
            one.laddr for one in server.net_connections("inet") if one.status == psutil.CONN_LISTEN
        }
        assert listener.ip == "127.0.0.1"
        command.kill()
    assert psutil.wait_procs([server], timeout=60)[1] == []
    assert not list(tmp_path.rglob("*.db*"))
