"""One release run: its public request, where it works, and how its randomness is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from privacy.accountants.calibration import release_mu, release_rho
from privacy.ledger import Caps, Partition
from privacy.parameters import Adjacency, PrivacyParameters, PrivacyUnit
from storage.files.private import ensure_private_directory
from storage.files.refs import ReleaseRef
from storage.installation import installation_id
from storage.keys.key_store import KeyStore
from storage.ledger.ledger_db import LedgerDatabase
from storage.releases.checkpoints import CheckpointStore
from storage.releases.measurements import MeasurementStore
from storage.releases.pending import PendingBundles
from storage.releases.store import ReleaseStore
from storage.schema.table import TableSchema
from storage.settings import Settings
from storage.sources.cohorts import Source
from tasks.ingest.encoding import domain_of
from tasks.measurement.synthesizer import Synthesizer
from tasks.synthesizers.registry import build
from tasks.synthesizers.settings import MethodConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseJob:
    """Everything public that a release needs, taken from its site file.

    Parameters
    ----------
    ref
        Address of the release.
    title
        One line for the data card.
    source, table_schema
        Where the cohort is and what it is declared to hold.
    columns_to_read
        Columns that the release needs from the source.
    unit, parameters, adjacency
        The guarantee.
    cohort
        Name of the patients whose budget pays; datasets about the same patients share it.
    lifetime_epsilon
        Cap of the cohort at the same delta and adjacency.
    dataset_epsilon
        Cap of the dataset alone, or None.
    window_epsilon, window_days
        Cap of the cohort within that many days, or None.
    partition
        Part of the patients that is read, or None for all.
    needs_approval
        Whether an officer has to sign before the release is published.
    requester
        Key id of the person who asked, or None.
    method
        Synthesizer and its settings.
    rows
        Number of synthetic rows.
    site
        The site file, as JSON values.
    """

    ref: ReleaseRef
    title: str
    source: Source
    table_schema: TableSchema
    columns_to_read: tuple[str, ...]
    unit: PrivacyUnit
    parameters: PrivacyParameters
    adjacency: Adjacency
    cohort: str
    lifetime_epsilon: float
    dataset_epsilon: float | None
    window_epsilon: float | None
    window_days: int | None
    partition: Partition | None
    needs_approval: bool
    requester: str | None
    method: MethodConfig
    rows: int
    site: dict[str, Any]

    @property
    def mu(self) -> float:
        """Gaussian-DP budget under add or remove of one patient."""
        return release_mu(self.parameters, adjacency=self.adjacency)

    @property
    def charge_rho(self) -> Decimal:
        """What the ledger charges, in rho under add or remove of one patient."""
        return self._rho(self.parameters.epsilon)

    @property
    def caps(self) -> Caps:
        """Caps in the currency of the ledger."""
        dataset, window = self.dataset_epsilon, self.window_epsilon
        return Caps(
            lifetime_rho=self._rho(self.lifetime_epsilon),
            dataset_rho=None if dataset is None else self._rho(dataset),
            window_rho=None if window is None else self._rho(window),
            window_days=self.window_days,
        )

    @property
    def measurement_settings(self) -> dict[str, Any]:
        """Everything of the site file that shapes the measurement, and nothing else.

        The number of rows, the title, caps and approval do not: the noise drawn is the same.
        """
        return measurement_settings(self.site, cohort=self.cohort)

    @property
    def synthesizer(self) -> Synthesizer:
        """The method, bound to the public domain."""
        return build(self.method, domain_of(self.table_schema))

    def _rho(self, epsilon: float) -> Decimal:
        parameters = PrivacyParameters(epsilon=epsilon, delta=self.parameters.delta)
        return release_rho(parameters, adjacency=self.adjacency)


def measurement_settings(site: Mapping[str, Any], *, cohort: str) -> dict[str, Any]:
    """Return what shapes a measurement of a site file, see `ReleaseJob.measurement_settings`."""
    kept = ("dataset", "schema", "privacy_unit", "privacy", "analysis", "method")
    places = ("path", "data", "images", "labels")
    source = {k: v for k, v in site["source"].items() if k not in places}
    return {key: site[key] for key in kept} | {"cohort": cohort, "source": source}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The stores of one installation."""

    settings: Settings

    @property
    def ledger(self) -> LedgerDatabase:
        """The budget ledger."""
        settings = self.settings
        ensure_private_directory(settings.home)
        ensure_private_directory(settings.ledger_head_path.parent)
        url = settings.ledger_url
        location = settings.ledger_path if url is None else url.get_secret_value()
        return LedgerDatabase(
            location,
            head_file=settings.ledger_head_path,
            former_head_file=settings.former_ledger_head_path,
        )

    @property
    def keys(self) -> KeyStore:
        """The pipeline's keys and the officers' public keys."""
        ensure_private_directory(self.settings.home)
        return KeyStore(self.settings.key_folder)

    @property
    def owner(self) -> str:
        """Id of this installation, in ledger entries that it runs."""
        return installation_id(self.settings.home)

    @property
    def measurements(self) -> MeasurementStore:
        """The sealed measurements."""
        return MeasurementStore(self.settings.measurements)

    @property
    def checkpoints(self) -> CheckpointStore:
        """How far measurements came that can be continued."""
        return CheckpointStore(self.settings.checkpoints)

    @property
    def pending(self) -> PendingBundles:
        """Bundles that are made and not yet published."""
        return PendingBundles(self.settings.pending)

    @property
    def releases(self) -> ReleaseStore:
        """The release store."""
        return ReleaseStore(self.settings.releases)

    @property
    def private_root(self) -> Path:
        """Parent of the private workspaces, created if missing."""
        return ensure_private_directory(self.settings.private_root)


Listener = Callable[[str, float | None], None]
"""Called with a stage and None when it starts, with its seconds when it ends."""

_listener: ContextVar[Listener | None] = ContextVar("stage_listener", default=None)


@contextmanager
def listen_to_stages(listener: Listener) -> Iterator[None]:
    """Report the stages of the runs of the block, which are public names, to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Mark a stage of a run."""
    listener = _listener.get()
    started = time.monotonic()
    if listener is not None:
        listener(name, None)
    yield
    if listener is not None:
        listener(name, time.monotonic() - started)
