"""``clustmix audit --whole-release SITE``: attack a release of a generated table.

The real command runs in a process of its own, with an empty home in a temporary folder, on a site
file that differs from the given one in its source alone. What it has sealed and published is read
from its files. No table but the generated one is read, and nothing of this is kept.
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

from audits.findings import Claim, check_confidence
from audits.planted import PlantedTable
from audits.replay import ReplayedDraw, check_replayable, replay
from audits.whole_release import (
    WholeRelease,
    expected_bound,
    judge_residual,
    judge_scores,
    score_measurement,
    score_rows,
)
from flows.site.request import job_of
from flows.site.site_file import load_site
from privacy.errors import ClustMixError, ConfigurationError
from privacy.events import Gaussian, event_from_dict
from privacy.gaussian import gaussian_epsilon
from privacy.parameters import PrivacyUnit
from storage.releases.measurements import MeasurementStore
from storage.schema.plain_yaml import read_mapping
from storage.schema.table import TableSchema
from tasks.ingest.encoding import decode, domain_of, encode_chunk
from tasks.steps.job import ReleaseJob

MIN_CANARIES = 1_000
MAX_CANARIES = 1_000_000

OTHERS_PER_CANARY = 0.25
"""Patients without a coin: a table that is not made of canaries alone."""

COMMAND = (sys.executable, "-P", "-m", "flows.cli")
"""The program, as this interpreter has it, whatever lies in the current folder."""

_LEFT_OUT = {"approval", "arrival"}
"""Parts of a site file that wait for somebody."""


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
    confidence. `show` takes each step as it starts; another `command` is for tests of the audit
    itself. It is a ConfigurationError if a number is outside its range or the method has draws that
    cannot be replayed.

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
        path, source = folder / "site.yaml", folder / "table.csv"
        site = yaml.safe_dump(_generated_site(site_path, source), sort_keys=False)
        path.write_text(site, encoding="utf-8")
        job = job_of(load_site(path), "r-20000101-00000000")
        if job.events:  # whose rows would be the hospital's own
            raise ConfigurationError(
                "AUDIT_UNSUPPORTED",
                "expected a site file without tables of events, of which no row is generated here, "
                "found some; tests/audits/test_history_audit.py audits whole histories",
            )
        check_replayable(job.synthesizer.plan(mu=job.mu))
        show(f"{job.ref.dataset}: a table with {canaries:,} canaries")
        table = PlantedTable.draw(
            domain_of(job.table_schema),
            named=job.unit.column is not None,
            canaries=canaries,
            others=round(canaries * OTHERS_PER_CANARY),
            rng=rng,
        )
        source_of(table, job.table_schema, job.unit, rng=rng).to_csv(source, index=False)
        show(f"{job.ref.dataset}: clustmix release, in a process and a home of its own")
        started = time.perf_counter()
        answer = _release(command, path, folder)
        seconds = time.perf_counter() - started
        show(f"{job.ref.dataset}: the attack")
        draws = _replayed(job, table, MeasurementStore(folder / "measurements"), answer)
        rows = pd.read_parquet(Path(answer["bundle"]) / "synthetic.parquet")
        return _judged(job, table, draws, rows, confidence=confidence, release_seconds=seconds)


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


def _generated_site(site_path: Path, table: Path) -> dict[Any, Any]:
    """Return the site file with the generated table as its source, and nobody to ask.

    It has no constraints, which a generated table does not keep, and no visits, as there is one row
    of each patient; no sensitivity depends on them.
    """
    site = {k: v for k, v in read_mapping(site_path).items() if k not in _LEFT_OUT}
    unit = site["privacy_unit"]
    return {
        **site,
        "source": {"kind": "csv", "path": str(table)},
        "schema": {k: v for k, v in site["schema"].items() if k != "constraints"},
        "privacy_unit": {k: v for k, v in unit.items() if k not in ("partition", "visits")},
    }


def _release(command: Sequence[str], site: Path, folder: Path) -> dict[str, Any]:
    """Run ``clustmix release`` with a home and releases in a folder, and return its answer."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("CLUSTMIX_", "PREFECT_"))}
    ours |= {"CLUSTMIX_HOME": str(folder), "CLUSTMIX_RELEASES": str(folder / "releases")}
    # How many processes compute is the operator's choice; it changes no result.
    if (workers := os.environ.get("CLUSTMIX_DASK_WORKERS")) is not None:
        ours["CLUSTMIX_DASK_WORKERS"] = workers
    ran = subprocess.run(  # noqa: S603, the program itself
        [*command, "release", str(site), "--json"],
        env=ours,
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


def _replayed(
    job: ReleaseJob, table: PlantedTable, store: MeasurementStore, answer: dict[str, Any]
) -> tuple[ReplayedDraw, ...]:
    """Replay what the command has sealed."""
    measurement = store.open(answer["release_id"])
    events = [event_from_dict(event) for event in measurement.record.events]
    stated = {event.statistic: event for event in events if isinstance(event, Gaussian)}
    sealed = {name: measurement.sealed_values(name) for name in stated}
    return replay(job.synthesizer, mu=job.mu, table=table, sealed=sealed, stated=stated)


def _judged(
    job: ReleaseJob,
    table: PlantedTable,
    draws: Sequence[ReplayedDraw],
    synthetic: pd.DataFrame,
    *,
    confidence: float,
    release_seconds: float,
) -> WholeRelease:
    delta, mu = job.parameters.delta, job.mu
    measured = score_measurement(draws)
    rows = encode_chunk(synthetic, job.table_schema)
    sealed, bundle = (
        judge_scores(scores, table.included, delta=delta, confidence=confidence)
        for scores in (measured.scores, score_rows(table, rows.codes, rows.label))
    )
    return WholeRelease(
        dataset=job.ref.dataset,
        method=f"{job.method.kind} whole release",
        # Patients are added or removed, whatever the neighbours of the site file are.
        claim=Claim(epsilon=gaussian_epsilon(delta=delta, mu=mu), delta=delta, mu=mu),
        confidence=confidence,
        patients=int(table.present.sum()),
        measurement=sealed,
        bundle=bundle,
        residual=judge_residual(draws, confidence=confidence),
        expected_epsilon=expected_bound(
            measured.expected_mu, canaries=table.n_canaries, delta=delta, confidence=confidence
        ),
        release_seconds=round(release_seconds, 1),
    )
