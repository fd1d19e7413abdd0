"""The benchmark flow: a method exactly as its paper prints it, on public data, for comparison only.

Its epsilon is claimed by the paper and not proven, so there is no ledger entry, no release and no
way from here into the release store. Every file that it writes carries that mark.
"""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from prefect import flow

from flows.site.request import job_of
from flows.site.site_file import SiteFile
from privacy.arrays import Codes
from privacy.errors import ConfigurationError, InputError
from privacy.events import GaussianEvent
from privacy.parameters import Adjacency, Analysis
from storage.files.private import ensure_private_directory
from storage.files.refs import new_release_id
from storage.releases.manifest import MANIFEST_FILE
from storage.settings import Settings
from storage.sources.cohorts import CohortReader
from tasks.execution.cluster import local_cluster
from tasks.execution.dask_executor import DaskExecutor
from tasks.execution.runtime import guarded_task, stage
from tasks.gates import expectations
from tasks.ingest.encoding import decode, domain_of, encode_chunk
from tasks.ingest.violations import refuse_violations
from tasks.reporting.guarantee import PAPER_MARKER
from tasks.reporting.tables import table_files
from tasks.steps.bundle import NO_MEASUREMENT, Provenance, build_bundle
from tasks.steps.job import ReleaseJob
from tasks.steps.source import check_source
from tasks.synthesizers.registry import build_paper, method_entry

MARK_COLUMN = "not_proven"
"""Column of every synthetic row that carries the mark with it."""


def benchmark_paper(site: SiteFile, settings: Settings, output: Path) -> dict[str, Any]:
    """Run the paper form of a method on public data and write its marked files.

    Returns what is public of them: ``folder``, ``claim``, ``rows``, ``epsilon_claimed``, ``delta``.
    A new folder is made in `output`. It is a ConfigurationError if the data are not declared public
    benchmark data, or the method has no paper form.
    """
    if not site.public_benchmark_data:
        raise ConfigurationError(
            "NOT_PUBLIC_DATA",
            "expected public_benchmark_data: true, found a private table; the published analysis "
            "has no guarantee that holds and reads public data only",
        )
    if not method_entry(site.method.kind).has_paper_form:
        raise ConfigurationError(
            "NO_PUBLISHED_FORM",
            "expected a method with a published form (clustmix methods lists them), found "
            f"{site.method.kind!r}",
        )
    if site.privacy_unit.visits is not None:
        raise ConfigurationError(
            "VISITS_PUBLISHED", "expected no privacy_unit.visits: no published form knows them"
        )
    answer: dict[str, Any] = _flow(site.dataset, _Benchmark(site, settings, output))
    return answer


class _Benchmark:
    """A benchmark run. A plain object: the orchestrator stores its type's name and no field."""

    def __init__(self, site: SiteFile, settings: Settings, output: Path) -> None:
        self.site = site
        self.settings = settings
        self.job: ReleaseJob = job_of(site, new_release_id())
        self.folder = output / site.dataset / self.job.ref.release_id

    def ingest(self) -> tuple[Codes, Codes]:
        """Read and encode the public table."""
        reader = CohortReader(self.job.source, places=self.settings.data_places)
        codes, labels = [], []
        schema = self.job.table_schema
        with stage("ingest"):
            check_source(self.job.columns_to_read, schema, reader)
            for frame in reader.chunks(self.job.columns_to_read):
                chunk = encode_chunk(frame, schema)
                refuse_violations(chunk.violations)
                codes.append(chunk.codes[chunk.valid])
                labels.append(chunk.label[chunk.valid])
            if not codes:
                raise InputError("EMPTY_TABLE", "expected rows in the source, found none")
            return np.concatenate(codes), np.concatenate(labels)

    def synthesize(self, codes: Codes, labels: Codes) -> pd.DataFrame:
        """Run the algorithm, item by item on the workers where it has items, and decode."""
        job = self.job
        method = build_paper(
            job.method, domain_of(job.table_schema), job.parameters, clock=time.monotonic
        )
        rng = np.random.default_rng(list(os.urandom(32)))
        scratch = ensure_private_directory(self.settings.home / "benchmark")
        with stage("paper-method"), local_cluster(max(self.settings.workers, 1), scratch) as client:
            executor = DaskExecutor(client, job.ref.release_id)
            codes, labels = method.synthesize(codes, labels, rng, executor)
        return decode(codes, labels, job.table_schema, rng=rng)

    def write(self, frame: pd.DataFrame) -> dict[str, Any]:
        """Write the marked files into a folder that is no release."""
        job, privacy = self.job, self.site.privacy
        report = expectations.output_gate(frame, job.table_schema, len(frame))
        claimed = GaussianEvent(
            statistic="everything released (claimed by the paper, not proven)",
            l2_sensitivity=job.mu,
            noise_stddev=1.0,
            n_values=frame.shape[0] * (frame.shape[1] - 1),
            adjacency=Adjacency.ADD_REMOVE,
        )
        files, manifest = build_bundle(
            job,
            table_files(frame, job.table_schema, {MARK_COLUMN: PAPER_MARKER}),
            frame,
            provenance=Provenance(
                events=(claimed,),
                ledger_entry="none: not a release",
                measurement_sha256=NO_MEASUREMENT,
                tainted=False,
                analysis=Analysis.PAPER,
            ),
            gate=report,
        )
        self.folder.mkdir(parents=True)
        for name, content in {**files, MANIFEST_FILE: manifest.to_bytes()}.items():
            (self.folder / name).write_bytes(content)
        return {
            "folder": str(self.folder),
            "claim": PAPER_MARKER,
            "rows": len(frame),
            "epsilon_claimed": privacy.epsilon,
            "delta": privacy.delta,
        }


_ingest = guarded_task(name="ingest")(_Benchmark.ingest)
_synthesize = guarded_task(name="paper-method")(_Benchmark.synthesize)
_write = guarded_task(name="report")(_Benchmark.write)


@flow(
    name="benchmark-paper",
    flow_run_name="{dataset}",
    log_prints=False,
    persist_result=False,
    validate_parameters=False,
)
def _flow(dataset: str, benchmark: Any) -> dict[str, Any]:
    """Run the paper form. ``dataset`` names the run."""
    codes, labels = _ingest(benchmark)
    return _write(benchmark, _synthesize(benchmark, codes, labels))
