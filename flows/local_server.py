"""A whole installation on one machine: database, orchestrator, cluster, workers, watcher, pages.

Every part is a process on the loopback interface. ``supervisord.conf`` has their commands, and
supervisord starts a part again when it ends.
"""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from flows.local_database import (
    DATABASE,
    Postgres,
    accepts_passwords,
    end_database,
    find_postgres,
)
from flows.server_environment import (
    DATABASE_PASSWORD_FILE,
    HOST,
    PASSWORD_FILE,
    WORKER_ENVIRONMENT,
    Addresses,
    certificates,
    client_environment,
    forget_addresses,
    inherited_environment,
    kept_secret,
    orchestrator_environment,
    read_addresses,
    write_addresses,
)
from flows.supervisor import RUNNING, PartState, ServerError, Supervisor
from storage.files.private import ensure_private_directory, folder_locked
from storage.files.workspace import forbid_core_dumps
from storage.identity import installation_id
from storage.settings import Settings

PAGE_PORT = 4200

TIMEOUT_SECONDS = 180.0
"""Time that one part has to answer, on a busy machine."""

_ORCHESTRATOR = "orchestrator"
_POOLS = {"private-worker": "private", "public-worker": "public"}
# Runs end before the orchestrator, which notes how.
_CALLERS = ("watcher", *_POOLS)

_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.2
_CERTIFICATE_DAYS = 366
_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def connection(folder: Path) -> dict[str, str]:
    """Return the variables that lead Prefect and Dask to the running server; empty without one."""
    addresses = read_addresses(folder) if folder.exists() else None
    if addresses is None or not Supervisor(folder).states():
        return {}
    return client_environment(folder, addresses)


def join_server(folder: Path) -> bool:
    """Let this process call the running server, unless ``PREFECT_API_URL`` names another one.

    Call it before Prefect and Dask are imported, and read the settings again afterwards: the server
    adds some. Returns whether there is a server to call, of either kind.
    """
    if "PREFECT_API_URL" not in os.environ:
        for name, value in connection(folder).items():
            os.environ.setdefault(name, value)
    return "PREFECT_API_URL" in os.environ


def part_states(folder: Path) -> tuple[PartState, ...]:
    """Return the states of the parts; it is a ServerError if their supervisor has ended."""
    states = Supervisor(folder).states()
    if not states and folder.exists() and read_addresses(folder) is not None:
        raise ServerError(
            "SERVER_UNSUPERVISED",
            "expected the supervisor of the server to run, found that it ended; clustmix server "
            "start begins anew",
        )
    return states


def start_server(
    settings: Settings,
    *,
    port: int | None = None,
    n_workers: int | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> tuple[Addresses, bool]:
    """Start every part and wait until each runs; change nothing where the server runs.

    The page has this port, or else `PAGE_PORT` or a free one. The cluster has `n_workers`, by
    default as many as the settings say, at most one per core. `log` receives what goes on. Returns
    the addresses, and False where the server ran already. It is a ServerError if a part does not
    start; then none is left.
    """
    folder = ensure_private_directory(settings.server_home)
    with folder_locked(folder):
        addresses = read_addresses(folder)
        if addresses is not None and addresses.ready and Supervisor(folder).states():
            return addresses, False
        # Of a machine that went down, or of a start that was killed.
        _stop(folder)
        forbid_core_dumps()
        start = _Start(
            folder,
            find_postgres(folder, installation_id(settings.home)),
            log,
            common=inherited_environment(settings),
            has_cluster=settings.dask_address is None,
            has_pages=settings.releases_url is None,
        )
        n_workers = n_workers or max(1, min(settings.workers, os.cpu_count() or 1))
        try:
            return start.run(free_port(port), n_workers), True
        except BaseException:
            log("ending what was started")
            _stop(folder)
            raise


def stop_server(folder: Path) -> tuple[str, ...]:
    """End every process of the server, else ServerError; return the names of the parts that ran."""
    if not folder.exists():
        return ()
    with folder_locked(ensure_private_directory(folder)):
        running = tuple(part.name for part in Supervisor(folder).states() if part.pid)
        _stop(folder)
        return running


def _stop(folder: Path) -> None:
    addresses = read_addresses(folder)
    Supervisor(folder).stop(first=_CALLERS)
    if addresses is not None and addresses.database:
        end_database(Path(addresses.database))
    forget_addresses(folder)


class _Start:
    """One start of the server: its parts, in the order in which they need each other."""

    def __init__(
        self,
        folder: Path,
        postgres: Postgres | str,
        log: Callable[[str], None],
        *,
        common: dict[str, str],
        has_cluster: bool,
        has_pages: bool,
    ) -> None:
        self._folder = folder
        self._postgres = postgres
        self._log = log
        self._common = common
        self._has_cluster = has_cluster
        self._has_pages = has_pages
        self._supervisor = Supervisor(folder)

    def run(self, page_port: int, n_workers: int) -> Addresses:
        """Start every part and wait until each answers, see `start_server`."""
        from tasks.execution.cluster_certificates import make_certificates

        for name in ("prefect", "client", "dask"):
            ensure_private_directory(self._folder / name)
        postgres, database_port = self._postgres, free_port()
        has_database = isinstance(postgres, Postgres)
        addresses = Addresses(
            orchestrator=f"http://{HOST}:{page_port}",
            scheduler=f"tls://{HOST}:{free_port()}" if self._has_cluster else "",
            pages=f"http://{HOST}:{free_port()}" if self._has_pages else "",
            database=str(postgres.data) if isinstance(postgres, Postgres) else "",
        )
        write_addresses(self._folder, addresses)
        # Those of an earlier start, whose processes have ended.
        shutil.rmtree(certificates(self._folder), ignore_errors=True)
        if self._has_cluster:
            make_certificates(certificates(self._folder), days=_CERTIFICATE_DAYS)
        if isinstance(postgres, Postgres):
            if postgres.data.exists() and not (self._folder / DATABASE_PASSWORD_FILE).exists():
                raise ServerError(
                    "SERVER_DATABASE_REFUSED",
                    f"expected the password of {postgres.data} in {DATABASE_PASSWORD_FILE} of the "
                    "server's folder, found none; restore that file, or move the data away to "
                    "begin with new ones",
                )
            postgres.prepare(kept_secret(self._folder, DATABASE_PASSWORD_FILE, ""))
        else:
            self._log(f"the orchestrator keeps its runs in SQLite: {postgres}")
        client = client_environment(self._folder, addresses)
        self._supervisor.launch(
            self._common,
            addresses=addresses,
            database=postgres.command(database_port) if isinstance(postgres, Postgres) else (),
            n_workers=n_workers,
            gpus=find_gpus(self._log),
            certificates=str(certificates(self._folder)),
            orchestrator=orchestrator_environment(
                self._folder, addresses.orchestrator, database_port if has_database else None
            ),
            client=client,
            worker=client | WORKER_ENVIRONMENT,
        )
        if has_database:
            self._wait(DATABASE, partial(accepts_passwords, database_port))
        page = addresses.orchestrator
        self._supervisor.start(_ORCHESTRATOR)
        self._wait(_ORCHESTRATOR, lambda: web_status(f"{page}/api/health") == 200)
        self._deploy(self._common | client)
        for name in _CALLERS:
            self._supervisor.start(name)
        for name, pool in _POOLS.items():
            self._wait(name, partial(self._has_worker, page, pool))
        for part in self._supervisor.states():
            self._wait(part.name, partial(self._runs, part.name))
        ready = addresses.model_copy(update={"ready": True})
        write_addresses(self._folder, ready)
        return ready

    def _runs(self, name: str) -> bool:
        """Return whether a part has outlived its first seconds."""
        return any(p.name == name and p.state == RUNNING for p in self._supervisor.states())

    def _wait(self, name: str, answers: Callable[[], bool]) -> None:
        """Wait until a part answers; one that ends or stays silent is a ServerError."""
        if answers():
            return
        self._log(f"waiting for the {name}")
        end, log = time.monotonic() + TIMEOUT_SECONDS, self._folder / f"{name}.log"
        problem: tuple[str, str] | None = None
        while not (problem or answers()):
            if not any(part.name == name and part.runs for part in self._supervisor.states()):
                problem = "SERVER_PART_ENDED", f"that it ended; {log} says why"
            elif time.monotonic() > end:
                problem = "SERVER_PART_SILENT", f"no answer; {log} may say why"
            time.sleep(_POLL_SECONDS)
        if problem:
            code, found = problem
            raise ServerError(
                code,
                f"expected the {name} to answer within {TIMEOUT_SECONDS:g} seconds, found {found}",
            )

    def _has_worker(self, page: str, pool: str) -> bool:
        import httpx

        name, _, password = kept_secret(self._folder, PASSWORD_FILE).partition(":")
        with suppress(httpx.HTTPError):
            answer = httpx.get(
                f"{page}/api/work_pools/{pool}",
                auth=(name, password),
                timeout=_ANSWER_SECONDS,
                trust_env=False,
            )
            return answer.is_success and answer.json()["status"] == "READY"
        return False

    def _deploy(self, environment: Mapping[str, str]) -> None:
        """Register the deployments, by the command that an operator uses."""
        self._log("registering the deployments")
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", "deploy"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            raise ServerError(
                "SERVER_DEPLOY_FAILED",
                "expected to register the deployments, found: "
                f"{lines[-1] if lines else 'no answer'}",
            )


def find_gpus(log: Callable[[str], None]) -> list[str]:
    """Return the usable GPUs as ``CUDA_VISIBLE_DEVICES`` names them; log why one is not usable."""
    program = shutil.which("nvidia-smi")
    gpus: list[str] = []
    with suppress(OSError, subprocess.SubprocessError):
        if program is not None:
            query = [program, "--query-gpu=uuid", "--format=csv,noheader"]
            gpus = subprocess.check_output(query, text=True, timeout=30).split()  # noqa: S603
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus and chosen is not None:
        gpus = [gpu for part in chosen.split(",") if (gpu := part.strip()) not in ("", "-1")]
    if gpus and not any(importlib.util.find_spec(plugin) for plugin in _CUDA_PLUGINS):
        log("no GPU worker: a GPU is here, but jax has no CUDA plugin")
        return []
    return gpus


def free_port(wanted: int | None = 0) -> int:
    """Return a free port: the wanted one (else ServerError); for None, `PAGE_PORT` or another."""
    with socket.socket() as probe:
        # As servers do: a connection that has just ended does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError, OverflowError):
            probe.bind((HOST, PAGE_PORT if wanted is None else wanted))
            return int(probe.getsockname()[1])
    if wanted is None:
        return free_port()
    raise ServerError(
        "SERVER_PORT_TAKEN",
        f"expected port {wanted} of {HOST} to be free, found that it cannot be used; choose "
        "another one, or none to be given one",
    )


def web_status(address: str) -> int:
    """Return the status of the answer of a web server of this machine; 0 where none answers."""
    import httpx

    with suppress(httpx.HTTPError):
        # No proxy of the environment: this is the loopback interface.
        return httpx.get(address, timeout=_ANSWER_SECONDS, trust_env=False).status_code
    return 0
