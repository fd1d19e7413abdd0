"""Installations whose runs are killed from outside, and what has to hold of them at any moment."""

import functools
import json
import multiprocessing
import signal
import time
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

import made_up_release as made
import process_patches
import psutil
from forced_release import BEGIN, run_and_say
from waiting import until

from privacy.errors import ClustMixError, IntegrityError
from privacy.events import event_from_dict
from privacy.gaussian import GaussianAccountant
from privacy.ledger import EntryState
from privacy.parameters import Adjacency
from storage.files.refs import new_release_id
from storage.keys.key_store import KeyStore
from storage.ledger.ledger_db import LedgerDatabase
from storage.releases.bundles import verify_bundle
from storage.releases.measurements import MeasurementStore

PRELOADED = [
    "flows.release", "tasks.gates.table_rules", "great_expectations", "jax", "yaml", "pandas",
    "storage.ledger.postgres", "storage.ledger.sqlite",
]  # fmt: skip

WINDOW_SECONDS = 0.004
"""About what one write to the disk takes."""

PAID = (EntryState.SEALED, EntryState.APPROVED, EntryState.PUBLISHED)
OPEN = (EntryState.RESERVED, EntryState.EXECUTING)

REPEATED = ("gradients",)
"""Statistics that one measurement draws in every step."""

DATASET = "made-up"


@functools.cache
def processes():
    """Return a source of processes that start with everything imported and nothing begun."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def kill_itself(target, *arguments):
    process = processes().Process(target=target, args=arguments)
    process.start()
    process.join(200)
    assert process.exitcode == -signal.SIGKILL, arguments


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When a run is killed: some seconds after it has said something for the n-th time."""

    place: str
    time: int = 1
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A run that nobody touched: the places it came to, and how long it took."""

    places: list[str]
    seconds: float

    @classmethod
    def of(cls, installation, site):
        run = installation.start(site)
        assert run.reach(Moment(place=BEGIN))
        started = time.monotonic()
        answer = run.answer()
        assert answer["state"] == "published", answer
        return cls(places=run.places, seconds=time.monotonic() - started)

    def moment(self, rng):
        """Draw a moment: half of them from the whole run, half just after a place."""
        if rng.random() < 0.5:
            return Moment(place=BEGIN, seconds=float(rng.uniform(0, self.seconds)))
        place = str(rng.choice(sorted(set(self.places))))
        return Moment(
            place=place,
            time=int(rng.integers(1, self.places.count(place) + 1)),
            seconds=float(rng.uniform(0, WINDOW_SECONDS)),
        )


class Run:
    def __init__(self, process, pipe, release_id):
        self.process, self.release_id = process, release_id
        self.places = []
        self._pipe = pipe
        self._answer = None

    def _hear(self):
        try:
            said = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            return False
        if isinstance(said, dict):
            self._answer = said
        else:
            self.places.append(said)
        return True

    def reach(self, moment):
        """Wait for a moment; return False if the run ended before."""
        while self.places.count(moment.place) < moment.time:
            if not self._hear():
                return False
        time.sleep(moment.seconds)
        return True

    def wait_until_stopped(self):
        process = psutil.Process(self.process.pid)
        until(lambda: process.status() == psutil.STATUS_STOPPED)

    def kill(self, moment):
        return self.reach(moment) and self.end()

    def end(self):
        self.process.kill()
        self.answer()
        return bool(self.process.exitcode == -signal.SIGKILL)

    def answer(self):
        if self._pipe.closed:
            return self._answer or {}
        while self._hear():
            pass
        self._pipe.close()
        self.process.join(120)
        assert self.process.exitcode is not None, "the run does not end"
        return self._answer or {}


class Accounts:
    """What an installation has drawn, charged and published, and what has to hold of it."""

    def __init__(self, folder, environment, draws=None):
        self.home, self.releases = folder / "home", folder / "releases"
        self.draws = draws or folder / "draws"
        self.draws.mkdir(parents=True, exist_ok=True)
        self.environment = environment

    @property
    def ledger(self):
        return LedgerDatabase(
            self.environment.get("CLUSTMIX_LEDGER_URL") or self.home / "ledger.sqlite",
            head_file=self.home.with_name("home-head") / "ledger-head",
        )

    def entries(self):
        path = self.home / "ledger.sqlite"
        if "CLUSTMIX_LEDGER_URL" not in self.environment and not path.exists():
            return {}
        return {entry.release_id: entry for entry in self.ledger.entries()}

    def _draws(self):
        return {
            path.stem: list(map(json.loads, path.read_text().splitlines()))
            for path in sorted(self.draws.iterdir())
        }

    def drawn(self):
        return {run: Counter(one["statistic"] for one in of) for run, of in self._draws().items()}

    def _losses(self):
        # In this order: what is drawn in the meantime is charged by then.
        draws = self._draws()
        entries, found, total = self.entries(), [], Decimal(0)
        for run, events in draws.items():
            accountant = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE)
            for event in events:
                accountant = accountant.compose(event_from_dict(event))
            rho, entry = Decimal(accountant.rho), entries.get(run)
            total += rho
            paid = 0 if entry is None or not entry.counts else entry.rho
            # A command chooses its own release, so that its file has another name.
            if run.startswith("r-") and paid < rho:
                found.append(f"{run}: drawn {rho}, entry {entry}")
            counts = Counter(event["statistic"] for event in events)
            again = {name: n for name, n in counts.items() if n > 1 and name not in REPEATED}
            found += [f"{run}: {name} drawn {n} times" for name, n in again.items()]
        charged = sum(entry.rho for entry in entries.values() if entry.counts)
        if charged < total:
            found.append(f"drawn {total} in all, charged {charged}")
        return found

    def _half_bundles(self):
        """Return what lies in the store and is not a whole bundle that was paid for."""
        entries, found = {e.entry_id: e for e in self.entries().values()}, []
        keys = KeyStore(self.home / "keys")
        for folder in sorted(self.releases.glob("[!.]*/*")):
            trusted, officers = keys.pipeline_public(), keys.officers()
            try:
                bundle = verify_bundle(folder, trusted=trusted, officers=officers)
            except ClustMixError as error:
                found.append(f"{folder.name}: {error}")
                continue
            if bundle.manifest.pooled:  # a pool has the entries of its parts
                continue
            entry = entries.get(bundle.manifest.ledger_entry)
            if entry is None or entry.state not in PAID or entry.release_id != folder.name:
                found.append(f"{folder.name}: entry {entry}")
            elif entry.state is EntryState.PUBLISHED and entry.digest != bundle.manifest_sha256:
                found.append(f"{folder.name}: not the bundle of entry {entry}")
        return found

    def damages(self):
        """Return everything that may never be, also while nobody has cleaned up."""
        found = [f"loss: {text}" for text in self._losses()]
        found += [f"half bundle: {text}" for text in self._half_bundles()]
        if self.entries():
            try:
                self.ledger.verify()
            except ClustMixError as error:
                found.append(f"ledger: {error}")
        return found

    def unexpected(self, allowed):
        """Return what lies in these folders beside the names that are allowed in each."""
        return [
            str(path.relative_to(self.home.parent))
            for folder, names in allowed.items()
            for path in (folder.iterdir() if folder.is_dir() else ())
            if path.name not in names
        ]

    def leftovers(self):
        entries = self.entries().values()
        paid = {e.release_id for e in entries if e.state in PAID}
        published = {e.release_id for e in entries if e.state is EntryState.PUBLISHED}
        withheld = {e.release_id for e in entries if e.state is EntryState.WITHHELD}
        allowed = {
            self.home / "private": {".lock"},
            self.home / "pending": paid - published,
            self.home / "measurements": paid | withheld,
            self.releases: {".lock", *(entry.dataset for entry in entries)},
        }
        return self.unexpected(allowed) + [
            f"entry {e.release_id} {e.state.value}" for e in entries if e.state in OPEN
        ]


class Installation(Accounts):
    def __init__(self, folder, *, ledger_url=None, dask_workers=0, draws=None):
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, made.environment_of(folder, dask_workers=dask_workers), draws)
        self.environment[process_patches.DRAWS] = str(self.draws)
        if ledger_url is not None:
            self.environment["CLUSTMIX_LEDGER_URL"] = ledger_url

    def start(self, site, *, disturbance=None, shard=None, **request):
        release_id = new_release_id()
        heard, said = processes().Pipe(duplex=False)
        asked = {"site_file": str(site), "dataset": DATASET, "release_id": release_id}
        asked |= {"again": True} | request  # who forces a run knows what ended the last one
        process = processes().Process(
            target=run_and_say, args=(self.environment, asked, said, disturbance, shard)
        )
        process.start()
        said.close()
        return Run(process, heard, release_id)

    def state(self, release_id):
        entry = self.entries().get(release_id)
        return "none" if entry is None else entry.state.value

    def is_measured(self, release_id):
        try:
            MeasurementStore(self.home / "measurements").open(release_id)
        except IntegrityError:
            return False
        return True

    def faults(self):
        return self.damages() + self.leftovers()

    def leftovers(self):
        allowed = {
            self.home / "keys": {"pipeline.key", "pipeline.pub", "ledger.key", "officers"},
            self.home: {
                *("private", "pending", "measurements", "keys", "diagnostics", "installation"),
                *("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "prefect"),
            },
        }
        return super().leftovers() + self.unexpected(allowed)


class Tables:
    def __init__(self, folder, **site):
        self._folder, self._site = folder, site

    def __call__(self, number):
        folder = self._folder / f"table-{number}"
        folder.mkdir(parents=True)
        cohort = made.made_up_cohort(number)
        return made.write_site(folder, dataset=DATASET, cohort=cohort, **self._site)
