"""The workplace of a run: its private workspace, its diagnostics file, and its executor."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.files.diagnostics import DiagnosticsFile
from storage.files.workspace import PrivateWorkspace
from tasks.execution.executor import Executor, InProcessExecutor
from tasks.execution.runtime import stage

HELD_BYTES = 2**25
"""Up to this size of its files one process reads a table sooner than workers have started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """The private folders of an installation's runs, and the cluster that runs their sums.

    `dask_address` is that of a running scheduler, None for a cluster of this machine with so many
    processes, 0 for this process alone. `by_size` has a small table in this process all the same.
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
    def executor(
        self, workspace: PrivateWorkspace, *, table_bytes: int | None
    ) -> Iterator[Executor]:
        """Run sums on the configured Dask cluster, a local one, or in this process.

        Nothing released depends on the choice: sums are the same bits on any number of workers, and
        noise is drawn in this process.
        """
        small = self.by_size and table_bytes is not None and table_bytes <= HELD_BYTES
        if self.dask_address is None and (small or self.n_workers == 0):
            yield InProcessExecutor(guarded=True)
            return
        # Imported where they are needed: Dask takes a second to load.
        from tasks.execution.cluster import connect, local_cluster
        from tasks.execution.dask_executor import DaskExecutor

        if self.dask_address is not None:
            with connect(self.dask_address) as client:
                yield DaskExecutor(client, workspace.run_id)
            return
        with ExitStack() as cluster:
            with stage("cluster"):
                client = cluster.enter_context(
                    local_cluster(self.n_workers, workspace.path("dask"))
                )
            yield DaskExecutor(client, workspace.run_id)
