"""A real Prefect server as a hospital runs it: SQLite, loopback, a password, CSRF protection."""

import os
import subprocess
import sys
from contextlib import contextmanager

from prefect_database import put_database
from waiting import until

from flows.local_server import free_port, web_status
from tasks.execution.runtime import safe_environment

PASSWORD = "operator:made-up"  # noqa: S105 -- of a server that lives as long as a test


@contextmanager
def served_prefect(folder, *, port=None):
    port = port or free_port()
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT")}
    environment = {
        **inherited,
        **safe_environment(),
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_API_AUTH_STRING": PASSWORD,
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_UI_ENABLED": "false",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
    if not (folder / "prefect.db").exists():
        put_database(folder)
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}/api"
        health = f"{address}/health"
        until(lambda: process.poll() is not None or web_status(health) == 200, seconds=120)
        assert process.poll() is None, "the server ended"
        yield {"PREFECT_API_URL": address, "PREFECT_API_AUTH_STRING": PASSWORD}
    finally:
        process.terminate()
        process.wait(60)
