"""Steps that measure: run a method's stages against the shards, and seal what was drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.errors import IntegrityError
from privacy.event_records import event_to_dict
from privacy.ledger import EntryState, LedgerEntry
from privacy.mechanisms import NoisyStatistic
from storage.measurements import RELEASED_FILE, MeasurementRecord, arrays_to_bytes
from storage.workspace import PrivateWorkspace
from tasks import ledger_steps
from tasks.compute import Executor
from tasks.request_key import code_sha256
from tasks.run import ReleaseJob, Site, stage
from tasks.shards import contribution_of_shard
from tasks.synthesizers.base import Stage
from tasks.synthesizers.curator import Contribution, Curator
from tasks.synthesizers.plan import MeasurementPlan


class ShardCompute:
    """Sums over shards and maps over candidates, on an executor."""

    def __init__(self, executor: Executor, shards: tuple[Path, ...]) -> None:
        self._executor = executor
        self._shards = shards

    def sum(self, contribution: Contribution, public: dict[str, Any]) -> NDArray[np.int64]:
        """Exact sum of ``contribution(rows, **public)`` over all shards."""
        total = self._executor.sum(
            contribution_of_shard, self._shards, {"contribution": contribution, "public": public}
        )
        if isinstance(total, dict):
            raise TypeError("expected a contribution to return one array, found several")
        return total

    def map(self, function: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        """``[function(item) for item in items]``, on GPU workers where there are any."""
        return self._executor.map(function, items, gpu=True)


class Seals:
    """Makes every draw durable before a method sees it.

    Attributes
    ----------
    files : dict of str to bytes
        The draws so far, as they were written.
    """

    def __init__(self, workspace: PrivateWorkspace) -> None:
        self._workspace = workspace
        self.files: dict[str, bytes] = {}

    def __call__(self, name: str, statistic: NoisyStatistic) -> None:
        """Write one noisy statistic once; a second draw of the name cannot replace it."""
        content = arrays_to_bytes({"values": statistic.values})
        file_name = f"sealed-{name.replace('_', '-')}.npz"
        self._workspace.write_once(file_name, content)
        self.files[file_name] = content


def plan_measurement(job: ReleaseJob) -> MeasurementPlan:
    """Calibrate every noise scale from public settings, before the cohort is opened."""
    with stage("plan"):
        return job.synthesizer.plan(mu=job.mu)


def run_stage(
    method_stage: Stage, curator: Curator, released: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Run one stage of a method and return everything released so far."""
    with stage(method_stage.name):
        return {**released, **method_stage.run(curator, released)}


def check_draws(plan: MeasurementPlan, curator: Curator) -> None:
    """Hold all draws of a finished measurement against its plan.

    Raises
    ------
    IntegrityError
        If a planned statistic was not drawn, or another one was.
    """
    if curator.event != plan.event:
        raise IntegrityError(
            "PLAN_BROKEN",
            "expected exactly the planned draws, found others; nothing is released",
        )


def seal(
    job: ReleaseJob,
    site: Site,
    entry: LedgerEntry,
    curator: Curator,
    seals: Seals,
    released: dict[str, NDArray[Any]],
) -> LedgerEntry:
    """Keep a finished measurement for good, then say so in the ledger.

    The measurement comes first: a run that dies between the two is found to have sealed.
    """
    with stage("seal"):
        files = {**seals.files, RELEASED_FILE: arrays_to_bytes(released)}
        record = MeasurementRecord(
            dataset=job.ref.dataset,
            release_id=job.ref.release_id,
            ledger_entry=entry.entry_id,
            request_key=entry.request_key,
            site=job.site,
            events=tuple(event_to_dict(event) for event in curator.event.events),
            tainted=curator.tainted,
            requester=job.requester,
            code_version=version("clustmix"),
            code_sha256=code_sha256(),
            files={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        )
        digest = site.measurements.seal(record, files)
        return ledger_steps.advance(site, entry, EntryState.SEALED, digest=digest)
