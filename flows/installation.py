"""An installation: every store of one hospital, opened once, and the services built on them.

Only entry points know it: the bodies of flows, and commands. Everything else receives the stores
that it needs, by name.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from flows.publication import Publisher
from flows.workplace import Workplace
from storage.files.private import ensure_private_directory
from storage.identity import installation_id, open_ledger
from storage.keys.key_store import KeyStore
from storage.releases.measurements import MeasurementStore
from storage.releases.pending import PendingBundles
from storage.releases.release_store import ReleaseStore
from storage.settings import Settings
from tasks.steps.entries import Entries
from tasks.steps.janitor import Janitor
from tasks.steps.source import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The stores of an installation, and what measures and publishes with them.

    `arrivals` is the folder of tables that came by themselves, `sites` that of the site files,
    `requester` the key id of the person in whose name the orchestrator asks, `releases_url` the
    address at which readers find the release store.
    """

    measurements: MeasurementStore
    releases: ReleaseStore
    entries: Entries
    janitor: Janitor
    tables: Tables
    workplace: Workplace
    publisher: Publisher
    arrivals: Path
    sites: Path
    requester: str | None
    releases_url: str | None

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Open the stores at the places that the settings name; the first use makes them."""
        keys = KeyStore(settings.key_folder)
        measurements = MeasurementStore(settings.measurements)
        pending = PendingBundles(settings.pending)
        releases = ReleaseStore(settings.releases)
        workspaces = ensure_private_directory(settings.private_root)
        entries = Entries(
            open_ledger(settings),
            owner=installation_id(settings.home),
            keys=keys,
            measurements=measurements,
            releases=releases,
            workspaces=workspaces,
            declarations=settings.declarations,
        )
        janitor = Janitor(
            entries=entries,
            measurements=measurements,
            pending=pending,
            releases=releases,
            workspaces=workspaces,
            diagnostics=settings.diagnostics,
        )
        return cls(
            measurements=measurements,
            releases=releases,
            entries=entries,
            janitor=janitor,
            tables=Tables(keys=keys, places=settings.data_places, scratch=workspaces),
            workplace=Workplace(
                workspaces=workspaces,
                diagnostics=settings.diagnostics,
                dask_address=settings.dask_address,
                n_workers=settings.workers,
                by_size=settings.dask_workers is None,
            ),
            publisher=Publisher(
                entries=entries,
                keys=keys,
                pending=pending,
                releases=releases,
                janitor=janitor,
                workspaces=workspaces,
            ),
            arrivals=settings.arrivals,
            sites=settings.sites,
            requester=settings.requester,
            releases_url=settings.releases_url,
        )
