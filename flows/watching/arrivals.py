"""Arrivals: every ready file of the landing place is accepted, or refused and put aside."""

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from flows.events import PublicEvent, dataset_event
from flows.site.site_file import load_site
from privacy.errors import ClustMixError, InputError, refusals
from storage.arrivals.arrival_store import Arrival, ArrivalStore
from storage.arrivals.landing import LandingFolder
from storage.arrivals.ready_files import ReadyFile, parse_ready_file
from storage.files.private import ensure_private_directory, open_private

refusal = refusals(__package__)

REFUSED_LOG = "refused.log"

UNKNOWN_DATASET = "unknown"
"""Dataset in the event of a refused arrival whose dataset has no site file."""

_AHEAD = timedelta(minutes=5)
# These fail again for every other table.
_FAULTS_OF_ALL = ("LANDING_", "ARRIVALS_")


def arrived(arrival: Arrival) -> PublicEvent:
    """Return the event of an accepted arrival; its id changes when a run of it fails or dies."""
    seed = f"clustmix:cohort.arrived:{arrival.arrival_id}:{arrival.failures}"
    return PublicEvent(
        name="cohort.arrived",
        resource_id=f"clustmix.arrival.{arrival.arrival_id}",
        payload={"dataset": arrival.dataset, "arrival": arrival.arrival_id},
        event_id=uuid5(NAMESPACE_URL, seed),
    )


def scan(
    landing: str, arrivals: Path, *, sites: Path, secret: bytes
) -> tuple[list[PublicEvent], list[ClustMixError]]:
    """Accept or refuse every ready file that lies in the landing place.

    Returns the events for the orchestrator, and the errors by which valid ready files were left for
    the next scan. After the death of a process, an event may be one that was sent before.

    An accepted table is removed from the landing place once its copy is on the disk below
    `arrivals`. The ready file of a refused one is renamed, and ``refused.log`` in that folder gets
    a line. `sites` has the site files; `secret` is the key of the landing place. Nothing is
    emitted. It is a ClustMixError if one of the two places cannot be used.

    Privacy
    -------
    Reads tables to copy and hash them, and looks at no value. Events hold ids and codes; the names
    that the sender chose are in the log alone, which only its owner can read.
    """
    place = LandingFolder(landing)
    store = ArrivalStore(arrivals)
    scanner = _Scanner(
        landing=place, store=store, sites=sites, secret=secret, log=arrivals / REFUSED_LOG
    )
    problems: list[ClustMixError] = []
    with store.scanning():
        names = place.ready_names()
        # Of a process that died between acceptance and removal.
        events = [arrived(arrival) for arrival in store.clear(place)]
        for name in names:
            try:
                found = scanner.look_at(name)
            except ClustMixError as problem:
                problems.append(problem)
                if problem.code.startswith(_FAULTS_OF_ALL):
                    break
                continue
            if found is not None:
                events.append(found)
    return events, problems


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scanner:
    """Decides about one ready file after the other."""

    landing: LandingFolder
    store: ArrivalStore
    sites: Path
    secret: bytes
    log: Path

    def look_at(self, name: str) -> PublicEvent | None:
        """Accept or refuse a ready file; None if it has disappeared in the meantime."""
        ready: ReadyFile | None = None
        try:
            content = self.landing.read_ready(name)
            ready = parse_ready_file(content)
            ready.verify(self.secret)
            ready.check_names(name)
            _require_young(ready, self._max_age_hours(ready))
            sha256 = hashlib.sha256(content).hexdigest()
            arrival = self.store.accept(ready, self.landing, name=name, sha256=sha256)
        except InputError as error:
            if self.landing.place.version(name) is None:
                return None
            return self._refuse(name, ready, error)
        self.store.clear(self.landing)
        return arrived(arrival)

    def _max_age_hours(self, ready: ReadyFile) -> int:
        path = self.sites / f"{ready.dataset}.yaml"
        site = load_site(path) if path.is_file() else None
        section = None if site is None else site.arrival
        if site is None or section is None or site.dataset != ready.dataset:
            raise refusal("ARRIVAL_NOT_EXPECTED")
        if ready.is_folder and site.source.kind != "parquet":
            raise refusal("ARRIVAL_NOT_EXPECTED folder", kind=site.source.kind)
        return section.max_age_hours

    def _refuse(self, name: str, ready: ReadyFile | None, error: InputError) -> PublicEvent:
        dataset = None if ready is None else ready.dataset
        is_ours = dataset is not None and (self.sites / f"{dataset}.yaml").is_file()
        # The log is written first: a process that dies here refuses, and logs, a second time.
        _log(self.log, name, dataset, error.code)
        self.landing.refuse(name)
        public = dataset if dataset is not None and is_ours else UNKNOWN_DATASET
        return dataset_event("arrival.refused", public, reason=error.code)


def _require_young(ready: ReadyFile, max_age_hours: int) -> None:
    age = datetime.now(UTC) - ready.signed
    if age > timedelta(hours=max_age_hours) or age < -_AHEAD:
        raise refusal("ARRIVAL_STALE", max_age_hours=max_age_hours)


def _log(path: Path, name: str, dataset: str | None, code: str) -> None:
    """Append a line; what the sender chose is escaped."""
    ensure_private_directory(path.parent)
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"at": moment, "code": code, "dataset": dataset, "ready_file": name}
    try:
        with open_private(path, "a") as handle:
            handle.write(json.dumps(entry).encode("ascii") + b"\n")
    except OSError as error:
        raise refusal("ARRIVALS_UNWRITABLE", reason=error.strerror) from None
