"""Exports and pools of sealed measurements: nothing is read, drawn or charged."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from flows.installation import Installation
from flows.publication import job_of_measurement
from privacy.arrays import Floats
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
from storage.releases.signatures import MAX_PART_BYTES, joint, part_file, read_part
from tasks.measurement.method import Synthesizer, checked_plan
from tasks.measurement.pooled_sums import Part, part_of, require_alike, require_poolable
from tasks.measurement.statistics import SUM_SCALE
from tasks.reporting.conclusions import Interval, Question, contrast


def sealed(here: Installation, release_id: str) -> Measurement:
    """Return the measurement of a published release (else Withheld)."""
    entry = here.entries.of_release(release_id)
    if entry.state is not EntryState.PUBLISHED:
        raise Withheld(
            "NOT_PUBLISHED",
            f"expected a published release, found {release_id} {entry.state.value}; only what was "
            "published is pooled, exported or drawn again",
        )
    return here.entries.measurement(entry)


def part_of_measurement(measurement: Measurement) -> dict[str, NDArray[Any]]:
    """Return a sealed measurement as a part, with its rounds replayed."""
    record = measurement.record
    job = job_of_measurement(measurement, record.release_id)
    plan = checked_plan(job.synthesizer, parameters=job.parameters, adjacency=job.adjacency)
    require_poolable(job.synthesizer)
    sums = {one.name: measurement.sealed_values(one.name) for one in plan.statistics}
    events = map(event_from_dict, record.events)
    return part_of(job.synthesizer, plan, measurement.released, sealed=sums, events=events)


def exported(here: Installation, release_id: str) -> bytes:
    """Return the signed file of a published release, which other installations pool."""
    measurement = sealed(here, release_id)
    record, job = measurement.record, job_of_measurement(measurement, release_id)
    arrays = part_of_measurement(measurement)
    return part_file(
        here.publisher.keys.pipeline(),
        job.parts_declare,
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
        exported(here, source) if source in own else read_bounded(Path(source), MAX_PART_BYTES)
        for source in sources
    ]
    parts, declared, arrays = zip(*(read_part(one, trusted) for one in contents), strict=True)
    for other in declared[1:]:
        require_alike(declared[0], other)
    if len({part.release_id for part in parts}) < len(parts):
        raise ConfigurationError("PART_TWICE", "expected each measurement once, found one twice")
    origin = sealed(here, own[0])
    job, release_id = job_of_measurement(origin, own[0]), new_release_id()
    files, stddevs = _sums(job.synthesizer, arrays)
    documents = [part.model_dump(mode="json") for part in parts]
    events, unit = joint(parts, assumed=disjoint)
    site = {**origin.record.site, "approval": "none", "rows": rows or job.rows}
    if job.patients is not None:
        site["patients"] = round(sum(float(part["patients"]) for part in arrays))
    record = origin.record.model_copy(
        update={
            "release_id": release_id,
            "ledger_entry": f"none: a pool of {len(parts)}",
            "site": site,
            "events": events,
            "tainted": any(part.tainted for part in parts),
        }
    )
    pool = Measurement(
        record=record,
        files=files,
        sha256=hashlib.sha256(canonical_json(documents)).hexdigest(),
        pooled=tuple(documents),
        stddevs=stddevs,
        unit=unit,
        assumed=disjoint,
    )
    return here.publisher.publish_pool(pool, hospitals=hospitals)


def _sums(
    synthesizer: Synthesizer, arrays: Sequence[Part]
) -> tuple[dict[str, bytes], dict[str, float]]:
    """Return the files of a pool and the noise of its sums, by the arrays of its parts."""
    method, problem = require_poolable(synthesizer), ""
    for part in arrays:
        try:
            method.check_part(part)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            problem = str(error)
    if problem:
        raise IntegrityError("PART_INVALID", f"expected {problem}, found others in a part")
    released, sums = method.pooled(arrays)
    files = {
        sealed_file(name): arrays_to_bytes({"values": values * SUM_SCALE})
        for name, (values, _) in sums.items()
    }
    stddevs = {name: stddev * SUM_SCALE for name, (_, stddev) in sums.items()}
    return {**files, RELEASED_FILE: arrays_to_bytes(released)}, stddevs


def estimated(here: Installation, release_id: str, asked: Question) -> Interval:
    """Return a quantity with its interval, from the sealed tables of a published release."""
    measurement = sealed(here, release_id)
    job, stddevs = job_of_measurement(measurement, release_id), measurement.noise_stddevs

    def noisy(name: str) -> tuple[Floats, float]:
        return measurement.sealed_values(name) / SUM_SCALE, stddevs[name] / SUM_SCALE

    return contrast(job.synthesizer, job.table_schema, measurement.released, noisy, asked=asked)
