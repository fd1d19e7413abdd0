"""The environment of the parts of a local server: addresses, passwords, and nothing inherited.

A variable of the orchestrator or of Dask that an operator once exported for something else must
not open a port or write a file here.
"""

import os
import secrets
from pathlib import Path
from urllib.parse import quote

from flows.server.cluster import SCHEDULER, client_config
from flows.server.database import DATABASE_NAME, ROLE
from flows.server.ports import HOST
from flows.server.record import ServerRecord
from storage.files.documents import write_kept
from storage.settings import Settings
from tasks.execution.runtime import safe_environment

ORCHESTRATOR = "orchestrator"
PAGES = "pages"

PASSWORD_FILE = "page-password"  # noqa: S105 -- the name of a file
"""Holds what the page and the API ask for, ``name:password``."""

METRICS_PASSWORD_FILE = "metrics-password"  # noqa: S105 -- the name of a file

WORKER_ENVIRONMENT = {
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_RUNNER_POLL_FREQUENCY": "2",
    # The shortest that Prefect takes: a run whose process was killed stops sending them.
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
}
"""Variables of a worker of the orchestrator beside those of every client."""

_FOREIGN = ("PREFECT", "DASK", "CLUSTMIX_")


def page_password(folder: Path) -> str:
    """Return what the page and the API ask for, made at the first use in the server's folder."""
    return _kept_secret(folder / PASSWORD_FILE, "clustmix:")


def metrics_password(folder: Path) -> str:
    """Return what the page of the metrics asks for, ``name:password``, made at the first use."""
    return _kept_secret(folder / METRICS_PASSWORD_FILE, "clustmix:")


def database_password(folder: Path) -> str:
    """Return the password of the orchestrator's database, made at the first use as well."""
    return _kept_secret(folder / "database-password", "")


def inherited_environment(settings: Settings) -> dict[str, str]:
    """Return what every part may know: the system's variables and our own settings, absolute."""
    # With a cluster of the operator's own, Dask's settings name its certificates.
    foreign = tuple(n for n in _FOREIGN if n != "DASK" or settings.dask_address is None)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if value is None:
            continue
        text = value.get_secret_value() if hasattr(value, "get_secret_value") else str(value)
        environment[f"CLUSTMIX_{name.upper()}"] = text
    return environment | safe_environment()


def orchestrator_environment(folder: Path, port: int, database: str) -> dict[str, str]:
    """Return the variables of Prefect's server; `database` is ``host:port``, empty for SQLite."""
    home = folder / "prefect"
    page = f"http://{HOST}:{port}"
    url = f"sqlite+aiosqlite:///{home / 'prefect.db'}"
    if database:
        password = quote(database_password(folder), safe="")
        # Whatever PGSSLMODE says for the ledger: this server is on the loopback interface.
        url = f"postgresql+asyncpg://{ROLE}:{password}@{database}/{DATABASE_NAME}?ssl=disable"
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": url,
        # SQLite lets one writer in at a time: on a busy machine the others wait.
        "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
        "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "60",
        "PREFECT_SERVER_API_HOST": HOST,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_API_AUTH_STRING": page_password(folder),
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{page},http://localhost:{port}",
        # Without it the page of another port than 4200 still asks at 4200.
        "PREFECT_SERVER_UI_API_URL": "/api",
        # The first version of the page: the second one asks a company for its settings, which
        # `flows.server.pages` lets no browser do.
        "PREFECT_SERVER_UI_V2_ENABLED": "false",
        "PREFECT_UI_URL": page,
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    }


def client_environment(folder: Path, record: ServerRecord) -> dict[str, str]:
    """Return the variables with which a command finds the parts of a started server."""
    page, scheduler, releases = map(record.address, (ORCHESTRATOR, SCHEDULER, PAGES))
    variables = {
        # No profile of the user's own.
        "PREFECT_HOME": str(folder / "client"),
        "PREFECT_API_URL": f"{page}/api",
        "PREFECT_API_AUTH_STRING": page_password(folder),
        "PREFECT_UI_URL": page,
    }
    if scheduler:
        variables |= {"CLUSTMIX_DASK_ADDRESS": scheduler, "DASK_CONFIG": str(client_config(folder))}
    return variables | ({"CLUSTMIX_RELEASES_URL": releases} if releases else {})


def _kept_secret(path: Path, prefix: str) -> str:
    """Return a random text that is made once and kept in a file of mode 0600."""
    if not path.exists():
        write_kept(path, f"{prefix}{secrets.token_urlsafe(24)}")
    return path.read_text("ascii").strip()
