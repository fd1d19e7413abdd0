"""A whole installation on one machine: orchestrator, cluster, workers, watcher, pages.

Every part is a process on the loopback interface, its command in ``supervisord.conf``, and
supervisord starts it again when it ends. A part inherits addresses and passwords, nothing else of
Prefect, Dask or ours: a variable exported for another purpose must not open a port or write a file.
"""

import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from flows.supervisor import RUNNING, PartState, ServerError, Supervisor, run_module
from privacy.errors import refusals
from storage.files.documents import Record, listed, read_kept, write_kept
from storage.files.private import ensure_private_directory, folder_locked
from storage.files.workspace import forbid_core_dumps
from storage.settings import Settings
from tasks.execution.runtime import safe_environment

refusal = refusals(__package__, ServerError)

HOST = "127.0.0.1"

PASSWORD_FILE = "page-password"  # noqa: S105 -- the name of a file
"""Holds ``name:password`` of the page and the API."""

METRICS_PASSWORD_FILE = "metrics-password"  # noqa: S105 -- the name of a file

ADDRESSES_FILE = "addresses.json"
CERTIFICATES = "certificates"
"""Folder of the certificates of the cluster."""

ORCHESTRATOR_DATABASE = "prefect/prefect.db"

KEPT_DAYS = 90
"""Time after which the orchestrator deletes a run that ended, with its logs and artifacts."""

TEMPORARY = "tmp"
"""Folder of temporary files of the parts and their runs; those of Prefect hold passwords."""

_FOREIGN = ("PREFECT", "DASK", "CLUSTMIX_", "SUPERVISOR_")


class Addresses(Record):
    """Addresses of a server's parts, empty if not started; `ready` once every part answered."""

    orchestrator: str
    scheduler: str = ""
    pages: str = ""
    ready: bool = False


def read_addresses(folder: Path) -> Addresses | None:
    """Return the addresses (ServerError if the file is damaged); None where nothing was started."""
    path = folder / ADDRESSES_FILE
    damaged = refusal("SERVER_RECORD_INVALID", path=path)
    return read_kept(path, Addresses, damaged=damaged)


def kept_secret(folder: Path, name: str) -> str:
    """Return a name and a random password, made once and kept in a file of mode 0600."""
    path = folder / name
    if not path.exists():
        write_kept(path, f"clustmix:{secrets.token_urlsafe(24)}")
    return path.read_text("ascii").strip()


def client_environment(folder: Path, addresses: Addresses) -> dict[str, str]:
    """Return the variables with which a command finds the parts of a started server."""
    page = addresses.orchestrator
    variables = {
        # No profile of the user's own.
        "PREFECT_HOME": str(folder / "client"),
        "PREFECT_API_URL": f"{page}/api",
        "PREFECT_API_AUTH_STRING": kept_secret(folder, PASSWORD_FILE),
        "PREFECT_UI_URL": page,
    }
    if addresses.scheduler:
        variables["CLUSTMIX_DASK_ADDRESS"] = addresses.scheduler
        variables["DASK_CONFIG"] = str(folder / CERTIFICATES / "client" / "dask.yaml")
    return variables | ({"CLUSTMIX_RELEASES_URL": addresses.pages} if addresses.pages else {})


def parts_environment(settings: Settings, folder: Path, addresses: Addresses) -> dict[str, str]:
    """Return the system's variables, our settings (absolute paths), a client's, and Prefect's."""
    # With a cluster of the operator's own, Dask's settings name its certificates.
    foreign = tuple(n for n in _FOREIGN if n != "DASK" or settings.dask_address is None)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if value is None:
            continue
        text = value.get_secret_value() if hasattr(value, "get_secret_value") else str(value)
        environment[f"CLUSTMIX_{name.upper()}"] = text
    page = addresses.orchestrator
    port = page.rpartition(":")[2]
    return {
        **environment,
        **safe_environment(),
        **listed("flows", "server.toml"),
        **client_environment(folder, addresses),
        "TMPDIR": str(folder / TEMPORARY),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": (
            f"sqlite+aiosqlite:///{folder / ORCHESTRATOR_DATABASE}"
        ),
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": port,
        "PREFECT_SERVER_API_AUTH_STRING": kept_secret(folder, PASSWORD_FILE),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{page},http://localhost:{port}",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": f"{KEPT_DAYS * 86_400}",
    }


PAGE_PORT = 4200

TIMEOUT_SECONDS = 180.0
"""Time that one part has to answer, on a busy machine."""

_ORCHESTRATOR = "orchestrator"
# Stopped before the orchestrator, so that it can record how their runs end.
_CALLERS = ("watcher", "private-worker", "public-worker")

_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.2
_CERTIFICATE_DAYS = 366
_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def connection(folder: Path) -> dict[str, str]:
    """Return the variables that lead Prefect and Dask to the running server; empty without one."""
    addresses = read_addresses(folder) if folder.exists() else None
    if addresses is None or not addresses.ready or not Supervisor(folder).states():
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
        raise refusal("SERVER_UNSUPERVISED")
    return states


def start_server(
    settings: Settings,
    *,
    port: int | None = None,
    n_workers: int | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> tuple[Addresses, bool]:
    """Start every part and wait until each runs; change nothing where the server runs.

    The page has this port, else `PAGE_PORT` or a free one. The cluster has `n_workers`, by default
    that of the settings, at most one per core. `log` receives each step. Returns the addresses, and
    False if it ran already. If a part does not start, it is a ServerError, and all are stopped.
    """
    folder = ensure_private_directory(settings.server_home)
    with folder_locked(folder):
        addresses = read_addresses(folder)
        if addresses is not None and addresses.ready and Supervisor(folder).states():
            return addresses, False
        # Remove what a crash of the machine or a killed start has left.
        _stop(folder)
        forbid_core_dumps()
        addresses = Addresses(
            orchestrator=f"http://{HOST}:{free_port(port)}",
            scheduler=f"tls://{HOST}:{free_port()}" if settings.dask_address is None else "",
            pages=f"http://{HOST}:{free_port()}" if settings.releases_url is None else "",
        )
        n_workers = n_workers or max(1, min(settings.workers, os.cpu_count() or 1))
        try:
            environment = parts_environment(settings, folder, addresses)
            _start(folder, addresses, environment, n_workers=n_workers, log=log)
        except BaseException:
            log("ending what was started")
            _stop(folder)
            raise
        addresses = addresses.model_copy(update={"ready": True})
        write_kept(folder / ADDRESSES_FILE, addresses)
        return addresses, True


def stop_server(folder: Path) -> tuple[str, ...]:
    """End every process of the server, else ServerError; return the names of the parts that ran."""
    if not folder.exists():
        return ()
    with folder_locked(ensure_private_directory(folder)):
        read_addresses(folder)  # a damaged file is refused
        running = tuple(part.name for part in Supervisor(folder).states() if part.pid)
        _stop(folder)
        return running


def _stop(folder: Path) -> None:
    Supervisor(folder).stop(first=_CALLERS)
    # Killed runs have left files there.
    shutil.rmtree(folder / TEMPORARY, ignore_errors=True)
    (folder / ADDRESSES_FILE).unlink(missing_ok=True)


def _start(
    folder: Path,
    addresses: Addresses,
    environment: Mapping[str, str],
    *,
    n_workers: int,
    log: Callable[[str], None],
) -> None:
    """Start the parts in the order in which they need each other, and wait until each runs."""
    from tasks.execution.cluster import make_certificates

    for name in ("prefect", "client", "dask", TEMPORARY):
        ensure_private_directory(folder / name)
    write_kept(folder / ADDRESSES_FILE, addresses)
    # Those of an earlier start, whose processes have ended.
    shutil.rmtree(folder / CERTIFICATES, ignore_errors=True)
    if addresses.scheduler:
        make_certificates(folder / CERTIFICATES, days=_CERTIFICATE_DAYS)
    supervisor = Supervisor(folder)

    def wait(name: str, answers: Callable[[PartState], bool]) -> None:
        """Wait until a part answers; one that ends or stays silent is a ServerError."""
        end, problem = time.monotonic() + TIMEOUT_SECONDS, ""
        while not problem:
            part = next((part for part in supervisor.states() if part.name == name), None)
            if part is None or not part.runs:
                problem = "that it ended"
            elif answers(part):
                return
            elif time.monotonic() > end:
                problem = f"no answer within {TIMEOUT_SECONDS:g} seconds"
            time.sleep(_POLL_SECONDS)
        raise refusal("SERVER_PART_FAILED", name=name, problem=problem, log=folder / name)

    supervisor.launch(
        environment,
        n_workers=n_workers,
        gpus=find_gpus(log),
        **addresses.model_dump(exclude={"ready"}),
    )
    log(f"waiting for the {_ORCHESTRATOR}")
    supervisor.start(_ORCHESTRATOR)
    health = f"{addresses.orchestrator}/api/health"
    wait(_ORCHESTRATOR, lambda _: web_status(health) == 200)
    log("registering the deployments")
    code, said = run_module("flows.cli", "deploy", env=environment)
    if code != 0:
        raise refusal("SERVER_DEPLOY_FAILED", found=["no answer", *said][-1])
    log("waiting for the workers and the watcher")
    for name in _CALLERS:
        supervisor.start(name)
    for part in supervisor.states():
        wait(part.name, lambda part: part.state == RUNNING)


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
    raise refusal("SERVER_PORT_TAKEN", wanted=wanted, host=HOST)


def web_status(address: str) -> int:
    """Return the status of the answer of a web server of this machine; 0 where none answers."""
    import httpx

    with suppress(httpx.HTTPError):
        # No proxy of the environment: this is the loopback interface.
        return httpx.get(address, timeout=_ANSWER_SECONDS, trust_env=False).status_code
    return 0
