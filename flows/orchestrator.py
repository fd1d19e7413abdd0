"""Prefect's server of a single command: started early, ready with the flow, gone with the command.

It starts in a process of its own while the command is still loading and checking, keeps its state
in memory, and needs no migration: its tables are made from Prefect's own models. It waits on a pipe
that the operating system closes with the command, however that ends: a server that outlives a
killed command would keep its standard output open for ever.
"""

from __future__ import annotations

import atexit
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from privacy.errors import ConfigurationError

# The server's process starts here too, and loads nothing that it does not need.
if TYPE_CHECKING:
    from prefect.server.database.interface import PrefectDBInterface

HOST = "127.0.0.1"

GRACE_SECONDS = 5.0
"""Time that the server has to stop by itself."""

START_SECONDS = 120.0
"""Time that the server has to start, on a busy machine."""


@contextmanager
def answering(port: int) -> Iterator[None]:
    """Wait until the own server answers (else PipelineError); no heartbeats in the block."""
    caller = http.client.HTTPConnection(HOST, port, timeout=START_SECONDS)
    status = None
    with suppress(OSError, http.client.HTTPException):
        caller.request("GET", "/api/health")
        status = caller.getresponse().status
    caller.close()
    if status != http.client.OK:
        from tasks.execution.runtime import PipelineError

        raise PipelineError(
            "orchestrator:NotReady",
            f"expected Prefect's server to answer within {START_SECONDS:g} seconds, found that it "
            "does not; look for what stops processes or loopback connections here",
        )
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    # Nobody waits for heartbeats; the thread that sends them would hold up the end of the flow.
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


def join_ready_server(folder: Path) -> bool:
    """Name the server in its folder to Prefect, if none is named; return whether there is one."""
    if _is_to_be_named() and folder.exists():
        from flows.local_server import connection

        quiet = {"PREFECT_LOGGING_LEVEL": "CRITICAL", "PREFECT_LOGGING_TO_API_ENABLED": "false"}
        named = {k: v for k, v in connection(folder).items() if k.startswith("PREFECT_")}
        os.environ.update(named and quiet | named)
    return "PREFECT_API_URL" in os.environ


def start_server() -> int | None:
    """Start Prefect's server for this process, unless ``PREFECT_API_URL`` names one.

    It ends with this process; calls to its loopback port, which is returned, wait until it can
    answer. Call this after `tasks.execution.runtime.configure_prefect` and before Prefect is
    imported, which then finds it. None if a server is named, or an imported Prefect will start one.
    """
    if not _is_to_be_named():
        return None
    with socket.create_server((HOST, 0)) as listener:
        port, descriptor = listener.getsockname()[1], listener.fileno()
        process = subprocess.Popen(  # noqa: S603 -- this interpreter, this module, a number
            [sys.executable, "-m", "flows.orchestrator", str(descriptor)],
            stdin=subprocess.PIPE,
            pass_fds=(descriptor,),
            env={
                **os.environ,
                "PREFECT_SERVER_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:///:memory:",
                "PREFECT_UI_ENABLED": "0",
                "PREFECT__SERVER_EPHEMERAL": "1",
                "PREFECT__SERVER_FINAL": "1",
            },
        )
    # Registered before Prefect is imported, whose exit handlers then run first and may call it.
    atexit.register(_end, process)
    os.environ["PREFECT_API_URL"] = f"http://{HOST}:{port}/api"
    return int(port)


def refuse_unsafe_orchestrator() -> None:
    """Refuse a worker whose settings let Prefect keep results or prints; the error names one."""
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    kept = {
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": settings.results.persist_by_default,
        "PREFECT_TASKS_DEFAULT_PERSIST_RESULT": bool(settings.tasks.default_persist_result),
        "PREFECT_LOGGING_LOG_PRINTS": settings.logging.log_prints,
        "PREFECT_DEBUG_MODE": settings.debug_mode,
    }
    for variable, found in kept.items():
        if found:
            raise ConfigurationError(
                "ORCHESTRATOR_UNSAFE",
                f"expected {variable}=false in the environment of the worker, found true: Prefect "
                "would keep what private steps return or print; start the worker anew without it",
            )


def _is_to_be_named() -> bool:
    return "PREFECT_API_URL" not in os.environ and "prefect" not in sys.modules


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # its state is in memory: there is nothing to finish
    process.wait()


def _stop_at_end_of_input() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_SECONDS)
    os._exit(1)


async def _create_tables(database: PrefectDBInterface) -> None:
    """Make Prefect's tables in an empty database, in place of its hundred migrations."""
    from prefect.server.database.orm_models import Base

    for table in Base.metadata.tables.values():
        by_name = {index.name: index for index in table.indexes}  # Prefect declares one twice
        table.indexes = set(by_name.values())
    engine = await database.engine()
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


def serve(descriptor: int) -> None:
    """Run the server on a listening socket until the standard input ends."""
    threading.Thread(target=_stop_at_end_of_input, daemon=True).start()

    import uvicorn
    from prefect.server.database.interface import PrefectDBInterface

    # Prefect has no setting for this. Its version is pinned, and the tests use these tables.
    PrefectDBInterface.create_db = _create_tables  # type: ignore[method-assign, assignment]
    application = "prefect.server.api.server:create_app"
    config = uvicorn.Config(application, factory=True, log_level="error", lifespan="on")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    serve(int(sys.argv[1]))
