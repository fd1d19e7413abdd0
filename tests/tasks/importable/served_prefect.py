"""A real Prefect server as a hospital runs it: SQLite, loopback, a password, CSRF protection."""

import base64
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

from prefect_database import put_database

from tasks.execution.runtime import safe_environment

PASSWORD = "operator:made-up"  # noqa: S105 -- of a server that lives as long as a test


def free_port():
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        _wait_until_it_answers(port, process)
        yield {
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_API_AUTH_STRING": PASSWORD,
        }
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _wait_until_it_answers(port, process):
    token = base64.b64encode(PASSWORD.encode()).decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/health", headers={"Authorization": f"Basic {token}"}
    )
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        assert process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(request, timeout=5):  # noqa: S310 -- loopback
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError("the server did not answer")
