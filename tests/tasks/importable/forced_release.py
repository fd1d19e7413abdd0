"""Releases in processes of their own, killed from outside, and what has to hold at any moment.

A process says through a pipe where it is. What it draws is in a file of its run, on disk, before
anybody sees it. Steps run without Prefect, which has no part in this.
"""

import functools
import json
import multiprocessing
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import made_up_release as made
import numpy as np
import pandas as pd

from privacy.accountants.gaussian import GaussianAccountant
from privacy.errors import ClustMixError
from privacy.event_records import event_from_dict
from privacy.ledger import EntryState, LedgerEntry
from privacy.parameters import Adjacency
from storage.installation import installation_id
from storage.keys import KeyStore
from storage.ledger_db import LedgerDatabase
from storage.measurements import MeasurementStore
from storage.refs import new_release_id
from storage.releases import verify_bundle

PRELOADED = ["flows.release", "tasks.expectations", "great_expectations", "jax", "yaml", "pandas"]

WINDOW_SECONDS = 0.004
"""About what one write to the disk takes."""

BEGIN = "begin"
"""What a run says first."""

PAID = (EntryState.SEALED, EntryState.APPROVED, EntryState.PUBLISHED)

DATASET = "made-up"


@functools.cache
def processes() -> Any:
    """Return a source of processes that start with everything imported and nothing begun."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


# --- in the process that runs ------------------------------------------------------------------


def _places() -> list[tuple[Any, str]]:
    """Where a run changes something that outlives it."""
    from storage import ledger_head, pending, releases, workspace
    from tasks import ledger_steps, measure_steps
    from tasks.synthesizers import curator

    return [
        (workspace, "forbid_core_dumps"),  # the first step of a new workspace
        (workspace.PrivateWorkspace, "purge"),
        (ledger_steps, "purge_abandoned"),
        (LedgerDatabase, "reserve"),
        (LedgerDatabase, "transition"),
        (ledger_head.HeadFile, "write"),  # between a commit and the return of the ledger
        (curator, "discrete_gaussian_mechanism"),
        (measure_steps.Seals, "__call__"),
        (MeasurementStore, "seal"),
        (pending.PendingBundles, "write"),
        (pending.PendingBundles, "remove"),
        (releases.ReleaseStore, "publish"),
        (os, "rename"),
        (os, "replace"),
        (os, "link"),
    ]


@contextmanager
def announcing(say: Callable[[str], None]) -> Iterator[None]:
    """Say where stages begin, and what is done to disk and ledger, before and after."""
    from tasks.run import listen_to_stages

    def announced(owner: Any, name: str) -> Callable[..., Any]:
        function = getattr(owner, name)
        place = f"{owner.__name__.rpartition('.')[2]}.{name}"

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            say(f"before {place}")
            result = function(*args, **kwargs)
            say(f"after {place}")
            return result

        return run

    with ExitStack() as stack:
        for owner, name in _places():
            stack.enter_context(mock.patch.object(owner, name, announced(owner, name)))
        stack.enter_context(
            listen_to_stages(lambda name, seconds: say(f"stage {name}") if not seconds else None)
        )
        yield


Disturbance = Callable[[str, int], None]
"""Called in the process with each place that it comes to, and for the how many-th time."""

FILLER = "filler"


@dataclass(frozen=True, kw_only=True)
class FullDisk:
    """No space from a place on: in the file system of a folder, or, without one, in any file."""

    place: str
    time: int = 1
    folder: str | None = None

    def __call__(self, place: str, time: int) -> None:
        """Fill the disk if the place is the one."""
        if (place, time) != (self.place, self.time):
            return
        if self.folder is None:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
            return
        with (Path(self.folder) / FILLER).open("wb", buffering=0) as handle:
            for size in (1 << 16, 1 << 12, 1):
                with suppress(OSError):
                    while True:
                        handle.write(b"\0" * size)


@dataclass(frozen=True)
class DyingShard:
    """Contribution of a shard whose worker dies the first time that it computes a statistic."""

    statistic: str
    died: str

    def __call__(self, path: Path, *, contribution: Any, public: Any) -> Any:
        """Die, or return the contribution."""
        from tasks.shards import contribution_of_shard

        if contribution.__name__ == self.statistic:
            with suppress(FileExistsError):
                os.close(os.open(self.died, os.O_CREAT | os.O_EXCL))
                made.die()
        return contribution_of_shard(path, contribution=contribution, public=public)


def run_and_say(
    environment: dict[str, str],
    request: dict[str, Any],
    draws: str,
    pipe: Connection,
    disturbance: Disturbance | None,
    shard: DyingShard | None,
) -> None:
    """Body of a process: release, and say where it is and how it ends."""
    from flows import release
    from flows.request import ReleaseRequest
    from tasks import measure_steps
    from tasks.runtime import Failed, guarded_call

    os.environ.update(environment)
    times: Counter[str] = Counter()

    def say(place: str) -> None:
        times[place] += 1
        if disturbance is not None:
            disturbance(place, times[place])
        pipe.send(place)

    say(BEGIN)
    with ExitStack() as patches:
        patches.enter_context(made.record_draws(Path(draws)))
        patches.enter_context(announcing(say))
        if shard is not None:
            patches.enter_context(mock.patch.object(measure_steps, "contribution_of_shard", shard))
        patches.enter_context(made.without_engine())
        # As `flows.release.release_cohort` does it.
        asked = ReleaseRequest.model_validate(request)
        outcome = guarded_call("release", release._run_with_private_log, asked)
    if isinstance(outcome, Failed):
        pipe.send({"code": outcome.code, "message": outcome.message})
    else:
        pipe.send(outcome.model_dump())


def command_that_records(site_file: str, draws: str) -> None:
    """Body of a subprocess: the command itself, with engine and workers."""
    from flows.cli import main

    with made.record_draws(Path(draws)):
        raise SystemExit(main(["release", site_file, "--json"]))


# --- outside of it -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When a run is killed: some seconds after it has said something for the n-th time."""

    place: str
    time: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A run that nobody touched: the places it came to, and how long it took."""

    places: list[str]
    seconds: float

    @classmethod
    def of(cls, installation: "Installation", site: Path) -> "Undisturbed":
        """Run it."""
        run = installation.start(site)
        assert run.reach(Moment(place=BEGIN, time=1, seconds=0.0))
        started = time.monotonic()
        answer = run.answer()
        assert answer["state"] == "published", answer
        return cls(places=run.places, seconds=time.monotonic() - started)

    def moment(self, rng: np.random.Generator) -> Moment:
        """Draw a moment: half of them from the whole run, half just after a place."""
        if rng.random() < 0.5:
            return Moment(place=BEGIN, time=1, seconds=float(rng.uniform(0, self.seconds)))
        place = str(rng.choice(sorted(set(self.places))))
        return Moment(
            place=place,
            time=int(rng.integers(1, self.places.count(place) + 1)),
            seconds=float(rng.uniform(0, WINDOW_SECONDS)),
        )


class Run:
    """A release in a process of its own."""

    def __init__(self, process: Any, pipe: Connection, release_id: str) -> None:
        self.process, self.release_id = process, release_id
        self.places: list[str] = []
        self._pipe = pipe
        self._answer: dict[str, Any] | None = None

    def _hear(self) -> bool:
        try:
            said = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            return False
        if isinstance(said, dict):
            self._answer = said
        else:
            self.places.append(said)
        return True

    def reach(self, moment: Moment) -> bool:
        """Wait for a moment; return False if the run ended before."""
        while self.places.count(moment.place) < moment.time:
            if not self._hear():
                return False
        time.sleep(moment.seconds)
        return True

    def kill(self, moment: Moment) -> bool:
        """Kill the process at a moment; return False if it ended before."""
        return self.reach(moment) and self.end()

    def end(self) -> bool:
        """Kill the process now; return False if it ended before."""
        self.process.kill()
        self.answer()
        return bool(self.process.exitcode == -signal.SIGKILL)

    def answer(self) -> dict[str, Any]:
        """Wait for the end; return the outcome, ``code`` and ``message``, or nothing."""
        if self._pipe.closed:
            return self._answer or {}
        while self._hear():
            pass
        self._pipe.close()
        self.process.join(120)
        assert self.process.exitcode is not None, "the run does not end"
        return self._answer or {}


class Installation:
    """An installation with the runs that were started in it, and what has to hold of it."""

    def __init__(self, folder: Path, *, ledger_url: str | None = None, dask_workers: int = 0):
        folder.mkdir(parents=True, exist_ok=True)
        self.home, self.releases = folder / "home", folder / "releases"
        self.draws = folder / "draws"
        self.draws.mkdir(exist_ok=True)
        self.environment = made.environment_of(folder, dask_workers=dask_workers)
        self._ledger_url = ledger_url
        if ledger_url is not None:
            self.environment["CLUSTMIX_LEDGER_URL"] = ledger_url

    def start(
        self,
        site: Path,
        *,
        disturbance: Disturbance | None = None,
        shard: DyingShard | None = None,
        **request: Any,
    ) -> Run:
        """Start a release of a site file."""
        release_id = new_release_id()
        heard, said = processes().Pipe(duplex=False)
        process = processes().Process(
            target=run_and_say,
            args=(
                self.environment,
                {
                    "site_file": str(site),
                    "dataset": DATASET,
                    "release_id": release_id,
                    **request,
                },
                str(self.draws / f"{release_id}.jsonl"),
                said,
                disturbance,
                shard,
            ),
        )
        process.start()
        said.close()
        return Run(process, heard, release_id)

    @property
    def ledger(self) -> LedgerDatabase:
        """The ledger, which is created if it is not there."""
        path = self.home / "ledger.sqlite"
        return LedgerDatabase(self._ledger_url or path, head_file=self.releases / ".ledger-head")

    def entries(self) -> dict[str, LedgerEntry]:
        """Return the latest rows by release; makes no ledger."""
        if self._ledger_url is None and not (self.home / "ledger.sqlite").exists():
            return {}
        return {entry.release_id: entry for entry in self.ledger.entries()}

    def state(self, release_id: str) -> str:
        """Return the state of a release's entry, or none."""
        entry = self.entries().get(release_id)
        return "none" if entry is None else entry.state.value

    def is_measured(self, release_id: str) -> bool:
        """Return whether the measurement of a release is whole."""
        return MeasurementStore(self.home / "measurements").digest(release_id) is not None

    def drawn(self) -> dict[str, Counter[str]]:
        """Return how often each statistic was drawn, by run."""
        return {
            path.stem: Counter(
                json.loads(line)["statistic"] for line in path.read_text().splitlines()
            )
            for path in sorted(self.draws.iterdir())
        }

    def _drawn_rho(self, path: Path) -> Decimal:
        accountant = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE)
        for line in path.read_text().splitlines():
            accountant = accountant.compose(event_from_dict(json.loads(line)))
        return Decimal(accountant.rho)

    def losses(self) -> list[str]:
        """Return what was drawn and is not paid for."""
        entries, found = self.entries(), []
        total = Decimal(0)
        for path in sorted(self.draws.iterdir()):
            drawn, entry = self._drawn_rho(path), entries.get(path.stem)
            total += drawn
            if path.stem.startswith("r-") and drawn > 0:
                if entry is None or not entry.counts or entry.rho < drawn:
                    found.append(f"{path.stem}: drawn {drawn}, entry {entry}")
        if sum(entry.rho for entry in entries.values() if entry.counts) < total:
            found.append(f"drawn {total} in all, charged less")
        for run, counts in self.drawn().items():
            found += [f"{run}: {name} drawn {n} times" for name, n in counts.items() if n > 1]
        return found

    def half_bundles(self) -> list[str]:
        """Return what lies in the store and is not a whole bundle that was paid for."""
        entries, found = {e.entry_id: e for e in self.entries().values()}, []
        for folder in sorted(self.releases.glob("[!.]*/*")):
            try:
                manifest = verify_bundle(
                    folder, trusted=KeyStore(self.home / "keys").pipeline_public()
                ).manifest
            except ClustMixError as error:
                found.append(f"{folder.name}: {error}")
                continue
            entry = entries.get(manifest.ledger_entry)
            if entry is None or entry.state not in PAID or entry.release_id != folder.name:
                found.append(f"{folder.name}: entry {entry}")
        return found

    def damages(self) -> list[str]:
        """Return everything that may never be, also while nobody has cleaned up."""
        found = [f"loss: {text}" for text in self.losses()]
        found += [f"half bundle: {text}" for text in self.half_bundles()]
        if self.entries():
            try:
                self.ledger.verify()
            except ClustMixError as error:
                found.append(f"ledger: {error}")
        return found

    def leftovers(self) -> list[str]:
        """Return what the next run should have cleaned up, and open entries."""
        allowed = {
            self.home / "private": {".lock"},
            self.home / "pending": set(),
            self.home / "measurements": {
                entry.release_id for entry in self.entries().values() if entry.state in PAID
            },
            self.home / "keys": {"pipeline.key", "pipeline.pub", "ledger.key"},
            self.home: {
                *("private", "pending", "measurements", "keys", "diagnostics", "installation"),
                *("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "prefect"),
            },
            self.releases: {".ledger-head", ".ledger-head.lock", ".lock", DATASET, FILLER},
        }
        found = [
            f"{path.relative_to(self.home.parent)}"
            for folder, names in allowed.items()
            for path in (folder.iterdir() if folder.is_dir() else ())
            if path.name not in names
        ]
        owner = installation_id(self.home)
        found += [
            f"entry {entry.release_id} {entry.state.value}"
            for entry in self.entries().values()
            if entry.owner == owner and entry.state in (EntryState.RESERVED, EntryState.EXECUTING)
        ]
        return found


class Tables:
    """Site files about one cohort, each about another content."""

    def __init__(self, folder: Path, **site: Any) -> None:
        self._folder, self._site = folder, site
        self._cohort = made.made_up_cohort().drop(index=1_234)  # without the broken row

    def __call__(self, number: int) -> Path:
        """Write the table of this number and return its site file."""
        folder = self._folder / f"table-{number}"
        folder.mkdir(parents=True)
        cohort: pd.DataFrame = self._cohort.copy()
        cohort.iloc[0, cohort.columns.get_loc("age")] = 18 + number % 77
        cohort.iloc[1, cohort.columns.get_loc("age")] = 18 + number // 77
        return made.write_site(folder, dataset=DATASET, cohort=cohort, **self._site)
