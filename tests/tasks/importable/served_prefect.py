"""A real Prefect server as a hospital runs it: SQLite, loopback, a password, CSRF protection."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

from prefect_database import put_database

from flows.server.ports import free_port, web_status
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
    give_up = time.monotonic() + 120
    while web_status(f"http://127.0.0.1:{port}/api/health") != 200:
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < give_up, "the server did not answer"
        time.sleep(0.2)
