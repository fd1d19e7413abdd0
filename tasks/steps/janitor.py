"""Cleans up after dead runs: closes their entries and deletes what they have left."""

from dataclasses import dataclass
from pathlib import Path

from storage.files.diagnostics import remove_old_diagnostics
from storage.files.private import remove_staging, staged
from storage.files.workspace import live_run_ids, purge_abandoned
from storage.releases.pending import PendingBundles
from tasks.steps.entries import AFTER_SEAL, Entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Janitor:
    """Looks after the entries and folders of the runs of one installation."""

    entries: Entries
    pending: PendingBundles
    diagnostics: Path

    def clean_up(self) -> None:
        """Close the entries of dead runs and delete what they left.

        Where nothing was computed for release the entry is void; where noise could be drawn,
        burned, or sealed if its measurement is whole. A sealed or approved one stays, for the next
        run of its request to publish, unless its bundle is stored. Overdue diagnostics are deleted.
        """
        # Entries first: a run holds its workspace from before its reservation to after its last
        # transition, so an open entry that was seen here and has no live run is abandoned.
        entries, measurements = self.entries, self.entries.measurements.root
        own = [entry for entry in entries.all() if entry.owner == entries.owner]
        # The same holds for the folders that it writes. They are listed here and not taken from the
        # workspaces that are purged, since a clean-up may die too.
        written = staged(measurements) | self.pending.release_ids()
        live = live_run_ids(entries.workspaces)
        for entry in own:
            if entry.release_id not in live:
                entries.close_dead(entry)
        waiting = {e.release_id for e in entries.all() if e.state in AFTER_SEAL}
        purge_abandoned(entries.workspaces)
        for release_id in written - live:
            # A measurement, or a bundle, that was not written to its end.
            remove_staging(measurements, release_id)
            remove_staging(self.pending.root, release_id)
            if release_id not in waiting:
                self.pending.remove(release_id)
        entries.releases.clean_staging()
        remove_old_diagnostics(self.diagnostics)
