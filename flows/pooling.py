"""Exports and pools of sealed measurements: nothing is read, drawn or charged."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from flows.publication import Publisher, job_of_measurement
from privacy.errors import refusals
from privacy.ledger import EntryState, LedgerEntry
from storage.files.documents import canonical_json, digest_of
from storage.files.private import read_bounded
from storage.files.refs import new_release_id
from storage.keys.keys import PublicKey
from storage.releases.measurements import RELEASED_FILE, Measurement, arrays_to_bytes, sealed_file
from storage.releases.sealed_parts import MAX_PART_BYTES, joint, part_file, read_part
from tasks.measurement.pooled_sums import noisy_of, pool_of, require_alike
from tasks.measurement.statistics import SUM_SCALE
from tasks.reporting.conclusions import Interval, contrast
from tasks.steps.parts import part_of_measurement, sums_of_measurement

refusal = refusals(__package__)


def exported(publisher: Publisher, release_id: str) -> bytes:
    """Return the signed file of a published release, which other installations pool."""
    measurement = publisher.published(release_id)
    record, job = measurement.record, job_of_measurement(measurement, release_id)
    part = part_of_measurement(job.synthesizer, job.mu, measurement)
    declared = np.array(canonical_json(job.parts_declare).decode())
    return part_file(
        publisher.keys.pipeline(),
        # Kernel features are not pooled: each measurement has a map of its own.
        {"declared": declared, **{name: part[name] for name in part if "kernel" not in name}},
        cohort=job.cohort,
        partition=None if job.partition is None else asdict(job.partition),
        privacy_unit=job.unit_in_words,
        **record.model_dump(include={"dataset", "release_id", "ledger_entry", "events", "tainted"}),
    )


def pooled(
    publisher: Publisher,
    sources: Sequence[str],
    *,
    hospitals: Sequence[PublicKey] = (),
    rows: int | None = None,
) -> Path:
    """Publish the pool of releases of this installation, by id, and of exported files.

    At least one release is of this installation, and its site file names the pool. Parts with other
    declarations are a ConfigurationError that names a difference. Return the folder of the bundle.
    """
    files = [source for source in sources if Path(source).is_file()]
    own = [source for source in sources if source not in files]
    if not own or len(sources) < 2:
        raise refusal("PARTS_MISSING")
    trusted = (*publisher.keys.pipeline_public(), *hospitals)
    contents = [exported(publisher, source) for source in own]
    contents += [read_bounded(Path(file), MAX_PART_BYTES) for file in files]
    parts, arrays = zip(*(read_part(one, trusted) for one in contents), strict=True)
    first, *others = (json.loads(str(one.pop("declared", "{}"))) for one in arrays)
    for other in others:
        require_alike(first, other)
    origin, release_id = publisher.published(own[0]), new_release_id()
    job, (events, unit) = job_of_measurement(origin, release_id), joint(parts)
    released, sums = pool_of(job.synthesizer, arrays)
    noise = [name.removeprefix("stddev_") for name in sums if name.startswith("stddev_")]
    values = {name: {"values": sums[f"sum_{name}"] * SUM_SCALE} for name in noise}
    sealed = {sealed_file(name): arrays_to_bytes(own) for name, own in values.items()}
    site = {**origin.record.site, "approval": "none", "rows": rows or job.rows}
    if job.patients is not None:
        site["patients"] = round(sum(float(part["patients"]) for part in arrays))
    facts = {
        "release_id": release_id,
        "ledger_entry": f"none: a pool of {len(parts)}",
        "site": site,
        "events": events,
        "tainted": any(part.tainted for part in parts),
    }
    documents = tuple(part.model_dump(mode="json") for part in parts)
    pool = Measurement(
        record=origin.record.model_copy(update=facts),
        files={RELEASED_FILE: arrays_to_bytes(released), **sealed},
        sha256=digest_of(canonical_json(documents)).sha256,
        pooled=documents,
        stddevs={name: float(sums[f"stddev_{name}"]) * SUM_SCALE for name in noise},
        unit=unit,
    )
    return publisher.publish_pool(pool, hospitals=hospitals)


def pool_of_last(publisher: Publisher, entry: LedgerEntry) -> Path | None:
    """Publish the pool that the site file of a published release requests, once its parts exist.

    It takes the last parts of the partition with equal declarations, in the order of periods; for a
    part by hash, its last release. A pool that exists is returned, and not published again.
    """
    job = job_of_measurement(publisher.published(entry.release_id), entry.release_id)
    if job.pool_last is None or job.partition is None:
        return None
    parts = dict[tuple[str, str], str]()
    for other in publisher.entries.all():
        partition, is_published = other.partition, other.state is EntryState.PUBLISHED
        if is_published and partition is not None and partition.scheme == job.partition.scheme:
            own = job_of_measurement(publisher.published(other.release_id), other.release_id)
            if (own.cohort, own.parts_declare) == (job.cohort, job.parts_declare):
                period = partition.period or ""
                place = other.entry_id if period else str(partition.part)
                parts.pop((period, place), None)
                parts[period, place] = other.release_id
    last = [parts[key] for key in sorted(parts, key=lambda key: key[0])][-job.pool_last :]
    known = publisher.pools()
    if len(last) < job.pool_last or entry.release_id not in last or frozenset(last) in known:
        return known.get(frozenset(last))
    return pooled(publisher, last)


def estimated(publisher: Publisher, release_id: str, **asked: Any) -> Interval:
    """Return a quantity with its interval, from the sealed tables of a published release."""
    measurement = publisher.published(release_id)
    job = job_of_measurement(measurement, release_id)
    noisy = noisy_of(sums_of_measurement(job.synthesizer.plan(mu=job.mu), measurement))
    own = getattr(job.synthesizer, "of_patients", job.synthesizer)
    return contrast(own, job.table_schema, measurement.released, noisy, **asked)
