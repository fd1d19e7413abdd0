"""A whole installation on one machine: database, orchestrator, cluster, workers, watcher, pages.

Every part is a process of its own on the loopback interface. What was started is written down
before and while it starts, so that `stop_server` ends exactly that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from flows.server import cluster as server_cluster
from flows.server import environment as server_environment
from flows.server.caller import ServerCaller
from flows.server.database import PostgresServer, find_postgres, postgres_server
from flows.server.ports import HOST, accepts_calls, ask, free_port, page_port, port_of
from flows.server.processes import (
    Part,
    ServerError,
    is_running,
    start_part,
    stop_marked,
    stop_part,
    wait_until_answers,
)
from flows.server.record import ServerRecord, read_record, remove_record, write_record
from storage.files.private import ensure_private_directory, folder_locked
from storage.files.workspace import forbid_core_dumps
from storage.installation import installation_id
from storage.settings import Settings

POOLS = ("private", "public")
DATABASE = "database"
ORCHESTRATOR = "orchestrator"
PAGES = "pages"
WATCHER = "watcher"

_TIMEOUT_SECONDS = 180.0
"""For one part, on a busy machine."""


def connection(settings: Settings) -> dict[str, str] | None:
    """Return the variables with which a command finds the running server of this installation.

    Parameters
    ----------
    settings
        Settings of the command.

    Returns
    -------
    dict or None
        ``PREFECT_API_URL``, ``PREFECT_API_AUTH_STRING`` and others, to be set before Prefect and
        Dask are imported; None where no server runs.
    """
    record = read_record(settings.server_home)
    if record is None:
        return None
    if not any(part.name == ORCHESTRATOR and is_running(part) for part in record.parts):
        return None
    return _client_environment(settings, record)


def join_server(settings: Settings) -> bool:
    """Let this process call the running server, unless ``PREFECT_API_URL`` names another one.

    Parameters
    ----------
    settings
        Settings of the command. Those that the server adds are in the environment afterwards: read
        them again.

    Returns
    -------
    bool
        Whether there is a server to call, of either kind. Prefect and Dask must not be imported
        before.
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
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[ServerRecord, bool]:
    """Start every part and wait until each answers; where the server runs, change nothing.

    Parameters
    ----------
    settings
        Settings of the installation, which the parts take over.
    port
        Port of the page, see `flows.server.ports.page_port`.
    n_workers
        CPU workers of the cluster; by default the number in the settings, at most one per core.
    tell
        Is told in one line what goes on.

    Returns
    -------
    record : ServerRecord
        What runs.
    started : bool
        False where it ran already.

    Raises
    ------
    ServerError
        If a part does not start, in which case none is left, or if a part of an earlier start is
        missing while others run.
    ConfigurationError
        If the private folder is open to others, or the cluster is unsafe.
    """
    folder = ensure_private_directory(settings.server_home)
    with folder_locked(folder):
        record = read_record(folder)
        if record is not None:
            missing = [part.name for part in record.parts if not _runs(settings, part)]
            if record.ready and not missing:
                return record, False
            if record.ready and len(missing) < len(record.parts):
                raise ServerError(
                    "SERVER_INCOMPLETE",
                    f"expected all parts of the server to run, found that {', '.join(missing)} "
                    f"ended; the logs in {folder} say why: stop the server, then start it again",
                )
            # Of a machine that went down, or of a start that was killed.
            _stop(settings, record)
        forbid_core_dumps()
        start = _Start(settings, folder, tell)
        try:
            start.run(port, n_workers)
        except BaseException:
            tell("ending what was started")
            _stop(settings, start.record)
            raise
        return start.record, True


def stop_server(settings: Settings) -> tuple[str, ...]:
    """End every process of the server of this installation, the last started first.

    Parameters
    ----------
    settings
        Settings of the installation.

    Returns
    -------
    tuple of str
        Names of the parts that ran; empty where none did.

    Raises
    ------
    ServerError
        If a process cannot be ended.
    """
    folder = settings.server_home
    if not folder.exists():
        return ()
    with folder_locked(ensure_private_directory(folder)):
        record = read_record(folder)
        if record is None:
            return ()
        running = tuple(part.name for part in record.parts if _runs(settings, part))
        _stop(settings, record)
        return running


class _Start:
    """One start of the server; its record grows with the parts."""

    def __init__(self, settings: Settings, folder: Path, tell: Callable[[str], None]) -> None:
        self._settings = settings
        self._folder = folder
        self._tell = tell
        self._common = server_environment.inherited_environment(settings)
        self._password = server_environment.page_password(folder)
        self.record = ServerRecord(mark=os.urandom(16).hex())

    def run(self, port: int | None, n_workers: int | None) -> None:
        for name in ("prefect", "client"):
            ensure_private_directory(self._folder / name)
        # The mark is on the disk before the first process.
        self._note(port=page_port(port))
        self._start_cluster(n_workers)
        self._start_pages()
        self._start_orchestrator(self._start_database())
        self._deploy()
        self._start_workers_and_watcher()
        self._wait_for_cluster_and_pages()
        for pool in POOLS:
            since = self.record.part(f"{pool}-worker").created
            self._wait(f"{pool}-worker", partial(self._caller().has_worker, pool, since=since))
        for part in self.record.parts:
            if not _runs(self._settings, part):
                raise ServerError(
                    "SERVER_PART_ENDED",
                    f"expected the {part.name} to go on, found that it ended; {part.log} says why",
                )
        self._note(ready=True)

    def _note(self, **changes: object) -> None:
        self.record = self.record.model_copy(update=changes)
        write_record(self._folder, self.record)

    def _start(
        self, name: str, *arguments: str, environment: Mapping[str, str], address: str = ""
    ) -> None:
        part = start_part(
            name,
            [sys.executable, "-m", *arguments],
            environment={**self._common, **environment},
            folder=self._folder,
            mark=self.record.mark,
            address=address,
        )
        self._note(parts=(*self.record.parts, part))

    def _wait(self, name: str, answers: Callable[[], bool]) -> None:
        part = self.record.part(name)
        self._tell(f"waiting for the {name}")
        wait_until_answers(
            f"the {name}",
            answers,
            timeout_seconds=_TIMEOUT_SECONDS,
            log=part.log,
            runs=lambda: is_running(part),
        )

    def _caller(self) -> ServerCaller:
        return ServerCaller(port=self.record.port, password=self._password)

    def _start_cluster(self, n_workers: int | None) -> None:
        if self._settings.dask_address is not None:
            return
        if n_workers is None:
            n_workers = max(1, min(self._settings.workers, os.cpu_count() or 1))
        address = f"tls://{HOST}:{free_port()}"
        gpus = server_cluster.find_gpus(self._tell)
        self._n_workers = n_workers + len(gpus)
        self._note(scheduler=address)
        for part in server_cluster.cluster_parts(
            self._folder, address, n_workers=n_workers, gpus=gpus
        ):
            self._start(
                part.name,
                *part.arguments,
                environment=part.environment,
                address=address if part.name == server_cluster.SCHEDULER else "",
            )

    def _start_pages(self) -> None:
        if self._settings.releases_url is not None:
            return
        address = f"http://{HOST}:{(port := free_port())}"
        self._note(pages=address)
        self._start(
            PAGES, "flows.server.release_pages", str(self._settings.releases), str(port),
            environment={}, address=address,
        )  # fmt: skip

    def _start_database(self) -> str | None:
        """Start PostgreSQL and return the address of its database, or None for SQLite."""
        server = _postgres(self._settings)
        if isinstance(server, str):
            self._tell(f"the orchestrator keeps its runs in SQLite: {server}")
            return None
        self._tell("waiting for the database")
        password = server_environment.database_password(self._folder)
        port = free_port()
        pid = server.start(port, password)
        part = Part(
            name=DATABASE, pid=pid, created=0.0, address=f"{HOST}:{port}", log=server.log, mark=""
        )
        self._note(parts=(*self.record.parts, part))
        return server_environment.database_url(port, password)

    def _start_orchestrator(self, database: str | None) -> None:
        port = self.record.port
        environment = server_environment.orchestrator_environment(
            home=self._folder / "prefect", port=port, password=self._password, database=database
        )
        address = f"http://{HOST}:{port}"
        self._start(
            ORCHESTRATOR, "flows.server.orchestrator_page", environment=environment, address=address
        )
        self._wait(ORCHESTRATOR, self._caller().answers)

    def _deploy(self) -> None:
        """Register the deployments, by the command that an operator uses."""
        self._tell("registering the deployments")
        log = self._folder / "deploy.log"
        log.unlink(missing_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as output:
            try:
                code = subprocess.run(
                    [sys.executable, "-m", "flows.cli", "deploy"],
                    env={**self._common, **_client_environment(self._settings, self.record)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=_TIMEOUT_SECONDS,
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
        if code != 0:
            lines = log.read_text("utf-8", errors="replace").strip().splitlines()
            raise ServerError(
                "SERVER_DEPLOY_FAILED",
                "expected to register the deployments, found: "
                f"{lines[-1] if lines else 'no answer'} (see {log})",
            )

    def _start_workers_and_watcher(self) -> None:
        client = _client_environment(self._settings, self.record)
        for pool in POOLS:
            self._start(
                f"{pool}-worker", "prefect", "worker", "start", "--pool", pool, "--name", pool,
                "--type", "process", "--limit", "1", "--install-policy", "never",
                "--no-create-pool-if-not-found",
                environment={**client, **server_environment.worker_environment()},
            )  # fmt: skip
        self._start(WATCHER, "flows.cli", "watch", environment=client)

    def _wait_for_cluster_and_pages(self) -> None:
        record = self.record
        if record.pages:
            # There is no list of the store: "not found" is the answer of a server that works.
            self._wait(PAGES, lambda: ask(port_of(record.pages), "/")[0] == 404)
        if record.scheduler:
            self._wait(server_cluster.SCHEDULER, lambda: accepts_calls(port_of(record.scheduler)))
            server_cluster.wait_for_workers(
                self._folder,
                record.scheduler,
                self._n_workers,
                lambda answers: self._wait(server_cluster.CPU_WORKERS, answers),
            )


def _client_environment(settings: Settings, record: ServerRecord) -> dict[str, str]:
    folder = settings.server_home
    variables = server_environment.client_environment(
        home=folder / "client",
        port=record.port,
        password=server_environment.page_password(folder),
    )
    if record.scheduler:
        variables["CLUSTMIX_DASK_ADDRESS"] = record.scheduler
        variables["DASK_CONFIG"] = str(server_cluster.client_config(folder))
    if record.pages:
        variables["CLUSTMIX_RELEASES_URL"] = record.pages
    return variables


def _postgres(settings: Settings) -> PostgresServer | str:
    """Return the PostgreSQL server of this installation, or why there is none."""
    programs = find_postgres()
    if isinstance(programs, str):
        return programs
    return postgres_server(programs, settings.server_home, installation_id(settings.home))


def _runs(settings: Settings, part: Part) -> bool:
    if part.name != DATABASE:
        return is_running(part)
    server = _postgres(settings)
    return not isinstance(server, str) and server.pid() is not None


def _stop(settings: Settings, record: ServerRecord) -> None:
    for part in reversed(record.parts):
        if part.name != DATABASE:
            stop_part(part)
    # What was started and not yet written down when the start was killed.
    stop_marked(record.mark)
    server = _postgres(settings)
    if not isinstance(server, str):
        server.stop()
    remove_record(settings.server_home)
