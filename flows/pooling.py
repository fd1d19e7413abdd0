"""Exports and pools of sealed measurements: nothing is read, drawn or charged."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from flows.installation import Installation
from flows.publication import job_of_measurement
from privacy.arrays import Floats
from privacy.errors import ConfigurationError
from privacy.event_records import event_from_dict
from storage.files.documents import canonical_json, digest_of
from storage.files.private import read_bounded
from storage.files.refs import new_release_id
from storage.keys.keys import PublicKey
from storage.releases.measurements import (
    RELEASED_FILE,
    arrays_to_bytes,
    sealed_file,
)
from storage.releases.signatures import MAX_PART_BYTES, joint, part_file, read_part
from tasks.measurement.method import checked_plan
from tasks.measurement.pooled_sums import part_of, pool_of, require_alike, sums_of
from tasks.measurement.statistics import SUM_SCALE
from tasks.reporting.conclusions import Interval, contrast


def exported(here: Installation, release_id: str) -> bytes:
    """Return the signed file of a published release, which other installations pool."""
    measurement = here.publisher.published(release_id)
    record, job = measurement.record, job_of_measurement(measurement, release_id)
    plan = checked_plan(job.synthesizer, parameters=job.parameters, adjacency=job.adjacency)
    values = {name: measurement.sealed_values(name) for name in measurement.noise_stddevs}
    events, sums = map(event_from_dict, record.events), sums_of(plan, values)
    part = part_of(job.synthesizer, plan, measurement.released, sums=sums, events=events)
    declared = np.array(canonical_json(job.parts_declare).decode())
    return part_file(
        here.publisher.keys.pipeline(),
        # Kernel features are not pooled: each measurement has a map of its own.
        {"declared": declared, **{name: part[name] for name in part if "kernel" not in name}},
        cohort=job.cohort,
        partition=None if job.partition is None else asdict(job.partition),
        privacy_unit=job.unit_in_words,
        **record.model_dump(include={"dataset", "release_id", "ledger_entry", "events", "tainted"}),
    )


def pooled(
    here: Installation,
    sources: Sequence[str],
    *,
    hospitals: Sequence[PublicKey] = (),
    rows: int | None = None,
) -> Path:
    """Publish the pool of releases of this installation, by id, and of exported files.

    At least one is its own; its site file names the pool. What differs in the declarations of parts
    is named (ConfigurationError). Return the folder of the bundle.
    """
    files = [source for source in sources if Path(source).is_file()]
    own = [source for source in sources if source not in files]
    if not own or len(sources) < 2:
        raise ConfigurationError(
            "PARTS_MISSING",
            "expected two parts or more, one of them a release of this installation, found fewer; "
            "name releases, and files of clustmix export",
        )
    trusted = (*here.publisher.keys.pipeline_public(), *hospitals)
    contents = [exported(here, source) for source in own]
    contents += [read_bounded(Path(file), MAX_PART_BYTES) for file in files]
    parts, arrays = zip(*(read_part(one, trusted) for one in contents), strict=True)
    first, *others = (json.loads(str(one.pop("declared", "{}"))) for one in arrays)
    for other in others:
        require_alike(first, other)
    events, unit = joint(parts)
    origin, release_id = here.publisher.published(own[0]), new_release_id()
    job = job_of_measurement(origin, release_id)
    released, sums = pool_of(job.synthesizer, arrays)
    site = {**origin.record.site, "approval": "none", "rows": rows or job.rows}
    if job.patients is not None:
        site["patients"] = round(sum(float(part["patients"]) for part in arrays))
    noise = [name.removeprefix("stddev_") for name in sums if name.startswith("stddev_")]
    stddevs = {name: float(sums[f"stddev_{name}"]) * SUM_SCALE for name in noise}
    documents = [part.model_dump(mode="json") for part in parts]
    pool = replace(
        origin,
        record=origin.record.model_copy(
            update={
                "release_id": release_id,
                "ledger_entry": f"none: a pool of {len(parts)}",
                "site": site,
                "events": events,
                "tainted": any(part.tainted for part in parts),
            }
        ),
        files={
            RELEASED_FILE: arrays_to_bytes(released),
            **{
                sealed_file(name): arrays_to_bytes({"values": sums[f"sum_{name}"] * SUM_SCALE})
                for name in stddevs
            },
        },
        sha256=digest_of(canonical_json(documents)).sha256,
        pooled=tuple(documents),
        stddevs=stddevs,
        unit=unit,
    )
    return here.publisher.publish_pool(pool, hospitals=hospitals)


def estimated(here: Installation, release_id: str, **asked: Any) -> Interval:
    """Return a quantity with its interval, from the sealed tables of a published release."""
    measurement = here.publisher.published(release_id)
    job, stddevs = job_of_measurement(measurement, release_id), measurement.noise_stddevs

    def noisy(name: str) -> tuple[Floats, float]:
        return measurement.sealed_values(name) / SUM_SCALE, stddevs[name] / SUM_SCALE

    return contrast(job.synthesizer, job.table_schema, measurement.released, noisy, **asked)
