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
from pathlib import Path
from types import SimpleNamespace

import forced_installation as forced
import made_up_release as made
import process_patches
import psutil
import yaml
from prefect import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from waiting import until

from flows.local_server import free_port, part_states
from flows.supervisor import _lives
from privacy.ledger import EntryState
from storage.arrivals.arrival_store import ArrivalStore
from storage.arrivals.ready_files import build_ready_file, write_ready_file
from storage.keys.key_store import KeyStore

MARK = "E2E_INSTALLATION"
"""Variable that all processes of an installation inherit."""

DEPLOYMENTS = Path(__file__).parents[2] / "deployments"

CLUSTMIX = Path(sys.executable).with_name("clustmix")

START_SECONDS = 300.0
RUN_SECONDS = 240.0
"""For a run of a few seconds on a machine that does other things as well."""

POLL_SECONDS = 1.0


def wait_until(holds, what, *, seconds=RUN_SECONDS):
    return until(holds, what=what, seconds=seconds, every=POLL_SECONDS)


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

    def add_site(self, dataset, *, content=0, **changes):
        folder = self.tables / dataset
        folder.mkdir(exist_ok=True)
        written = made.write_site(
            folder,
            dataset=dataset,
            cohort=made.made_up_cohort(content),
            **{"arrival": {"max_age_hours": 24}, **changes},
        )
        return written.rename(self.sites / f"{dataset}.yaml")

    def arrive(self, dataset, content, *, name=None):
        table = self.landing / f"{name or f'{dataset}-{content}'}.csv"
        staged = table.with_name(f"{table.name}.part")
        made.made_up_cohort(content).to_csv(staged, index=False)
        staged.rename(table)
        self.announce(table, dataset)
        return table

    def announce(self, table, dataset):
        """Write the ready file of a table, in this process: the command takes seconds."""
        secret = KeyStore(self.home / "keys").landing_secret()
        write_ready_file(table, build_ready_file(table, dataset=dataset, secret=secret))

    def write_deployments(self):
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

    def command(self, *arguments, **how):
        done = self.try_command(*arguments, **how)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def try_command(self, *arguments, seconds=START_SECONDS, **variables):
        # Not pipes: a process that stays would keep them open.
        texts = [self.folder / f"command-{name}" for name in ("out", "err")]
        with texts[0].open("w") as out, texts[1].open("w") as err:
            done = subprocess.run(
                [str(CLUSTMIX), *arguments],
                cwd=self.folder,
                env={**self.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                check=False,
                timeout=seconds,
            )
        done.stdout, done.stderr = (path.read_text() for path in texts)
        return done

    def start(self):
        return self.command("server", "start", "--port", str(self.port))

    def verify(self, release_id):
        bundle = self.releases / self.entries()[release_id].dataset / release_id
        return self.command("verify", str(bundle))

    def stop(self):
        return self.command("server", "stop")

    def wait_until_answers(self):
        def answers():
            with self.client() as client:
                return client.api_healthcheck() is None

        wait_until(answers, lambda: "no answer", seconds=START_SECONDS)

    @property
    def parts(self):
        return {part.name: part for part in part_states(self.home / "server")}

    def run_processes(self):
        """Return the flow runs: processes that a worker has started."""
        pids = {part.pid for part in self.parts.values()}
        return [
            process
            for process in self.processes("prefect")
            if _part_of(process).endswith("-worker") and process.pid not in pids
            if not _has(process, ["resource_tracker"])
        ]

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
        left = self.processes()
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=30)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self):
        return (self.home / "server" / "page-password").read_text().strip()

    @property
    def _prefect(self):
        return {PREFECT_API_URL: f"{self.address}/api", PREFECT_API_AUTH_STRING: self.password}

    @contextmanager
    def client(self):
        with temporary_settings(self._prefect), get_client(sync_client=True) as client:
            yield client

    def flow_runs(self):
        runs = []
        with self.client() as client:
            names = {one.id: one.name for one in (*client.read_flows(), *client.read_deployments())}
            while page := client.read_flow_runs(limit=200, offset=len(runs)):
                runs += page
        return [
            SimpleNamespace(
                id=run.id,
                name=run.name,
                flow=names[run.flow_id],
                deployment=names.get(run.deployment_id),  # a run outlives its deployment
                state=run.state_type,
                state_name=run.state_name,
                message=run.state.message or "",
                parameters=run.parameters,
                is_future=run.state_name == "Scheduled"
                and getattr(run.created_by, "type", "") == "SCHEDULE",
                started=run.start_time,
            )
            for run in runs
        ]

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
            busy = [run for run in self.flow_runs() if run.state in _BUSY and not run.is_future]
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

    def states(self):
        return Counter(entry.state.value for entry in self.entries().values())

    def wait_for_entries(self, wanted, *, n=1, seconds=RUN_SECONDS):
        def found():
            entries = [entry for entry in self.entries().values() if wanted(entry)]
            return entries if len(entries) >= n else None

        return wait_until(
            found,
            lambda: (self.states(), [r for r in self.flow_runs() if not r.is_future][:10]),
            seconds=seconds,
        )

    def wait_for_state(self, dataset, state, *, n=1):
        return self.wait_for_entries(lambda e: (e.dataset, e.state) == (dataset, state), n=n)

    def wait_for_release(self, release_id):
        published = (release_id, EntryState.PUBLISHED)
        self.wait_for_entries(lambda e: (e.release_id, e.state) == published)

    def wait_for_new_release(self, known, *, seconds=RUN_SECONDS):
        return self.wait_for_entries(
            lambda e: e.release_id not in known and e.state is EntryState.PUBLISHED, seconds=seconds
        )[0]

    def leftovers(self):
        kept = [self.home / name for name in ("pending", "measurements")]
        rows = [
            f"rows of {path.relative_to(self.folder)}"
            for folder in (self.home, self.folder / "tmp")
            for path in folder.rglob("*")
            if path.suffix in (".csv", ".parquet", ".npy", ".npz")
            and not any(path.is_relative_to(place) for place in kept)
        ]
        refused = {path.name for path in self.landing.glob("*.refused")}
        return super().leftovers() + self.unexpected({self.landing: refused}) + rows


_BUSY = ("SCHEDULED", "PENDING", "RUNNING", "CANCELLING", "PAUSED")


def _has(process, words):
    with suppress(psutil.Error):
        command = " ".join(process.cmdline())
        return all(word in command for word in words)
    return False


def _part_of(process):
    with suppress(psutil.Error):
        return process.environ().get("SUPERVISOR_PROCESS_NAME", "")
    return ""


@contextmanager
def running(folder, prepare, **settings):
    """Give an installation that runs; afterwards none of its processes does."""
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
