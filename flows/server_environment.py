"""The variables of the parts of a local server: addresses and passwords, and nothing inherited.

A variable of the orchestrator or of Dask that an operator once exported for another purpose must
not open a port or write a file here.
"""

import os
import secrets
from pathlib import Path

from flows.supervisor import ServerError
from storage.files.documents import Record, listed, read_kept, write_kept
from storage.settings import Settings
from tasks.execution.runtime import safe_environment

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
"""Folder of what the parts and their runs write for a while: Prefect's files hold passwords."""

_FOREIGN = ("PREFECT", "DASK", "CLUSTMIX_", "SUPERVISOR_")


class Addresses(Record):
    """Addresses of the parts of a started server; empty for a part that was not started.

    The server is `ready` once every part answered.
    """

    orchestrator: str
    scheduler: str = ""
    pages: str = ""
    ready: bool = False


def read_addresses(folder: Path) -> Addresses | None:
    """Return the addresses (ServerError if the file is damaged); None where nothing was started."""
    path = folder / ADDRESSES_FILE
    damaged = ServerError(
        "SERVER_RECORD_INVALID",
        f"expected the addresses of the started parts in {path}, found something else; delete the "
        "file and start the server again",
    )
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
    """Return the variables of every part.

    The system's, our own settings as absolute paths, those of a client, and those of Prefect's
    server and workers.
    """
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
