"""What the ledger has recorded and the orchestrator was not told of yet: the ledger is the outbox.

The watcher reads the rows after its place, tells of them, and moves its place once the server has
answered. After a crash between the two it tells again, with the same event ids.
"""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import Field

from flows.events import PublicEvent
from privacy.errors import IntegrityError
from privacy.ledger import GENESIS_HASH, EntryState, LedgerEntry, latest_entries
from privacy.spending import moment
from storage.files.documents import Record, read_kept, write_kept
from storage.ledger.head import check_head
from tasks.steps.entries import CHECK_FAILED, CHECK_PASSED

FIRST_LOOK_BACK = timedelta(days=1)
"""Rows older than this are history for a watcher that knows no place yet."""

CURSOR_FILE = "watcher.json"

_EVENTS = MappingProxyType(
    {
        EntryState.SEALED: "measurement.sealed",
        EntryState.PUBLISHED: "release.published",
        EntryState.VOID: "release.refused",
        EntryState.BURNED: "release.burned",
        EntryState.WITHHELD: "release.withheld",
        EntryState.REVOKED: "release.revoked",
    }
)
"""States that somebody waits for. An entry that is void was not charged."""

_TO_PUBLISH = (EntryState.SEALED, EntryState.APPROVED)
_CODE = re.compile(r"[A-Za-z][A-Za-z0-9_:-]{0,99}")


class Repetition(Record):
    """How often something was told again, and until when it is not told once more."""

    times: Annotated[int, Field(ge=0)]
    not_before: datetime


class Cursor(Record):
    """What a watcher has to know after its restart; all of it is public.

    `sequence` and `row_hash` are of the last row of the ledger that the orchestrator was told of,
    `lineage` is the number of the last one that the receiver of lineage was told of, `low` are the
    datasets whose budget is known to be low, `missed` is the last missed run that was told of, by
    schedule, and `repeated` what was told again, by resource id.
    """

    format_version: Literal[1] = 1
    sequence: Annotated[int, Field(ge=0)] = 0
    row_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = GENESIS_HASH
    lineage: Annotated[int, Field(ge=0)] = 0
    low: tuple[str, ...] = ()
    missed: dict[str, datetime] = Field(default_factory=dict)
    repeated: dict[str, Repetition] = Field(default_factory=dict)

    @classmethod
    def at_first(cls, rows: Iterable[LedgerEntry], *, now: datetime) -> Self:
        """Return the cursor of a watcher that starts for the first time."""
        past = [row for row in rows if moment(row.recorded_at) < now - FIRST_LOOK_BACK]
        return cls(sequence=past[-1].sequence, row_hash=past[-1].hash) if past else cls()


class CursorFile:
    """The file of a watcher's cursor, of mode 0600, in a folder of mode 0700."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CURSOR_FILE

    def read(self) -> Cursor | None:
        """Return the cursor; None before the first, IntegrityError for anything else."""
        damaged = IntegrityError(
            "WATCHER_MEMORY_DAMAGED",
            f"expected the memory of the watcher in {self._path.name}, found something else; "
            "remove the file, and what happened since yesterday is told again",
        )
        return read_kept(self._path, Cursor, damaged=damaged)

    def write(self, cursor: Cursor) -> None:
        """Replace the cursor; on disk when the call returns."""
        write_kept(self._path, cursor)


def notices(rows: tuple[LedgerEntry, ...], cursor: Cursor, *, owner: str) -> list[PublicEvent]:
    """Return the events about the rows after the watcher's place, in their order.

    The rows are the whole journal, restored from an older copy if it does not contain that place
    (IntegrityError). Each installation, the `owner`, tells of its own entries.

    Privacy
    -------
    An event holds ids, the state and a code. What an officer has written is not repeated.
    """
    check_head(rows, (cursor.sequence, cursor.row_hash))
    latest = latest_entries(rows)
    told: list[PublicEvent] = []
    for row in rows[cursor.sequence :]:
        name = _EVENTS.get(row.state)
        if name is None or row.owner != owner or row.note in (CHECK_PASSED, CHECK_FAILED):
            continue  # who made a check has its answer
        if row.state is EntryState.SEALED:
            if latest[row.entry_id].state not in _TO_PUBLISH:
                continue  # nobody has to publish it any more
            if row.needs_approval and latest[row.entry_id].state is EntryState.SEALED:
                told += [about(row, name), about(row, "release.waiting")]
                continue
        told.append(about(row, name))
    return told


def about(entry: LedgerEntry, name: str) -> PublicEvent:
    """Return the event of a name about a row of the ledger."""
    payload: dict[str, str | int] = {"dataset": entry.dataset, "release_id": entry.release_id}
    if name != "measurement.sealed":
        payload["reason"] = reason_of(entry)
    return PublicEvent(
        name=name,
        resource_id=f"clustmix.release.{entry.release_id}",
        payload=payload,
        event_id=event_id(name, entry.entry_id, str(entry.sequence)),
    )


def reason_of(entry: LedgerEntry) -> str:
    """Return the code for which an entry is in its state; its state where no code was noted."""
    if entry.signers:
        return "BY_OFFICER"
    if entry.note is not None and _CODE.fullmatch(entry.note):
        return entry.note
    return entry.state.value.upper()


def event_id(*parts: str) -> UUID:
    """Return the id of an event, the same for the same parts."""
    return uuid5(NAMESPACE_URL, "urn:clustmix:event:" + "\n".join(parts))
