"""Tables that arrived: copied and verified, then accepted, then taken by one run at a time.

A table is copied to a staging folder, hashed on the way, forced to the disk and renamed. Then its
row is committed, and only then is it removed from the landing place. A process that dies in between
leaves a copy without a row, which is deleted, or a row whose table still lies in the landing place,
which is removed. So no table is lost, and none is accepted twice.
"""

import builtins
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from privacy.errors import (
    BudgetRefused,
    ClustMixError,
    ConfigurationError,
    InputError,
    LedgerError,
    MissingExtra,
    Withheld,
    refusals,
)
from storage.arrivals.landing import LandingFolder, content_name, copy_table, is_ours
from storage.arrivals.ready_files import ReadyFile
from storage.arrivals.rows import (
    Arrival,
    ArrivalState,
    ArrivalTransaction,
    Outcome,
    arrival_transaction,
)
from storage.files.private import ensure_private_directory, folder_locked, locks

refusal = refusals(__package__)
__all__ = ["Arrival", "ArrivalState", "ArrivalStore", "Outcome"]

MAX_FAILURES = 3
"""Runs of one arrival that may fail before it ends for good; see `is_of_installation`."""

_RETRY_AFTER = (timedelta(minutes=10), timedelta(hours=1))
_LIST = "arrivals.sqlite"


class ArrivalStore:
    """Folders ``<root>/<arrival_id>`` of mode 0700, and a list of all arrivals.

    The first use creates the root, with mode 0700. Keep it on a disk of this machine. Every method
    raises a ConfigurationError or an IntegrityError if the folder or the list cannot be used.

    Privacy
    -------
    It holds rows. A place that `path` returns holds verified content alone. Deletion does not
    overwrite the disk: put the folder on an encrypted file system.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def scanning(self) -> Iterator[None]:
        """Let one process at a time accept arrivals; first delete the remains of dead ones."""
        with folder_locked(ensure_private_directory(self._root)):
            folders = [path for path in self._root.iterdir() if is_ours(path.name)]
            if folders and not os.path.lexists(self._root / _LIST):
                raise refusal("ARRIVALS_DAMAGED without list")
            kept = {arrival.arrival_id for arrival in self.unfinished()}
            for folder in folders:
                if folder.name not in kept:
                    shutil.rmtree(folder, ignore_errors=True)
            yield

    def accept(
        self, ready: ReadyFile, landing: LandingFolder, *, name: str, sha256: str
    ) -> Arrival:
        """Copy and verify an announced table, then accept it; `clear` removes it from landing.

        Call it within `scanning`, after the check of signature and names. `name` and `sha256` are
        those of the ready file, for `clear`. The arrival is durable at return. An InputError
        (``ARRIVAL_REPLAYED``, ``_INCOMPLETE``, ``_NAME``), or a failure of landing place or disk,
        leaves nothing.
        """
        with self._transaction() as rows:
            if rows.select("nonce = ?", ready.nonce):
                raise refusal("ARRIVAL_REPLAYED")
        now = datetime.now(UTC)
        arrival_id = f"a-{now:%Y%m%d}-{os.urandom(4).hex()}"
        versions = copy_table(ready, landing, self._root / arrival_id)
        landed = {"ready": name, "sha256": sha256, "versions": versions}
        with self._transaction() as rows:
            rows.insert(
                arrival_id=arrival_id,
                dataset=ready.dataset,
                nonce=ready.nonce,
                content=content_name(ready),
                accepted_at=now.isoformat(),
                state=ArrivalState.ACCEPTED,
                not_before=now.isoformat(),
                landed=json.dumps(landed),
            )
            return _known(rows, arrival_id)

    def clear(self, landing: LandingFolder) -> tuple[Arrival, ...]:
        """Remove accepted tables from the landing place, unless written anew; in `scanning`."""
        with self._transaction() as rows:
            uncleared = rows.select("landed IS NOT NULL")
        for arrival in uncleared:
            landed = json.loads(arrival.landed or "{}")
            for file, version in landed["versions"].items():
                landing.remove(file, version)
            landing.remove_ready(landed["ready"], landed["sha256"])
            with self._transaction() as rows:
                rows.update(arrival.arrival_id, landed=None)
        return uncleared

    def find(self, arrival_id: str) -> Arrival | None:
        """Return an arrival, None if there is none."""
        with self._transaction() as rows:
            return rows.find(arrival_id)

    def unfinished(self) -> tuple[Arrival, ...]:
        """Return the arrivals that wait, then those that a run has taken; change nothing."""
        with self._transaction() as rows:
            states = (ArrivalState.ACCEPTED, ArrivalState.TAKEN)
            return tuple(arrival for s in states for arrival in rows.select("state = ?", s))

    def waiting(self) -> tuple[Arrival, ...]:
        """Return the arrivals that a run should take now, in the order of acceptance.

        A dead run frees its arrival; after a failed one it rests, so that the cause can be mended.
        """
        with self._transaction() as rows:
            taken = rows.select("state = ?", ArrivalState.TAKEN)
        for arrival in taken:
            with suppress(ConfigurationError), self._locked(arrival.arrival_id):
                self._close_dead(arrival.arrival_id)
        with self._transaction() as rows:
            now = datetime.now(UTC).isoformat()
            return rows.select("state = ? AND not_before <= ?", ArrivalState.ACCEPTED, now)

    def path(self, arrival_id: str) -> Path:
        """Return the file or folder of an arrival (``ARRIVAL_UNKNOWN``, ``ARRIVAL_ENDED``)."""
        with self._transaction() as rows:
            return self._root / arrival_id / _unfinished(rows, arrival_id).content

    def releases_of(self, arrival_id: str) -> tuple[str, ...]:
        """Return all releases that have taken an arrival, in order."""
        with self._transaction() as rows:
            return rows.releases_of(arrival_id)

    @contextmanager
    def released_as(self, arrival_id: str, *, dataset: str, release_id: str) -> Iterator[Path]:
        """Yield the file or folder of an arrival to a block that releases it, then end it.

        If the process dies, its run counts as failed. The ConfigurationError is
        ``ARRIVAL_UNKNOWN``, ``_OTHER_DATASET``, ``_ENDED``, ``_LOST``, or ``_TAKEN`` by a live run.

        The table is deleted at the end, but after a failure only if there were `MAX_FAILURES`; a
        fault of the installation does not count. A table that violates its site file (`InputError`)
        is refused at once, since another run would refuse it again.
        """
        with self._transaction() as rows:
            arrival = _known(rows, arrival_id)
            if arrival.dataset != dataset:
                raise refusal("ARRIVAL_OTHER_DATASET", dataset=dataset, other=arrival.dataset)
            _unfinished(rows, arrival_id)
        with self._locked(arrival_id):
            self._close_dead(arrival_id)
            with self._transaction() as rows:
                _unfinished(rows, arrival_id)
                rows.take(arrival_id, release_id)
            outcome, counted = Outcome.FAILED, 1
            try:
                yield self.path(arrival_id)
                outcome = Outcome.SEALED
            except (BudgetRefused, InputError):
                outcome = Outcome.REFUSED
                raise
            except Withheld:
                outcome = Outcome.WITHHELD
                raise
            except Exception as error:
                counted = 0 if is_of_installation(error) else 1
                raise
            finally:
                self._end(arrival_id, outcome, counted=counted)

    def _end(self, arrival_id: str, outcome: Outcome, *, counted: int) -> None:
        """Record the outcome of a run; the caller holds the lock of the folder."""
        with self._transaction() as rows:
            arrival = _known(rows, arrival_id)
            if outcome is Outcome.FAILED:
                _count_failure(rows, arrival, counted, wait=True)
            else:
                rows.update(arrival_id, state=ArrivalState.DONE, outcome=outcome)
        self._delete_if_done(arrival_id)

    @contextmanager
    def _locked(self, arrival_id: str) -> Iterator[None]:
        """Lock the folder of an arrival for a block (``ARRIVAL_LOST``, ``ARRIVAL_TAKEN``)."""
        try:
            descriptor = os.open(self._root / arrival_id, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise refusal("ARRIVAL_LOST", arrival_id=arrival_id) from None
        try:
            if not locks(descriptor):
                raise refusal("ARRIVAL_TAKEN")
            yield
        finally:
            os.close(descriptor)

    def _close_dead(self, arrival_id: str) -> None:
        """Count the run of a taken arrival as failed; the caller holds the lock of the folder."""
        with self._transaction() as rows:
            arrival = _known(rows, arrival_id)
            if arrival.state is ArrivalState.TAKEN:
                _count_failure(rows, arrival, 1, wait=False)
        self._delete_if_done(arrival_id)

    def _delete_if_done(self, arrival_id: str) -> None:
        found = self.find(arrival_id)
        if found is not None and found.state is ArrivalState.DONE:
            shutil.rmtree(self._root / arrival_id, ignore_errors=True)

    def _transaction(self) -> AbstractContextManager[ArrivalTransaction]:
        return arrival_transaction(ensure_private_directory(self._root) / _LIST)


def is_of_installation(error: Exception) -> bool:
    """Return whether every other table would fail too: by a setting, ledger, disk or cluster."""
    # The guard of a step replaces an exception by the code "step:ExceptionType".
    code = error.code if isinstance(error, ClustMixError) else ""
    kind = getattr(builtins, code.rpartition(":")[2], error.__class__)
    return issubclass(kind, (ConfigurationError, LedgerError, MissingExtra, OSError)) or (
        code.startswith(("LEDGER_", "INSTALLATION_")) or code.endswith(":WorkerLost")
    )


def _count_failure(rows: ArrivalTransaction, arrival: Arrival, counted: int, *, wait: bool) -> None:
    failures = arrival.failures + counted
    rows.update(arrival.arrival_id, outcome=Outcome.FAILED, failures=failures)
    if failures >= MAX_FAILURES:
        rows.update(arrival.arrival_id, state=ArrivalState.DONE)
        return
    has_failed = arrival.outcome is Outcome.FAILED
    again = datetime.now(UTC) + (_RETRY_AFTER[has_failed] if wait else timedelta())
    rows.update(arrival.arrival_id, state=ArrivalState.ACCEPTED, not_before=again.isoformat())


def _known(rows: ArrivalTransaction, arrival_id: str) -> Arrival:
    found = rows.find(arrival_id)
    if found is None:
        raise refusal("ARRIVAL_UNKNOWN")
    return found


def _unfinished(rows: ArrivalTransaction, arrival_id: str) -> Arrival:
    arrival = _known(rows, arrival_id)
    if arrival.state is ArrivalState.DONE:
        raise refusal("ARRIVAL_ENDED", arrival_id=arrival_id, outcome=arrival.outcome)
    return arrival
