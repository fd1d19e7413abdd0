"""Places on this machine: the only module that reads the environment for paths.

An installation has an id of its own in a ledger that several share.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from privacy.errors import ConfigurationError, refusals
from storage.files.private import ensure_private_directory, folder_locked, replace_durably
from storage.ledger.ledger_db import LedgerDatabase

refusal = refusals(__package__)

_SCHEMES = {
    "ledger_url": ("postgresql://", "postgres://"),
    "notify_url": ("http://", "https://"),
    "lineage_url": ("https://", "http://"),
}


class _BelowHome:
    """A place of a fixed name below `Settings.home`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, settings: "Settings", owner: type["Settings"]) -> Path:
        return settings.home / self._name


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlaces:
    """Places of public datasets: copies, and earlier downloads; `offline` refuses new ones."""

    data_dir: Path | None
    downloads: Path
    offline: bool


class Settings(BaseSettings):
    """Settings from variables ``CLUSTMIX_...``; `load_settings` repeats no wrong value."""

    model_config = SettingsConfigDict(
        env_prefix="CLUSTMIX_", extra="forbid", frozen=True, hide_input_in_errors=True
    )

    home: Path = Field(default=Path(".clustmix"), validate_default=True)
    """Everything private: ledger, workspaces, orchestrator state, diagnostics."""
    releases: Path = Field(default=Path("releases"), validate_default=True)
    """The release store, meant to be read by others."""
    ledger_head: Path | None = None
    """Private folder, in neither of the two, for the exported head of the ledger; None puts it
    beside `home`, under the same name with ``-head``."""
    data_dir: Path | None = None
    """Folder with copies of the public datasets, see `storage.public_data.datasets`."""
    offline: bool = False
    """True refuses every download of a public dataset."""
    dask_workers: int | None = Field(default=None, ge=0, le=256)
    """Processes of the local Dask cluster, up to 256; 0 runs everything in one process. None: one
    process for a small table, `workers` for a large one, see `flows.installation`."""
    dask_address: str | None = None
    """Address of a running scheduler; None starts a local cluster."""
    ledger_url: SecretStr | None = None
    """``postgresql://`` address of a ledger that several installations share; None keeps it in a
    file below `home`. It may hold a password and is never shown."""
    sites: Path = Field(default=Path("deployments/sites"), validate_default=True)
    """Folder with the site file of each dataset, ``<dataset>.yaml``, for releases that the
    orchestrator starts."""
    landing: str = Field(default="landing", min_length=1, validate_default=True)
    """Place of new tables: a folder, or an address of fsspec (``s3://bucket/prefix``)."""
    requester: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")
    """Key id of the person in whose name the orchestrator asks for releases."""
    releases_url: str | None = Field(default=None, pattern=r"^https?://")
    """Address at which readers find the release store; None links to files."""
    notify_url: SecretStr | None = None
    """Address that gets events: refused, withheld, burned and waiting releases, and missed runs.
    None sends nothing. It may hold a token and is never shown."""

    lineage_url: SecretStr | None = None
    """Address that gets an OpenLineage event for each run; None sends nothing. ``https``, or
    ``http`` on this machine. It may hold a password and is never shown."""
    metrics: str | None = Field(default=None, pattern=r"^[0-9A-Za-z.-]+:[0-9]{1,5}$")
    """``host:port`` at which the watcher answers Prometheus; None opens no port."""
    metrics_tls: Path | None = None
    """PEM file with the key and the certificates of that address, which any but the loopback
    interface needs."""

    @field_validator("ledger_url", "notify_url", "lineage_url")
    @classmethod
    def _of_a_scheme(cls, url: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        schemes, text = _SCHEMES[info.field_name or ""], url.get_secret_value() if url else ""
        if url is not None and not text.startswith(schemes):
            raise ValueError(f"expected an address that begins with {' or '.join(schemes)}")
        is_here = urlsplit(text).hostname in ("127.0.0.1", "localhost", "::1")
        if info.field_name == "lineage_url" and text.startswith("http://") and not is_here:
            raise ValueError("expected https of another machine")
        return url

    @field_validator("landing")
    @classmethod
    def _absolute_unless_remote(cls, place: str) -> str:
        return place if "://" in place else str(Path(place).expanduser().absolute())

    @field_validator("home", "releases", "ledger_head", "data_dir", "sites", "metrics_tls")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        # Worker processes may have another current directory.
        return None if path is None else path.expanduser().absolute()

    ledger_path: ClassVar = _BelowHome("ledger.sqlite")
    register: ClassVar = _BelowHome("patient-register")  # digests of patients read by entry
    key_folder: ClassVar = _BelowHome("keys")  # the pipeline's keys and the officers' public ones
    measurements: ClassVar = _BelowHome("measurements")  # sealed
    pending: ClassVar = _BelowHome("pending")  # bundles that are not yet published
    adjustments: ClassVar = _BelowHome("adjustments")  # signatures of charges by hand
    arrivals: ClassVar = _BelowHome("arrivals")  # tables that are not released yet
    server_home: ClassVar = _BelowHome("server")  # state of the parts beside the orchestrator
    private_root: ClassVar = _BelowHome("private")  # workspaces
    prefect_home: ClassVar = _BelowHome("prefect")  # state of the in-process orchestrator
    declarations: ClassVar = _BelowHome("declarations")  # of tables that failed a check
    diagnostics: ClassVar = _BelowHome("diagnostics")  # restricted files
    downloads: ClassVar = _BelowHome("data")  # public datasets

    @property
    def workers(self) -> int:
        """Processes of a local Dask cluster, where a run starts one."""
        return 2 if self.dask_workers is None else self.dask_workers

    @property
    def data_places(self) -> DataPlaces:
        """Places of public datasets."""
        return DataPlaces(data_dir=self.data_dir, downloads=self.downloads, offline=self.offline)

    @property
    def ledger_location(self) -> Path | str:
        """The file of the ledger, or the address of the one that installations share."""
        return self.ledger_path if self.ledger_url is None else self.ledger_url.get_secret_value()

    @property
    def ledger_head_path(self) -> Path:
        """The last exported head of the ledger.

        It is not below `home`, so that restoring an old copy of `home` does not restore the head.
        """
        folder = self.ledger_head or self.home.with_name(f"{self.home.name}-head")
        return folder / "ledger-head"


def load_settings() -> Settings:
    """Read the environment; the ConfigurationError names the wrong variable, never its value."""
    problem = ""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        variable = "CLUSTMIX_" + "_".join(str(part) for part in first["loc"]).upper()
        problem = f"environment variable {variable}: {first['msg']}; correct or unset it"
    raise ConfigurationError("INVALID_SETTING", problem)


def require_fixed_places() -> None:
    """Refuse to go on unless the variables that name folders are set, to absolute paths.

    A worker starts each run in a folder of its own and deletes that folder afterwards. A relative
    path would create a new ledger in it, in which nothing is spent, and lose it.

    The ConfigurationError names the variable.
    """
    for variable in ("CLUSTMIX_HOME", "CLUSTMIX_RELEASES", "CLUSTMIX_SITES"):
        if not Path(os.environ.get(variable, "")).is_absolute():
            raise refusal("PLACE_NOT_FIXED", variable=variable)


def installation_id(home: Path) -> str:
    """Return the random id of the installation with this home, made at the first use.

    Whether a run is alive can be seen only by the installation that started it, by the locks in
    its home; so an installation closes its own entries and never those of another. It is an
    IntegrityError if the file holds anything but an id such as ``i-0f3a9c21d4e5b6a7``.
    """
    path = ensure_private_directory(home) / "installation"
    if not path.exists():
        with folder_locked(home):
            if not path.exists():
                replace_durably(path, f"i-{os.urandom(8).hex()}\n".encode("ascii"))
    text = path.read_text("ascii", errors="replace").strip()
    if re.fullmatch(r"i-[0-9a-f]{16}", text) is None:
        raise refusal("INSTALLATION_INVALID", path=path)
    return text


def open_ledger(settings: Settings) -> LedgerDatabase:
    """Open the budget ledger; the first use makes it, with the private folders around it."""
    ensure_private_directory(settings.home)
    ensure_private_directory(settings.ledger_head_path.parent)
    return LedgerDatabase(settings.ledger_location, head_file=settings.ledger_head_path)
