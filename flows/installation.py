"""An installation: every store of one hospital, opened once, and the services built on them.

Only entry points open it: the bodies of flows, and commands. Everything else receives the stores
that it needs, by name, or the workplace of a run.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from flows.publication import Publisher, ReleaseOutcome
from privacy.errors import ConfigurationError
from privacy.ledger import EntryState, entry_paid_for
from storage.files.diagnostics import DiagnosticsFile
from storage.files.private import ensure_private_directory
from storage.files.workspace import PrivateWorkspace
from storage.keys.key_store import KeyStore
from storage.releases.measurements import MeasurementStore
from storage.releases.pending import PendingBundles
from storage.releases.release_store import ReleaseStore
from storage.settings import Settings, installation_id, open_ledger
from tasks.execution.executor import Executor, InProcessExecutor
from tasks.execution.runtime import stage
from tasks.steps.entries import Entries
from tasks.steps.janitor import Janitor
from tasks.steps.job import ReleaseJob
from tasks.steps.source import Tables

HELD_BYTES = 2**25
"""Size of files up to which one process reads a table before workers would have started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """The private folders of an installation's runs, and the cluster that runs their sums.

    `dask_address` is that of a running scheduler. If it is None, a cluster of this machine has
    `n_workers` processes; with 0 this process does the work. A small table is read in this process
    if `by_size` is true, or if the scheduler does not answer.
    """

    workspaces: Path
    diagnostics: Path
    dask_address: str | None
    n_workers: int
    by_size: bool

    @contextmanager
    def workspace(self, release_id: str) -> Iterator[PrivateWorkspace]:
        """Give a run its private workspace, purged at the end however the run ends."""
        with PrivateWorkspace.create(self.workspaces, release_id) as workspace:
            yield workspace
            with stage("purge"):
                workspace.purge()

    def diagnostics_of(self, release_id: str) -> DiagnosticsFile:
        """Return the restricted file in which a run lists the rows that break a rule."""
        return DiagnosticsFile(self.diagnostics / f"{release_id}.jsonl")

    @contextmanager
    def executor_of_released(self, run_id: str) -> Iterator[Executor]:
        """Run tasks on released rows on the configured Dask cluster, else in this process."""
        with ExitStack() as cluster:
            executor: Executor = InProcessExecutor(guarded=True)
            if self.dask_address is not None:
                from tasks.execution.cluster import connect
                from tasks.execution.dask_executor import DaskExecutor

                with suppress(ConfigurationError):
                    client = cluster.enter_context(connect(self.dask_address))
                    executor = DaskExecutor(client, run_id)
            yield executor

    @contextmanager
    def executor(
        self, workspace: PrivateWorkspace, *, table_bytes: int | None
    ) -> Iterator[Executor]:
        """Run sums on the configured Dask cluster, a local one, or in this process.

        Nothing released depends on the choice: sums are the same bits on any number of workers, and
        noise is drawn in this process.
        """
        small = table_bytes is not None and table_bytes <= HELD_BYTES
        if (small and self.by_size) or (self.dask_address is None and self.n_workers == 0):
            yield InProcessExecutor(guarded=True)
            return
        # Imported where they are needed: Dask takes a second to load.
        from tasks.execution.cluster import connect, local_cluster
        from tasks.execution.dask_executor import DaskExecutor

        with ExitStack() as cluster:
            if self.dask_address is not None:
                executor: Executor = InProcessExecutor(guarded=True)
                try:
                    client = cluster.enter_context(connect(self.dask_address))
                    executor = DaskExecutor(client, workspace.run_id)
                except ConfigurationError as error:
                    if not small or error.code not in ("SCHEDULER_UNREACHABLE", "CLUSTER_EMPTY"):
                        raise
                yield executor
                return
            with stage("cluster"):
                client = cluster.enter_context(
                    local_cluster(self.n_workers, workspace.path("dask"))
                )
            yield DaskExecutor(client, workspace.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The services of an installation, which measure and publish.

    `arrivals` is the folder of tables that came by themselves, `sites` that of the site files,
    `requester` the key id of the person in whose name the orchestrator asks, `releases_url` the
    address at which readers find the release store.
    """

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
        pending = PendingBundles(settings.pending)
        workspaces = ensure_private_directory(settings.private_root)
        entries = Entries(
            open_ledger(settings),
            owner=installation_id(settings.home),
            keys=keys,
            measurements=MeasurementStore(settings.measurements),
            releases=ReleaseStore(settings.releases),
            workspaces=workspaces,
            declarations=settings.declarations,
            register=settings.register,
        )
        janitor = Janitor(entries=entries, pending=pending, diagnostics=settings.diagnostics)
        workplace = Workplace(
            workspaces=workspaces,
            diagnostics=settings.diagnostics,
            dask_address=settings.dask_address,
            n_workers=settings.workers,
            by_size=settings.dask_workers is None,
        )
        return cls(
            entries=entries,
            janitor=janitor,
            tables=Tables(keys=keys, places=settings.data_places, scratch=workspaces),
            workplace=workplace,
            publisher=Publisher(
                entries=entries,
                keys=keys,
                pending=pending,
                janitor=janitor,
                executor=workplace.executor_of_released,
            ),
            arrivals=settings.arrivals,
            sites=settings.sites,
            requester=settings.requester,
            releases_url=settings.releases_url,
        )

    def answered_before(self, job: ReleaseJob) -> ReleaseOutcome | None:
        """Return the published bundle of the same request, if it is found without a run, else None.

        Nothing is charged, and no row is measured. A run has to handle a large table, and a request
        with another approval, other caps or other synthetic rows.
        """
        published = [e for e in self.entries.all() if e.state is EntryState.PUBLISHED]
        if job.ref.dataset not in {entry.dataset for entry in published}:
            return None
        reader = self.tables.reader(job.source, job.events)
        size = reader.size_bytes()
        if size is None or size > HELD_BYTES:
            return None  # the workers of a run hash it faster, and a new table is read once
        self.entries.check_publishable(job.ref.dataset)  # as by a run
        key, _ = self.tables.key(reader, InProcessExecutor(), **job.identity)
        asked = job.charge(key, owner=self.entries.owner)
        entry = entry_paid_for(asked, self.entries.all())
        if (
            entry is None
            or entry.state is not EntryState.PUBLISHED
            or (entry.needs_approval, entry.caps) != (asked.needs_approval, asked.caps)
            or self.publisher.published_as_asked(entry.entry_id, job.asked) is None
        ):
            return None
        # As a run does, so that rows of killed runs are deleted now, not at the next charge.
        self.janitor.clean_up()
        return self.publisher.answer(entry, job.asked)
