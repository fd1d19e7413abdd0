"""Exports and pools of sealed measurements: nothing is read, drawn or charged."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from flows.installation import Installation
from flows.publication import job_of_measurement
from privacy.errors import ConfigurationError, IntegrityError, Withheld
from privacy.event_records import event_from_dict
from privacy.ledger import EntryState
from storage.files.documents import canonical_json
from storage.files.private import read_bounded
from storage.files.refs import new_release_id
from storage.keys.keys import PublicKey
from storage.releases.manifest import Manifest
from storage.releases.measurements import (
    RELEASED_FILE,
    Measurement,
    arrays_to_bytes,
    sealed_file,
)
from storage.releases.parts import MAX_BYTES, Joint, part_file, read_part
from tasks.measurement.method import checked_plan
from tasks.measurement.pooling import Part, require_alike, require_planned, require_poolable
from tasks.measurement.statistics import SUM_SCALE
from tasks.steps.job import ReleaseJob


def part_of(job: ReleaseJob, measurement: Measurement) -> dict[str, NDArray[Any]]:
    """Return a sealed measurement as a part, with its rounds replayed."""
    method = require_poolable(job.synthesizer)
    plan = checked_plan(job.synthesizer, parameters=job.parameters, adjacency=job.adjacency)
    require_planned(plan, tuple(map(event_from_dict, measurement.record.events)))
    names = [planned.name for planned in plan.statistics]
    sums = {name: measurement.sealed_values(name) / plan[name].scale for name in names}
    return method.part(plan, measurement.released, sums)


def sealed(here: Installation, release_id: str) -> tuple[ReleaseJob, Measurement]:
    """Return the job and the measurement of a published release (else Withheld)."""
    entry = here.entries.of_release(release_id)
    if entry.state is not EntryState.PUBLISHED:
        raise Withheld(
            "NOT_PUBLISHED",
            f"expected a published release, found {release_id} {entry.state.value}; only what was "
            "published is pooled, exported or drawn again",
        )
    measurement = here.entries.measurement(entry)
    return job_of_measurement(measurement, release_id), measurement


def exported(here: Installation, release_id: str) -> bytes:
    """Return the signed file of a published release, which other installations pool."""
    job, measurement = sealed(here, release_id)
    arrays = part_of(job, measurement)
    record = measurement.record
    return part_file(
        here.publisher.keys.pipeline(),
        _declared(job),
        # Kernel features are not pooled: each measurement has a map of its own.
        {name: values for name, values in arrays.items() if "kernel" not in name},
        dataset=record.dataset,
        release_id=record.release_id,
        ledger_entry=record.ledger_entry,
        cohort=job.cohort,
        partition=None if job.partition is None else asdict(job.partition),
        privacy_unit=job.unit_in_words,
        events=record.events,
        tainted=record.tainted,
    )


def pooled(
    here: Installation,
    sources: Sequence[str],
    *,
    hospitals: Sequence[PublicKey] = (),
    disjoint: bool = False,
    rows: int | None = None,
) -> tuple[Path, Manifest]:
    """Publish the pool of releases of this installation, by id, and of exported files.

    At least one is its own; its site file names the pool. With `disjoint` it is assumed that no
    patient is in two parts. What differs in the declarations is named (ConfigurationError).
    """
    own = [source for source in sources if not Path(source).is_file()]
    if not own or len(sources) < 2:
        raise ConfigurationError(
            "PARTS_MISSING",
            "expected two parts or more, one of them a release of this installation, found fewer; "
            "name releases, and files of clustmix export",
        )
    trusted = (*here.publisher.keys.pipeline_public(), *hospitals)
    contents = [
        exported(here, source) if source in own else read_bounded(Path(source), MAX_BYTES)
        for source in sources
    ]
    parts, declared, arrays = zip(*(read_part(one, trusted) for one in contents), strict=True)
    for other in declared[1:]:
        require_alike(declared[0], other)
    if len({part.release_id for part in parts}) < len(parts):
        raise ConfigurationError("PART_TWICE", "expected each measurement once, found one twice")
    job, measurement = sealed(here, own[0])
    _check(job, arrays)
    joint = Joint(parts, assumed=disjoint)
    found = require_poolable(job.synthesizer).pooled(arrays, exchangeable=joint.exchangeable)
    sums = {sealed_file(name): {"values": own[0] * SUM_SCALE} for name, own in found.sums.items()}
    files = {name: arrays_to_bytes(values) for name, values in sums.items()}
    release_id = new_release_id()
    documents = [part.model_dump(mode="json") for part in parts]
    record = measurement.record.model_copy(
        update={
            "release_id": release_id,
            "ledger_entry": f"none: a pool of {len(parts)}",
            "events": joint.events,
            "tainted": any(part.tainted for part in parts),
        }
    )
    pool = Measurement(
        record=record,
        files={**files, RELEASED_FILE: arrays_to_bytes(found.released)},
        sha256=hashlib.sha256(canonical_json(documents)).hexdigest(),
        pooled=tuple(documents),
        stddevs={name: stddev * SUM_SCALE for name, (_, stddev) in found.sums.items()},
    )
    patients = round(sum(float(part["patients"]) for part in arrays))
    job = replace(
        job,
        ref=replace(job.ref, release_id=release_id),
        rows=rows or job.rows,
        patients=None if job.patients is None else patients,
        needs_approval=False,
        pool=(joint.unit, disjoint),
    )
    return here.publisher.publish_pool(job, pool, hospitals=hospitals)


def _declared(job: ReleaseJob) -> dict[str, Any]:
    """Return what parts have to declare alike."""
    return {
        "method": {**job.method.model_dump(mode="json"), "version": job.method_version},
        "schema": job.table_schema.model_dump(mode="json"),
        "max_rows_per_patient": job.unit.max_rows,
        "visits": None if job.visits is None else job.visits.model_dump(mode="json"),
        "delta": job.parameters.delta,
        "adjacency": job.adjacency.value,
    }


def _check(job: ReleaseJob, arrays: Sequence[Part]) -> None:
    method, problem = require_poolable(job.synthesizer), ""
    for part in arrays:
        try:
            method.check_part(part)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            problem = str(error)
    if problem:
        raise IntegrityError("PART_INVALID", f"expected {problem}, found others in a part")
