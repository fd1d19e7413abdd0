"""A whole installation as a hospital runs it: server, page, workers, watcher, and a landing folder.

Every process that belongs to it carries a mark in its environment, so that none is overlooked at
the end, whoever started it. What is drawn is recorded by the processes themselves, beside the
ledger and before anybody sees it.
"""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forced_installation as forced
import httpx
import made_up_release as made
import numpy as np
import process_patches
import psutil
import yaml
from waiting import until

from flows.local_server import free_port
from flows.supervisor import _lives
from privacy.ledger import EntryState
from storage.arrivals.arrival_store import ArrivalStore
from storage.arrivals.ready_files import build_ready_file, write_ready_file
from storage.keys.key_store import KeyStore

MARK = "E2E_INSTALLATION"
"""Variable that all processes of an installation inherit."""

DEPLOYMENTS = Path(__file__).parents[3] / "deployments"

CLUSTMIX = Path(sys.executable).with_name("clustmix")

START_SECONDS = 300.0
RUN_SECONDS = 240.0
"""For a run of a few seconds on a machine that does other things as well."""

POLL_SECONDS = 1.0


def wait_until(holds, what, *, seconds=RUN_SECONDS):
    return until(holds, what=what, seconds=seconds, every=POLL_SECONDS)


@dataclass(frozen=True, kw_only=True)
class FlowRun:
    id: str
    name: str
    flow: str
    deployment: str
    state: str
    """Type, of which there are few."""
    state_name: str
    message: str
    parameters: dict[str, Any]
    created_by: str
    started: str
    """Time of the start, or nothing."""


class ServedInstallation(forced.Accounts):
    """An installation below a folder; `running` starts it and ends it."""

    def __init__(self, folder, **settings):
        self.folder = folder
        self.landing, self.sites = folder / "landing", folder / "sites"
        self.tables, self.deployments = folder / "tables", folder / "deployments"
        for place in (self.sites, self.tables, self.deployments):
            place.mkdir(parents=True)
        for place in (folder / "home", self.landing):
            place.mkdir(mode=0o700)
        self.port = free_port()
        self._token, self._names = {}, {}
        own = {
            **made.environment_of(folder),
            "CLUSTMIX_LANDING": str(self.landing),
            "CLUSTMIX_SITES": str(self.sites),
            **process_patches.variables(folder),
            MARK: str(folder),
            **settings,
        }
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT", "DASK", "CLUSTMIX", "PYTEST"))
        }
        super().__init__(folder, {**inherited, **own})

    # --- what a site has --------------------------------------------------------------------

    def add_site(self, dataset, *, content=0, **changes):
        """Write the site file of a dataset with its table; return the site file."""
        folder = self.tables / dataset
        folder.mkdir(exist_ok=True)
        written = made.write_site(
            folder,
            dataset=dataset,
            cohort=made_up_table(content),
            **{"arrival": {"max_age_hours": 24}, **changes},
        )
        return written.rename(self.sites / f"{dataset}.yaml")

    def arrive(self, dataset, content, *, name=None):
        """Put a table into the landing folder and announce it, as a sender does."""
        table = self.landing / f"{name or f'{dataset}-{content}'}.csv"
        staged = table.with_name(f"{table.name}.part")
        made_up_table(content).to_csv(staged, index=False)
        staged.rename(table)
        self.announce(table, dataset)
        return table

    def announce(self, table, dataset):
        """Write the ready file of a table, in this process: the command takes seconds."""
        secret = KeyStore(self.home / "keys").landing_secret()
        write_ready_file(table, build_ready_file(table, dataset=dataset, secret=secret))

    def write_deployments(self):
        """Write the usual deployments but the scheduled one."""
        usual = yaml.safe_load((DEPLOYMENTS / "prefect.yaml").read_text())
        del usual["deployments"][0]
        shutil.copy(DEPLOYMENTS / "automations.yaml", self.deployments)
        (self.deployments / "prefect.yaml").write_text(yaml.safe_dump(usual))

    @contextmanager
    def holding(self):
        """Let every run wait after each draw; the function waits until a release does."""
        hold = self.folder / process_patches.HOLD
        hold.touch()
        held = self.folder / process_patches.HELD

        def wait(release_id):
            path = held / release_id
            wait_until(path.exists, lambda: (release_id, self.flow_runs()[:5]))
            return path

        try:
            yield wait
        finally:
            hold.unlink(missing_ok=True)

    # --- commands ---------------------------------------------------------------------------

    def command(self, *arguments, **how):
        done = self.try_command(*arguments, **how)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def try_command(self, *arguments, seconds=START_SECONDS, served=False):
        """Run a command of this installation, however it ends; served: it calls the server."""
        called = self.client_environment if served else {}
        # Not pipes: a process that stays would keep them open.
        said, complained = (self.folder / f"command-{name}" for name in ("out", "err"))
        with said.open("w") as out, complained.open("w") as err:
            done = subprocess.run(
                [str(CLUSTMIX), *arguments],
                cwd=self.folder,
                env={**self.environment, **called},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                check=False,
                timeout=seconds,
            )
        return subprocess.CompletedProcess(
            arguments, done.returncode, said.read_text(), complained.read_text()
        )

    # --- processes --------------------------------------------------------------------------

    def start(self):
        return self.command("server", "start", "--port", str(self.port))

    def verify(self, release_id):
        bundle = self.releases / self.entries()[release_id].dataset / release_id
        return self.command("verify", str(bundle))

    def stop(self):
        return self.command("server", "stop")

    def wait_until_answers(self):
        def answers():
            with suppress(httpx.HTTPError, AssertionError):
                self.ask("GET", "/health")
                return True
            return False

        wait_until(answers, lambda: "no answer", seconds=START_SECONDS)

    def processes(self, *words):
        """Return the processes of this installation whose command has all words."""
        found = {process.pid: process for process in psutil.process_iter() if self._owns(process)}
        for process in list(found.values()):
            with suppress(psutil.Error):
                found |= {child.pid: child for child in process.children(recursive=True)}
        return [p for p in found.values() if _lives(p) and _has(p, words)]

    def _owns(self, process):
        if process.pid == os.getpid():
            return False
        with suppress(psutil.Error):
            return process.environ().get(MARK) == str(self.folder) or str(self.folder) in " ".join(
                process.cmdline()
            )
        return False

    def end_everything(self):
        """Kill what is left."""
        left = self.processes()
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=30)

    # --- the orchestrator -------------------------------------------------------------------

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self):
        return (self.home / "server" / "page-password").read_text().strip()

    @property
    def client_environment(self):
        return {"PREFECT_API_URL": f"{self.address}/api", "PREFECT_API_AUTH_STRING": self.password}

    def ask(self, method, path, body=None):
        """Call the API of the orchestrator, as its page does."""
        name, _, word = self.password.partition(":")
        with httpx.Client(
            base_url=f"{self.address}/api", auth=(name, word), timeout=60, trust_env=False
        ) as client:
            answer = client.request(method, path, json=body, headers=self._token)
            if answer.status_code == 403:
                # One for many calls: to make one is a write of the orchestrator's database.
                made = client.get("/csrf-token", params={"client": "e2e"}).raise_for_status()
                self._token = {
                    "Prefect-Csrf-Client": "e2e",
                    "Prefect-Csrf-Token": made.json()["token"],
                }
                answer = client.request(method, path, json=body, headers=self._token)
        assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def all_of(self, what, **query):
        found = []
        while page := self.ask(
            "POST", f"/{what}/filter", {**query, "limit": 200, "offset": len(found)}
        ):
            found += page
        return found

    def flow_runs(self):
        """Return all runs, those to come included."""
        runs = self.all_of("flow_runs")
        if not {run["deployment_id"] for run in runs} <= set(self._names):
            for kind in ("flows", "deployments"):
                self._names |= {one["id"]: one["name"] for one in self.all_of(kind)}
            # A run outlives its deployment.
            self._names |= {run["deployment_id"]: "" for run in runs} | self._names
        return [
            FlowRun(
                id=run["id"],
                name=run["name"],
                flow=self._names[run["flow_id"]],
                deployment=self._names[run["deployment_id"]],
                state=run["state_type"],
                state_name=run["state_name"],
                message=(run["state"] or {}).get("message") or "",
                parameters=run["parameters"],
                created_by=(run["created_by"] or {}).get("type") or "",
                started=run["start_time"] or "",
            )
            for run in runs
        ]

    def runs_of(self, name):
        return [run for run in self.flow_runs() if run.name == name]

    def latest_run(self, flow, deployment):
        runs = [
            run
            for run in self.flow_runs()
            if (run.flow, run.deployment) == (flow, deployment) and run.started
        ]
        return max(runs, key=lambda run: run.started)

    def wait_until_quiet(self, *, seconds=RUN_SECONDS, still_seconds=8.0):
        """Wait until nothing runs or waits and nothing new has begun for some seconds."""
        end, since = time.monotonic() + seconds, time.monotonic()
        while time.monotonic() - since < still_seconds:
            busy = [run for run in self.flow_runs() if run.state in _BUSY and not _is_future(run)]
            if busy or any(self.landing.glob("*.ready.json")) or self._unfinished():
                since = time.monotonic()
            assert time.monotonic() < end, f"still at work after {seconds:.0f} s: {busy[:5]}"
            time.sleep(POLL_SECONDS)

    def _unfinished(self):
        """Whether an arrival or a sealed measurement is still to be taken by a run."""
        arrivals = self.home / "arrivals"
        return (arrivals.exists() and bool(ArrivalStore(arrivals).unfinished())) or any(
            entry.state in (EntryState.SEALED, EntryState.APPROVED) and not entry.needs_approval
            for entry in self.entries().values()
        )

    # --- what has to hold -------------------------------------------------------------------

    def states(self):
        return Counter(entry.state.value for entry in self.entries().values())

    def wait_for_entries(self, wanted, *, n=1, seconds=RUN_SECONDS):
        def found():
            entries = [entry for entry in self.entries().values() if wanted(entry)]
            return entries if len(entries) >= n else None

        return wait_until(
            found,
            lambda: (self.states(), [r for r in self.flow_runs() if not _is_future(r)][:10]),
            seconds=seconds,
        )

    def wait_for_state(self, dataset, state, *, n=1):
        return self.wait_for_entries(lambda e: (e.dataset, e.state) == (dataset, state), n=n)

    def wait_for_release(self, release_id):
        published = (release_id, EntryState.PUBLISHED)
        self.wait_for_entries(lambda e: (e.release_id, e.state) == published)

    def wait_for_new_release(self, known, *, seconds=RUN_SECONDS):
        return self.wait_for_entries(
            lambda e: e.release_id not in known and e.state is EntryState.PUBLISHED,
            seconds=seconds,
        )[0]

    def leftovers(self):
        entries = self.entries().values()
        paid = {e.release_id for e in entries if e.state in forced.PAID}
        withheld = {e.release_id for e in entries if e.state is EntryState.WITHHELD}
        pending, measured = self.home / "pending", self.home / "measurements"
        allowed = {
            self.home / "private": {".lock"},
            pending: paid - {e.release_id for e in entries if e.state is EntryState.PUBLISHED},
            measured: paid | withheld,
            self.landing: {path.name for path in self.landing.glob("*.refused")},
            self.releases: {".lock", *(entry.dataset for entry in entries)},
        }
        rows = [
            f"rows of {path.relative_to(self.folder)}"
            for folder in (self.home, self.folder / "tmp")
            for path in folder.rglob("*")
            if path.suffix in (".csv", ".parquet", ".npy", ".npz")
            and not any(path.is_relative_to(kept) for kept in (pending, measured))
        ]
        still_open = [
            f"entry {entry.release_id} {entry.state.value}"
            for entry in entries
            if entry.state in forced.OPEN
        ]
        return self.unexpected(allowed) + rows + still_open


def made_up_table(content):
    """Return the cohort with something in it that no other number has; no row is broken."""
    cohort = made.made_up_cohort().drop(index=1_234)
    rng = np.random.default_rng([5, content])
    cohort["age"] = rng.permutation(cohort["age"].to_numpy())
    return cohort


_BUSY = ("SCHEDULED", "PENDING", "RUNNING", "CANCELLING", "PAUSED")


def _is_future(run):
    """Return whether a run waits for the time of a schedule."""
    return (run.state, run.state_name, run.created_by) == ("SCHEDULED", "Scheduled", "SCHEDULE")


def _has(process, words):
    with suppress(psutil.Error):
        command = " ".join(process.cmdline())
        return all(word in command for word in words)
    return False


@contextmanager
def running(folder, prepare, **settings):
    """Give an installation that runs; afterwards none of its processes does.

    ``prepare`` writes its site files before the start.
    """
    installation = ServedInstallation(folder, **settings)
    try:
        installation.write_deployments()
        prepare(installation)
        installation.start()
        yield installation
        installation.stop()
        left = [" ".join(process.cmdline()) for process in installation.processes()]
        assert left == [], left
    finally:
        installation.end_everything()
