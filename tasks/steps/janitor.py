"""Cleans up after dead runs: closes their entries and deletes what they have left."""

from storage.files.diagnostics import remove_old_diagnostics
from storage.files.private import ensure_private_directory, remove_staging, staged
from storage.files.workspace import live_run_ids, purge_abandoned
from storage.releases.pending import PendingBundles
from storage.releases.store import ReleaseStore
from storage.settings import Settings
from tasks.steps.entries import AFTER_SEAL, Entries


def clean_up(settings: Settings) -> None:
    """Close the entries of dead runs of an installation and delete what they left.

    Where nothing was computed for release the entry is void; where noise could be drawn it is
    burned, but sealed if its measurement is whole. A sealed or approved one stays, for the next run
    of the same request to publish, unless its bundle is in the store already. Diagnostics are
    deleted when their time is over.
    """
    entries, pending = Entries(settings), PendingBundles(settings.pending)
    workspaces = ensure_private_directory(settings.private_root)
    # Entries first: a run holds its workspace from before its reservation to after its last
    # transition, so an open entry that was seen here and has no live run is abandoned.
    own = entries.own()
    # The same holds for the folders that it writes. They are listed here and not taken from the
    # workspaces that are purged, since a clean-up may die too.
    written = staged(settings.measurements) | pending.release_ids()
    live = live_run_ids(workspaces)
    for entry in own:
        if entry.release_id not in live:
            entries.close_dead(entry)
    waiting = {e.release_id for e in entries.all() if e.state in AFTER_SEAL}
    purge_abandoned(workspaces)
    for release_id in written - live:
        remove_staging(settings.measurements, release_id)
        remove_staging(settings.pending, release_id)
        if release_id not in waiting:
            pending.remove(release_id)
    ReleaseStore(settings.releases).clean_staging()
    remove_old_diagnostics(settings.diagnostics)
