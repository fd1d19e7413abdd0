"""``clustmix audit --whole-release SITE``: attack what the real command makes of a generated table.

The command runs in a process of its own, with an empty home in a temporary folder, on a site file
that differs from the given one in its source alone. What it has sealed and published is read from
its files. No table but the generated one is read, and nothing of this is kept.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from flows.site.request import job_of
from flows.site.site_file import load_site
from privacy.errors import ClustMixError, ConfigurationError
from privacy.event_records import event_from_dict
from privacy.events import Gaussian
from privacy.gaussian import gaussian_epsilon
from privacy.parameters import PrivacyUnit
from storage.releases.measurements import MeasurementStore
from storage.schema.plain_yaml import read_mapping
from storage.schema.table import TableSchema
from storage.settings import Settings
from tasks.audit.findings import ClaimedGuarantee, check_confidence
from tasks.audit.pairs import PlantedTable
from tasks.audit.replay import check_replayable, replay
from tasks.audit.whole_release import (
    WholeRelease,
    expected_bound,
    guess_power,
    judge_residual,
    judge_scores,
    score_measurement,
    score_rows,
)
from tasks.ingest.encoding import decode, domain_of, encode_chunk
from tasks.steps.job import ReleaseJob

MIN_CANARIES = 1_000
MAX_CANARIES = 1_000_000

OTHERS_PER_CANARY = 0.25
"""Patients without a coin: a table that is not made of canaries alone."""

COMMAND = (sys.executable, "-P", "-m", "flows.cli")
"""The program, as this interpreter has it, whatever lies in the current folder."""


def audit_whole_release(
    site_path: Path,
    *,
    canaries: int,
    confidence: float,
    show: Callable[[str], None] = lambda text: None,
    command: Sequence[str] = COMMAND,
) -> WholeRelease:
    """Release a generated table by the real command, attack it, and bound epsilon from below.

    The canaries are patients who are in the table by a fair coin each; each bound has the
    confidence. `show` is told what is going on; another `command` is for tests of the audit itself.
    It is a ConfigurationError if a number is outside its range or the method has draws that cannot
    be replayed.

    Privacy
    -------
    Reads no private table. The noise in a measurement is computed here alone, of a table that was
    generated for it and is deleted at the end.
    """
    if not MIN_CANARIES <= canaries <= MAX_CANARIES:
        raise ConfigurationError(
            "AUDIT_CANARIES_INVALID",
            f"expected {MIN_CANARIES:,} to {MAX_CANARIES:,} canaries, found {canaries:,}",
        )
    check_confidence(confidence)
    rng = np.random.default_rng()
    with tempfile.TemporaryDirectory(prefix="clustmix-audit-") as name:
        folder = Path(name)
        site = _generated_site(site_path, folder / "table.csv")
        path = folder / "site.yaml"
        path.write_text(yaml.safe_dump(site, sort_keys=False), encoding="utf-8")
        job = job_of(load_site(path), "r-20000101-00000000")
        check_replayable(job.synthesizer.plan(mu=job.mu))
        show(f"{job.ref.dataset}: a table with {canaries:,} canaries")
        table = PlantedTable.draw(
            domain_of(job.table_schema),
            named=job.unit.column is not None,
            canaries=canaries,
            others=round(canaries * OTHERS_PER_CANARY),
            rng=rng,
        )
        source_of(table, job.table_schema, job.unit, rng=rng).to_csv(
            folder / "table.csv", index=False
        )
        show(f"{job.ref.dataset}: clustmix release, in a process and a home of its own")
        settings = Settings(home=folder / "home", releases=folder / "releases")
        started = time.perf_counter()
        outcome = _release(command, path, settings)
        seconds = time.perf_counter() - started
        show(f"{job.ref.dataset}: the attack")
        return _attack(
            job, table, settings, outcome, confidence=confidence, release_seconds=seconds
        )


def source_of(
    table: PlantedTable, schema: TableSchema, unit: PrivacyUnit, *, rng: np.random.Generator
) -> pd.DataFrame:
    """Write who is in a planted table as a source has it, in random order, values inside bins."""
    frame = decode(table.codes, table.labels, schema, rng=rng)
    if unit.column is not None:
        frame[unit.column] = table.keys
    for name in schema.ignore:
        frame[name] = ""
    return frame[table.present].sample(frac=1.0, random_state=rng)


def _attack(
    job: ReleaseJob,
    table: PlantedTable,
    settings: Settings,
    outcome: dict[str, Any],
    *,
    confidence: float,
    release_seconds: float,
) -> WholeRelease:
    delta, mu = job.parameters.delta, job.mu
    store = MeasurementStore(settings.measurements)
    record = store.open(outcome["release_id"]).record
    draws = store.draws(outcome["release_id"])
    events = [event_from_dict(event) for event in record.events]
    stated = {event.statistic: event for event in events if isinstance(event, Gaussian)}
    replayed = replay(
        job.synthesizer,
        mu=mu,
        table=table,
        sealed={name: draws[name.replace("_", "-")] for name in stated},
        stated=stated,
    )
    measured = score_measurement(replayed)
    rows = encode_chunk(
        pd.read_parquet(Path(outcome["bundle"]) / "synthetic.parquet"),
        job.table_schema,
    )
    bundle = score_rows(table, rows.codes, rows.label)
    return WholeRelease(
        dataset=job.ref.dataset,
        method=f"{job.method.kind} whole release",
        # Patients are added or removed, whatever the neighbours of the site file are.
        claim=ClaimedGuarantee(epsilon=gaussian_epsilon(delta=delta, mu=mu), delta=delta, mu=mu),
        confidence=confidence,
        patients=int(table.present.sum()),
        measurement=judge_scores(
            measured.scores, table.included, delta=delta, confidence=confidence
        ),
        bundle=judge_scores(bundle, table.included, delta=delta, confidence=confidence),
        residual=judge_residual(replayed, confidence=confidence),
        power=guess_power(measured, canaries=table.n_canaries, mu=mu, confidence=confidence),
        expected_epsilon=expected_bound(
            measured, canaries=table.n_canaries, delta=delta, confidence=confidence
        ),
        release_seconds=round(release_seconds, 1),
    )


def _generated_site(site_path: Path, table: Path) -> dict[Any, Any]:
    """Return the site file with the generated table as its source, and nobody to ask.

    And without constraints, which a generated table does not keep, and visits, as it has one row of
    each patient already; no sensitivity depends on them.
    """
    site = read_mapping(site_path)
    site["source"] = {"kind": "csv", "path": str(table)}
    for key in ("approval", "arrival"):
        site.pop(key, None)
    site["schema"].pop("constraints", None)
    site["privacy_unit"] = {
        key: value
        for key, value in site["privacy_unit"].items()
        if key not in ("partition", "visits")
    }
    return site


def _release(command: Sequence[str], site: Path, settings: Settings) -> dict[str, Any]:
    """Run ``clustmix release`` in an empty home and return its answer."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CLUSTMIX_", "PREFECT_"))}
    # How many processes compute is the operator's choice; it changes no result.
    workers = os.environ.get("CLUSTMIX_DASK_WORKERS")
    ran = subprocess.run(  # noqa: S603, the program itself
        [*command, "release", str(site), "--json"],
        env={
            **kept,
            "CLUSTMIX_HOME": str(settings.home),
            "CLUSTMIX_RELEASES": str(settings.releases),
            **({} if workers is None else {"CLUSTMIX_DASK_WORKERS": workers}),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise ClustMixError(
            "AUDIT_RELEASE_FAILED",
            f"expected clustmix release to publish a generated table, found exit code "
            f"{ran.returncode}: {last}",
        )
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer
