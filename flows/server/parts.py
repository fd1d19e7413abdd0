"""A whole installation on one machine: database, orchestrator, cluster, workers, watcher, pages.

Every part is a process of its own on the loopback interface. What was started is written down
before and while it starts, so that `stop_server` ends exactly that.
"""

import os
from collections.abc import Callable
from functools import partial

from flows.server import environment
from flows.server.database import DATABASE, Postgres, find_postgres
from flows.server.environment import ORCHESTRATOR
from flows.server.processes import is_running, marked, stop_processes
from flows.server.record import ServerError, ServerRecord, read_record, remove_record
from flows.server.start import Start
from storage.files.private import ensure_private_directory, folder_locked
from storage.files.workspace import forbid_core_dumps
from storage.installation import installation_id
from storage.settings import Settings


def connection(settings: Settings) -> dict[str, str] | None:
    """Return the variables of the running server, to be set before Prefect and Dask; else None."""
    record = read_record(settings.server_home)
    if record is None:
        return None
    if not any(part.name == ORCHESTRATOR and is_running(part) for part in record.parts):
        return None
    return environment.client_environment(settings.server_home, record)


def join_server(settings: Settings) -> bool:
    """Let this process call the running server, unless ``PREFECT_API_URL`` names another one.

    Prefect and Dask must not be imported before, and settings are to be read again afterwards: the
    server adds some. Returns whether there is a server to call, of either kind.
    """
    if "PREFECT_API_URL" not in os.environ:
        for name, value in (connection(settings) or {}).items():
            os.environ.setdefault(name, value)
    return "PREFECT_API_URL" in os.environ


def start_server(
    settings: Settings,
    *,
    port: int | None = None,
    n_workers: int | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> tuple[ServerRecord, bool]:
    """Start every part and wait until each answers; where the server runs, change nothing.

    The port is that of the page, see `flows.server.ports.page_port`; `n_workers` of the cluster are
    by default the number in the settings, at most one per core; `log` is told what goes on. Returns
    the record of what runs, and False where it ran already.

    It is a ServerError if a part does not start, in which case none is left, or if a part of an
    earlier start is missing while others run.
    """
    folder = ensure_private_directory(settings.server_home)
    with folder_locked(folder):
        record = read_record(folder)
        if record is not None:
            ended = [part.name for part in record.parts if not is_running(part)]
            if record.ready and not ended:
                return record, False
            if record.ready and len(ended) < len(record.parts):
                raise ServerError(
                    "SERVER_INCOMPLETE",
                    f"expected all parts of the server to run, found that {', '.join(ended)} "
                    f"ended; the logs in {folder} say why: stop the server, then start it again",
                )
            # Of a machine that went down, or of a start that was killed.
            _stop(settings, record)
        forbid_core_dumps()
        start = Start(settings, _postgres(settings), log)
        try:
            start.run(port, n_workers)
        except BaseException:
            log("ending what was started")
            _stop(settings, start.record)
            raise
        return start.record, True


def stop_server(settings: Settings) -> tuple[str, ...]:
    """End every process of the server (else ServerError), the last first; return the names."""
    folder = settings.server_home
    if not folder.exists():
        return ()
    with folder_locked(ensure_private_directory(folder)):
        record = read_record(folder)
        if record is None:
            return ()
        running = tuple(part.name for part in record.parts if is_running(part))
        _stop(settings, record)
        return running


def _postgres(settings: Settings) -> Postgres | str:
    return find_postgres(settings.server_home, installation_id(settings.home))


def _stop(settings: Settings, record: ServerRecord) -> None:
    postgres = _postgres(settings)
    for part in reversed(record.parts):
        if part.name == DATABASE and isinstance(postgres, Postgres):
            stop_processes(postgres.processes)
        stop_processes(partial(marked, part.mark))
    # What was started and not yet written down when the start was killed.
    stop_processes(partial(marked, record.mark))
    remove_record(settings.server_home)
