"""Prefect's server beside a single run, made to end with the process that started it.

Prefect stops it when its process exits. A process that is killed exits without that: its server
would stay for ever, hold the database and keep the standard output of the dead command open. Here
the server waits on a pipe that the operating system closes with the process, however it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

from privacy.errors import ConfigurationError

GRACE_SECONDS = 5.0
"""How long the server may take to stop by itself."""


def end_server_with_this_process() -> None:
    """Let the server that Prefect starts in this process end with it; of no effect on others."""
    from prefect.server.api.server import SubprocessASGIServer

    # The class has no setting for how it starts its process. Prefect is pinned, and a test kills a
    # run and looks for its server.
    SubprocessASGIServer._run_uvicorn_command = _start  # type: ignore[assignment, method-assign]


def refuse_unsafe_orchestrator() -> None:
    """Refuse to run where Prefect would keep results or what is printed.

    Whoever starts a worker decides about its settings; a run that is about to read private rows
    looks at them itself.

    Raises
    ------
    ConfigurationError
        Naming the variable.
    """
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


def _start(server: Any) -> subprocess.Popen[bytes]:
    from prefect.settings import get_current_settings

    return subprocess.Popen(  # noqa: S603 -- this interpreter, this module, a number
        [sys.executable, "-m", "tasks.orchestrator", str(server.port)],
        stdin=subprocess.PIPE,
        env={
            **os.environ,
            "PREFECT_UI_ENABLED": "0",
            "PREFECT__SERVER_EPHEMERAL": "1",
            "PREFECT__SERVER_FINAL": "1",
            **get_current_settings().to_environment_variables(exclude_unset=True),
        },
    )


def _stop_at_end_of_input() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_SECONDS)
    os._exit(1)


def serve(port: int) -> None:
    """Run the server on the loopback interface until the standard input ends."""
    import uvicorn

    threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=port,
        log_level="error",
        lifespan="on",
    )


if __name__ == "__main__":
    serve(int(sys.argv[1]))
