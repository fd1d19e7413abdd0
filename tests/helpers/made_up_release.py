"""A made-up cohort with its site file, and ways to run, break and kill its release.

Imported by name: in the test process, in subprocesses and by Dask workers.
"""

import json
import os
import signal
import sqlite3
import struct
import sys
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import psutil
import yaml
from prefect_database import put_database
from waiting import until

from privacy.errors import ClustMixError

N_ROWS = 1_987
N_POSITIVE = 1_193
"""Rows and rows with label yes: numbers that nothing public has by chance."""

CANARY_PATIENT = "ZEBRA-PATIENT-4711"
CANARY_CATEGORY = "zebra-ward-0815"
CANARY_NUMBER = 987654321.125
CANARY_NOTE = "zebra-note-2357"
CANARY_RAISED = "zebra-raised-1123"

_TEXTS = (CANARY_PATIENT, CANARY_CATEGORY, CANARY_NOTE, CANARY_RAISED, "987654321")
CANARIES = (
    *(text.encode() for text in _TEXTS),
    CANARY_PATIENT.encode("utf-16-le"),
    struct.pack("<d", CANARY_NUMBER),
    struct.pack(">d", CANARY_NUMBER),
)
"""What may be nowhere: as text, and the number as float64 in both byte orders."""

SMALL_CLUSTMIX = {"kind": "clustmix"}
NAIVE_BAYES = {"kind": "naive_bayes"}

SCHEMA = {
    "columns": [
        {"name": "age", "kind": "integer", "lower": 0, "upper": 100, "bins": 10},
        {"name": "lactate", "kind": "real", "lower": 0, "upper": 20, "decimals": 1, "bins": 10},
        {"name": "ward", "kind": "categorical", "other": "elsewhere"}
        | {"levels": ["icu", "surgery", "medicine", "elsewhere"]},
        {"name": "smoker", "kind": "categorical", "levels": ["y", "n"], "missing": ["?"]},
    ],
    "label": {"name": "died", "levels": {"no": ["n"], "yes": ["y"]}, "positive": "yes"},
    "ignore": ["note"],
}


def made_up_cohort(content=None):
    """Return rows of fewer patients, related to the label; one row holds all canaries.

    With a number as `content` that row is absent, and no other number has the same rows.
    """
    rng = np.random.default_rng(20)
    died = np.zeros(N_ROWS, dtype=bool)
    died[rng.permutation(N_ROWS)[:N_POSITIVE]] = True
    frame = pd.DataFrame(
        {
            "patient": [f"P{number:05d}" for number in rng.integers(0, 1_500, N_ROWS)],
            "age": rng.integers(18, 95, N_ROWS),
            "lactate": np.round(rng.gamma(2.0, 1.0 + died), 1),
            "ward": rng.choice(["icu", "surgery", "medicine"], N_ROWS),
            "smoker": rng.choice(["y", "n", "?"], N_ROWS),
            "died": np.where(died, "y", "n"),
            "note": "-",
        }
    )
    row = 1_234
    frame["lactate"] = frame["lactate"].astype(float)
    frame.loc[row, ["patient", "ward", "note"]] = [CANARY_PATIENT, CANARY_CATEGORY, CANARY_NOTE]
    frame.loc[row, "lactate"] = CANARY_NUMBER
    if content is not None:
        frame = frame.drop(index=row)
        frame["age"] = np.random.default_rng([5, content]).permutation(frame["age"].to_numpy())
    return frame


def site_of(dataset, source, *, method=NAIVE_BAYES, lifetime_epsilon=50.0, **changes):
    """Return a site file as a mapping; a section that changes is merged with the usual one."""
    site = {
        "dataset": dataset,
        "title": "Made-up wards",
        "source": source,
        "privacy_unit": {"column": "patient", "max_rows_per_patient": 3},
        "privacy": {"epsilon": 1.0, "delta": 1.0e-5},
        "budget": {"lifetime_epsilon": lifetime_epsilon},
        "method": dict(method),
        "rows": 300,
        "schema": SCHEMA,
    }
    for key, change in changes.items():
        usual = site.get(key)
        site[key] = {**usual, **change} if isinstance(usual, dict) else change
    return site


def write_site(folder, *, dataset="made-up", cohort=None, **changes):
    table, path = folder / "cohort.csv", folder / "site.yaml"
    frame = made_up_cohort() if cohort is None else cohort
    frame.replace({"note": {"-": dataset}}).to_csv(table, index=False)  # of one cohort alone
    usual = {"kind": "csv", "path": str(table)}
    source = usual | changes.pop("source", {})
    path.write_text(yaml.safe_dump(site_of(dataset, source, **changes)))
    return path


def environment_of(folder, *, dask_workers=0):
    (folder / "tmp").mkdir(exist_ok=True)
    return {
        "CLUSTMIX_HOME": str(folder / "home"),
        "CLUSTMIX_RELEASES": str(folder / "releases"),
        "CLUSTMIX_DASK_WORKERS": str(dask_workers),
        "TMPDIR": str(folder / "tmp"),
    }


def process_environment(folder, *, dask_workers, **variables):
    """Return the environment of a process of its own that imports this module, with its home."""
    if not (folder / "home").exists():
        (folder / "home").mkdir(mode=0o700)
        put_database(folder / "home" / "prefect")
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "DASK"))},
        **environment_of(folder, dask_workers=dask_workers),
        "PYTHONPATH": str(Path(__file__).parent),
        **variables,
    }


def make_person(people, name, *, officers=None):
    from storage.keys.keys import SigningKey

    people.mkdir(mode=0o700, exist_ok=True)
    key = SigningKey.create(people / f"{name}.key")
    if officers is not None:
        for folder in (officers.parent, officers):
            folder.mkdir(mode=0o700, exist_ok=True)
        key.public.write(officers / f"{name}.pub")
    return key


def family_of(process):
    with suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return []


def install(monkeypatch, folder, *, dask_workers=0):
    for name, value in environment_of(folder, dask_workers=dask_workers).items():
        monkeypatch.setenv(name, value)


@contextmanager
def without_engine():
    """Run the steps of the release flow as they are, guarded but without task runs."""
    from prefect import Task

    from flows import measurement, release

    make = measurement.guarded_stage
    with ExitStack() as stack:
        n_tasks = 0
        for module in (measurement, release):
            tasks = {name: value for name, value in vars(module).items() if isinstance(value, Task)}
            n_tasks += len(tasks)
            for name, task in tasks.items():
                stack.enter_context(mock.patch.object(module, name, task.fn))
        assert n_tasks >= 8
        # The method's stages become tasks during the run.
        stack.enter_context(
            mock.patch.object(measurement, "guarded_stage", lambda name: lambda f: make(name)(f).fn)
        )
        yield


def body_of_release(asked):
    from flows import release
    from tasks.execution.runtime import with_private_log

    return with_private_log(
        "release", asked.release_id, lambda found: release._release(asked, found)
    )


def release_without_engine(site_file, **request):
    """Run the body of the release flow and return its outcome, or raise as `run_release` does."""
    from flows.site.request import SiteRequest
    from flows.site.site_file import load_site
    from tasks.execution.runtime import Failed

    asked = SiteRequest(site_file=str(site_file), dataset=load_site(site_file).dataset, **request)
    with without_engine():
        outcome = body_of_release(asked)
    if isinstance(outcome, Failed):
        raise outcome.error()
    return outcome


def verified(folder, release_id):
    from storage.keys.key_store import KeyStore
    from storage.releases.bundles import verify_bundle

    keys = KeyStore(folder / "home" / "keys")
    trusted = (*keys.pipeline_public(), *keys.officers())
    return verify_bundle(folder / "releases" / "made-up" / release_id, trusted=trusted)


def die(*_, **__):
    """End this process as the kernel would: no handler, no clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def command_at(method_stage, site_file, act):
    """Body of a subprocess: the command itself, with engine and workers, that acts at a stage."""
    from flows.cli import main
    from tasks.execution import runtime

    entered = runtime.stage

    def stage(name):
        # The listener is the command's own, so it acts where that would be called.
        if name == method_stage:
            act()
        return entered(name)

    with mock.patch.object(runtime, "stage", stage):
        sys.exit(main(["release", site_file]))


def wait_for(path):
    until(lambda: os.path.exists(path))


def raise_private(what):
    """Raise what a library would: values in the text, and in the exception it came from."""
    frame = f"{CANARY_RAISED} {CANARY_PATIENT} {CANARY_NUMBER}"
    try:
        raise KeyError(frame)
    except KeyError as error:
        error.add_note(frame)
        raise ValueError(f"{what}: {frame}") from error


@dataclass(frozen=True)
class FailingShard:
    """Contribution of a shard that fails for one statistic, on whatever worker it runs."""

    statistic: str

    def __call__(self, shard, *, contribution, public):
        from tasks.measurement.curator import contribution_of_shard

        if contribution.__name__ == self.statistic:
            raise_private(f"{self.statistic} {shard.load().codes[:3].tolist()}")
        return contribution_of_shard(shard, contribution=contribution, public=public)


def found_in_tree(root, needles, *, skip=()):
    """Return ``file: needle`` for each file that holds a needle; compressed bytes are read."""
    found = []
    for path in sorted(root.rglob("*")):
        if not path.is_file() or any(path.is_relative_to(folder) for folder in skip):
            continue
        content = path.name.encode() + b"\n" + path.read_bytes()
        if path.suffix == ".parquet":
            content += pd.read_parquet(path).to_csv().encode()
        found += [f"{path}: {needle!r}" for needle in needles if needle in content]
    return found


def database_cells(path):
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall()
        for (table,) in tables:
            for row in connection.execute(f'SELECT * FROM "{table}"'):  # noqa: S608 -- own names
                for cell in row:
                    yield table, cell.decode("latin-1") if isinstance(cell, bytes) else str(cell)


def chain_of(error):
    texts = []
    while error is not None:
        notes = getattr(error, "__notes__", [])
        texts.append(f"{type(error).__name__} {error!r} {error} {error.args!r} {notes!r}")
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def fail_in_every_stage(folder, report):
    """Body of a subprocess: run the flow once per failure; write what each one said."""
    import logging

    import distributed

    from storage.settings import load_settings
    from tasks.execution.runtime import configure_prefect

    configure_prefect(load_settings())
    from flows import (
        measurement,
        release,  # noqa: F401 -- Prefect comes after its configuration
    )
    from storage.releases.release_store import ReleaseStore
    from tasks.execution.runtime import listen_to_stages
    from tasks.measurement import curator

    naive, clustmix = Path(folder) / "naive" / "site.yaml", Path(folder) / "clustmix" / "site.yaml"

    def at(stage, *, is_end=False):
        def listen(name, seconds):
            if (name, bool(seconds)) == (stage, is_end):
                raise_private(name)

        return listen_to_stages(listen)

    def interrupted(name, seconds):
        if name == "histograms":
            try:
                raise_private(name)
            except ValueError:
                raise KeyboardInterrupt(CANARY_RAISED) from None

    def broken(target, name):
        def fail(*_, **__):
            raise_private(name)

        return mock.patch.object(target, name, fail)

    failures = [
        *((name, naive, at(name)) for name in STAGES_OF_NAIVE_BAYES),
        *((name, clustmix, at(name)) for name in STAGES_OF_CLUSTMIX),
        ("end of publish", naive, at("publish", is_end=True)),
        ("draw", naive, broken(measurement._Seals, "__call__")),
        ("store", naive, broken(ReleaseStore, "publish")),
        ("interrupt", naive, listen_to_stages(interrupted)),
        ("bad input", Path(folder) / "bad" / "site.yaml", nullcontext()),
    ]
    on_workers = [
        (name, clustmix, mock.patch.object(curator, "contribution_of_shard", FailingShard(name)))
        for name in CONTRIBUTIONS
    ]
    with Path(report).open("w") as handle:

        def run_all(cases):
            for name, site, patch in cases:
                handle.write(json.dumps(_failure(name, site, patch)) + "\n")

        run_all(failures)
        # A cluster that tells all it knows, unlike the one a run starts for itself.
        with distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            worker_dashboard_address="127.0.0.1:0",
            memory_limit=0,
            silence_logs=logging.INFO,
            local_directory=str(Path(folder) / "scratch"),
        ) as cluster:
            os.environ["CLUSTMIX_DASK_ADDRESS"] = cluster.scheduler_address
            run_all(on_workers)
        # A run starts its own workers, and fails with them.
        del os.environ["CLUSTMIX_DASK_ADDRESS"]
        os.environ["CLUSTMIX_DASK_WORKERS"] = "1"
        run_all([("cluster", naive, at("cluster")), ("own workers", *on_workers[0][1:])])


STAGES_OF_NAIVE_BAYES = (
    "clean-up", "check-source", "plan", "identify", "reserve", "ingest", "input-gate",
    "bound-contributions", "histograms", "seal", "purge", "decode", "output-gate", "report",
    "commit", "publish",
)  # fmt: skip
STAGES_OF_CLUSTMIX = ("partition", "constrained-gmm", "kip", "noise-calibration", "mixing")
CONTRIBUTIONS = ("label_counts", "pair_tables", "weighted_residuals", "kernel_residuals")


def _failure(name, site_file, patch):
    from flows.release import run_release
    from flows.site.request import SiteRequest
    from flows.site.site_file import load_site
    from storage.ledger.ledger_db import LedgerDatabase
    from storage.settings import load_settings

    settings = load_settings()
    # Each failure begins with a table that was never measured.
    request = SiteRequest(
        site_file=str(site_file), dataset=load_site(site_file).dataset, new_draw=True, again=True
    )
    caught = None
    try:
        with patch:
            run_release(request)
    except (ClustMixError, KeyboardInterrupt) as error:
        caught = error
    states = {e.release_id: e.state.value for e in LedgerDatabase(settings.ledger_path).entries()}
    root = settings.private_root
    # What fails before the first workspace leaves no folder of them.
    left = [path.name for path in root.iterdir() if path.name != ".lock"] if root.exists() else []
    bundle = settings.releases / request.dataset / request.release_id
    return {
        "name": name,
        "type": type(caught).__name__,
        "chain": chain_of(caught),
        "state": states.get(request.release_id),
        "bundle": bundle.exists(),
        "workspaces": left,
        "staging": [path.name for path in settings.releases.glob(".staging-*")],
    }
