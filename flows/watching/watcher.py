"""The watcher: takes arrivals, sends events to the orchestrator, cleans up after dead runs.

Its parts fail independently: a part that fails writes one line to the log, is tried again after
growing pauses, and does not stop the others.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from flows.events import PublicEvent, emit, orchestrator, run_events, send
from flows.installation import Installation
from flows.local_server import connection
from flows.supervisor import Supervisor
from flows.watching.arrivals import arrived, scan
from flows.watching.budgets import budgets, read_sites
from flows.watching.outbox import (
    CURSOR_FILE,
    Cursor,
    alerts,
    low_budgets,
    notices,
    overdue_releases,
    read_cursor,
    resend,
    take_up,
    unpublished,
)
from flows.watching.schedules import pause_exhausted, review_schedules
from flows.watching.status import collect
from privacy.errors import ClustMixError, refusals
from privacy.ledger import LedgerEntry
from storage.arrivals.arrival_store import ArrivalStore
from storage.files.documents import write_kept
from storage.files.workspace import live_run_ids
from storage.keys.key_store import KeyStore
from storage.ledger.ledger_db import HeadFile
from storage.releases.pending import PendingBundles
from storage.settings import Settings, installation_id, open_ledger
from tasks.execution import runtime

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

refusal = refusals(__package__)

TICK_SECONDS = 2.0
"""Pause between looks for arrivals and new rows of the ledger."""

PARTS_SECONDS, UPKEEP_SECONDS = 15.0, 60.0

MOST_SECONDS = 300.0
"""Longest pause before a part that failed is tried again."""


@dataclass(slots=True)
class PeriodicTask:
    """A periodic task of the watcher."""

    name: str
    every_seconds: float
    work: Callable[[], None]
    _failures: int = 0
    _not_before: float = 0.0

    @property
    def is_due(self) -> bool:
        """True if it is time to do the work."""
        return time.monotonic() >= self._not_before

    def attempt(self, log_folder: Path) -> ClustMixError | None:
        """Do the work; log a failure in one line, and the end of failures."""
        failed: ClustMixError | None = None
        try:
            self.work()
        except ClustMixError as error:
            failed = error
        except Exception as error:
            failed = self._unexpected(error, log_folder)
        pause = self.every_seconds
        if failed is None:
            if self._failures:
                log(self.name, "works again")
            self._failures = 0
        else:
            self._failures += 1
            pause = max(pause, min(2.0 ** min(self._failures, 30), MOST_SECONDS))
            log(self.name, f"{failed}; tried again in {pause:.0f} s")
        self._not_before = time.monotonic() + pause
        return failed

    def _unexpected(self, error: Exception, folder: Path) -> ClustMixError:
        """Write the traceback, which may quote private data, to the private log: once."""
        stopped = f"stopped by {type(error).__name__}"
        if not self._failures:
            with suppress(ClustMixError, OSError), runtime.private_log_directory(folder):
                runtime.private_log(
                    f"watch {self.name}", "".join(traceback.format_exception(error))
                )
        return refusal("UNEXPECTED", stopped=stopped, log=folder / runtime.PRIVATE_LOG_NAME)


class Watcher:
    """Does everything that is due at each tick; its state is in the folder of the server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._unsent: list[PublicEvent] = []
        self._posted: set[str] = set()
        self._down: dict[str, int] = {}
        self._problems: tuple[str, ...] = ()
        self._read_again_at = 0.0
        # A server of this machine is looked for anew each time: its next start has another port.
        self._finds_server = "PREFECT_API_URL" not in os.environ
        os.environ.update(runtime.safe_environment())
        self._parts = [
            PeriodicTask("arrivals", TICK_SECONDS, self._take_arrivals),
            PeriodicTask("news", TICK_SECONDS, self._notify_of_rows),
            PeriodicTask("dead runs", UPKEEP_SECONDS, self._clean_up),
            PeriodicTask("unfinished", UPKEEP_SECONDS, self._resend),
            PeriodicTask("schedules", UPKEEP_SECONDS, self._notify_of_missed_runs),
            PeriodicTask("budgets", UPKEEP_SECONDS, self._notify_of_low_budgets),
        ]
        if (url := settings.lineage_url) is not None:
            work = partial(self._send_lineage, url)
            self._parts.append(PeriodicTask("lineage", UPKEEP_SECONDS, work))
        if (url := settings.notify_url) is not None:
            work = partial(self._notify_of_parts, url)
            self._parts.append(PeriodicTask("parts", PARTS_SECONDS, work))

    def tick(self) -> dict[str, ClustMixError | None]:
        """Do everything that is due; return the error of each part that was due, or None."""
        due = [part for part in self._parts if part.is_due]
        return {part.name: part.attempt(self._settings.diagnostics) for part in due}

    def _clean_up(self) -> None:
        # Opened anew each time, since a ledger that is away now may be there in a minute.
        Installation.open(self._settings).janitor.clean_up()

    def _take_arrivals(self) -> None:
        """Take arrivals; their events are sent with the next news."""
        settings = self._settings
        secret = KeyStore(settings.key_folder).landing_secret()
        events, left = scan(
            settings.landing, settings.arrivals, sites=settings.sites, secret=secret
        )
        self._unsent += events
        problems = tuple(map(str, left))
        if problems != self._problems:
            for problem in problems:
                log("arrivals", f"left for later: {problem}")
        self._problems = problems

    def _notify_of_rows(self) -> None:
        try:
            self._send(self._unsent)
            self._unsent.clear()
        finally:  # an alert does not wait for the orchestrator
            self._notify_of_new_rows()

    def _notify_of_new_rows(self) -> None:
        cursor, head = self._cursor(), HeadFile(self._settings.ledger_head_path).read()
        # The exported head is cheaper to read than the ledger.
        same = head == (cursor.sequence, cursor.row_hash)
        if same and time.monotonic() < self._read_again_at:
            return
        rows = self._rows()
        events = notices(rows, cursor, owner=installation_id(self._settings.home))
        place = {"sequence": rows[-1].sequence, "row_hash": rows[-1].hash} if rows else {}
        self._send(events, cursor.model_copy(update=place))
        self._read_again_at = time.monotonic() + UPKEEP_SECONDS

    def _resend(self) -> None:
        settings = self._settings
        unanswered = unpublished(
            self._rows(),
            owner=installation_id(settings.home),
            live=live_run_ids(settings.private_root),
            made=PendingBundles(settings.pending).release_ids(),
        )
        if settings.arrivals.exists():
            waiting = ArrivalStore(settings.arrivals).waiting()
            unanswered += [arrived(arrival) for arrival in waiting]
        states = Supervisor(settings.server_home).states()
        begun = {part.name.removesuffix("-worker"): part.since for part in states}
        with self._orchestrator() as client:
            for name in take_up(client, begun, now=_now()):
                log("taken up", name)
            events, cursor = resend(unanswered, self._cursor(), client, now=_now())
        self._send(events, cursor)

    def _notify_of_missed_runs(self) -> None:
        cursor = self._cursor()
        with self._orchestrator() as client:
            events, known = review_schedules(client, cursor.missed, now=_now())
        found = budgets(read_sites(self._settings.sites)[0], self._rows())
        late, noted = overdue_releases(found, cursor.missed)
        self._send([*events, *late], cursor.model_copy(update={"missed": known | noted}))

    def _notify_of_low_budgets(self) -> None:
        sites, faults = read_sites(self._settings.sites)
        found = budgets(sites, self._rows())
        self._send(*low_budgets(found, self._cursor()))
        exhausted = {one.dataset for one in found if not one.releases_left}
        cursor = self._cursor()
        if exhausted or cursor.paused:
            with self._orchestrator() as client:
                events, paused = pause_exhausted(client, exhausted, cursor.paused)
            self._send(events, cursor.model_copy(update={"paused": paused}))
        if faults:
            named = ", ".join(f"{name} ({code})" for name, code in faults.items())
            raise refusal("SITE_UNUSABLE", named=named)

    def _send_lineage(self, url: SecretStr) -> None:
        rows, cursor = self._rows(), self._cursor()
        events = run_events(rows[cursor.lineage :], owner=installation_id(self._settings.home))
        send(events, url)
        self._send((), cursor.model_copy(update={"lineage": len(rows)}))

    def _notify_of_parts(self, url: SecretStr) -> None:
        """Post that a part is down, after two looks, or works again; no orchestrator is needed."""
        self._find_server()
        looks = {
            name: 0 if up else self._down.get(name, 0) + 1
            for name, up in collect(self._settings, whole=False).up.items()
        }
        changed = [f"part.down {name}" for name, times in looks.items() if times == 2]
        changed += [
            f"part.up {n}" for n, times in self._down.items() if times > 1 > looks.get(n, 1)
        ]
        for text in changed:
            event, _, part = text.partition(" ")
            send([{"event": event, "part": part, "text": text}], url, whose="NOTIFY")
            log("sent", text)
        self._down = looks

    def _rows(self) -> tuple[LedgerEntry, ...]:
        return open_ledger(self._settings).history()

    def _cursor(self) -> Cursor:
        cursor = read_cursor(self._settings.server_home)
        if cursor is None:
            cursor = Cursor.at_first(self._rows(), now=_now())
            self._keep(cursor)
        return cursor

    def _keep(self, cursor: Cursor) -> None:
        write_kept(self._settings.server_home / CURSOR_FILE, cursor)

    def _send(self, events: Sequence[PublicEvent], cursor: Cursor | None = None) -> None:
        """Send the events, then keep the cursor: unanswered events are sent again."""
        if events:
            self._find_server()
            try:
                emit(events)
            except ClustMixError:
                self._alert(events)
                raise
        if cursor is not None and cursor != read_cursor(self._settings.server_home):
            self._keep(cursor)
        for event in events:
            log("sent", f"{event.name} {event.resource_id}")

    def _alert(self, events: Sequence[PublicEvent]) -> None:
        """Post the alerts among events that the orchestrator did not take, each once."""
        url = self._settings.notify_url
        unposted = [event for event in events if str(event.event_id) not in self._posted]
        if url is not None:
            send(alerts(unposted), url, whose="NOTIFY")
            self._posted |= {str(event.event_id) for event in unposted}

    def _orchestrator(self) -> AbstractContextManager[SyncPrefectClient]:
        self._find_server()
        return orchestrator()

    def _find_server(self) -> None:
        if self._finds_server:
            os.environ.update(connection(self._settings.server_home))


def log(name: str, text: str) -> None:
    """Write one public line to the log, which is standard error."""
    sys.stderr.write(f"{_now():%Y-%m-%dT%H:%M:%SZ} {name}: {text}\n")
    sys.stderr.flush()


def _now() -> datetime:
    return datetime.now(UTC)
