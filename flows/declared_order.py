"""The order of label levels that an earlier program did not keep, taken from a site file.

Measurements of format 1 hold a site file whose label levels stand in the order of the alphabet,
whatever the order in which they were measured. Only a person's site file still has that order.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from flows.publication import Publisher, ReleaseOutcome, job_of_measurement
from flows.site.request import job_of
from flows.site.site_file import SiteFile
from privacy.errors import ConfigurationError, IntegrityError, LedgerError
from privacy.ledger import EntryState
from storage.installation import open_keys
from storage.keys.keys import SigningKey
from storage.releases.measurements import DeclaredOrder, Measurement, MeasurementStore
from storage.schema.vocabulary import Vocabulary
from storage.settings import Settings
from tasks.steps.entries import AFTER_SEAL, Entries
from tasks.steps.job import measurement_settings
from tasks.steps.request_key import request_key

_MEASURED = (*AFTER_SEAL, EntryState.PUBLISHED, EntryState.REVOKED)


def publish_in_order(
    settings: Settings, release_id: str, site_file: SiteFile, *, key: SigningKey
) -> ReleaseOutcome:
    """Publish a measurement of format 1 by the order that a site file declares; nothing is charged.

    A release that was not published yet is published under its own id; of one that was, other rows
    are published under a new id. What was published before stays as it is: it is taken back by
    ``clustmix revoke``.

    The site file equals the one that was measured with, but for that order. The key is that of the
    person who says so; an officer's where the release needed an officer, or was taken back, which
    was for its order alone then.
    """
    entries, publisher = Entries(settings), Publisher(settings)
    entry = entries.of_release(release_id)
    if entry.state not in _MEASURED:
        raise LedgerError(
            "NOTHING_TO_PUBLISH",
            f"expected a sealed measurement, found {release_id} {entry.state.value}",
        )
    measurement = entries.measurement(entry)
    if measurement.record.vocabulary is not None:
        raise IntegrityError(
            "ORDER_KNOWN",
            "expected a measurement that does not state the order of its label levels, found that "
            f"of {release_id}, which does; publish it without --site",
        )
    revoked = entry.state is EntryState.REVOKED
    if entry.needs_approval or revoked:
        open_keys(settings).require_officer(key.key_id)
    job = job_of(site_file, release_id)
    before = job_of_measurement(measurement, release_id)
    if _unordered(job.measurement_settings) != _unordered(before.measurement_settings):
        raise ConfigurationError(
            "OTHER_SITE_FILE",
            f"expected the site file that {release_id} was measured with, found one that differs "
            "in more than the order of label levels; give the one of that time",
        )
    with publisher.locked(release_id):
        MeasurementStore(settings.measurements).declare_order(
            release_id,
            DeclaredOrder(
                measurement_sha256=measurement.sha256,
                site={**measurement.record.site, "schema": job.site["schema"]},
                vocabulary=Vocabulary.of(site_file.table_schema),
                declared_by=key.key_id,
                declared_on=datetime.now(UTC).date(),
                revoked_for_order=revoked,
            ),
        )
    if entry.state in AFTER_SEAL:
        return publisher.publish(release_id)
    return publisher.resample(release_id)


def earlier_key(
    declared: Mapping[str, Any], content_sha256: str, *, entries: Entries, secret: bytes
) -> str | None:
    """Return the key under which an earlier program has measured this table, with this site file.

    The key of a request depends on the order of label levels now, so that such a measurement is
    not found by it.

    Refused if nobody has declared its order yet: naming the release, and how to publish it at no
    charge.
    """
    for entry in entries.all():
        if entry.dataset != declared["dataset"] or entry.state not in _MEASURED:
            continue
        try:
            measurement = entries.measurement(entry)
        except IntegrityError:
            continue  # lost or damaged: it cannot be published any more
        if measurement.record.vocabulary is None and _is_of(
            measurement, declared, content_sha256, secret
        ):
            if measurement.declared is not None:
                return entry.request_key
            raise ConfigurationError(
                "MEASURED_BEFORE",
                f"this table was measured and paid for as {entry.release_id}, by an earlier "
                "program that did not keep the order of the label levels; clustmix publish "
                f"{entry.release_id} --site SITE.yaml --key FILE publishes that measurement in the "
                "order of the site file and charges nothing; --new-draw measures again, and is "
                "charged",
            )
    return None


def _is_of(
    measurement: Measurement, declared: Mapping[str, Any], content_sha256: str, secret: bytes
) -> bool:
    """Whether a measurement of format 1 is of this table and this site file but for order."""
    record = measurement.record
    before = job_of_measurement(measurement, record.release_id)
    # Its key was made from the site file as it was written then.
    key = request_key(
        secret,
        content_sha256=content_sha256,
        settings=measurement_settings(record.site, cohort=before.cohort),
        code=record.code_sha256,
    )
    return key == record.request_key and (
        _unordered(declared) == _unordered(before.measurement_settings)
    )


def _unordered(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what shapes a measurement, with the label levels in the order of the alphabet."""
    label = declared["schema"]["label"]
    levels = sorted(label["levels"] or (), key=lambda level: level["name"])
    return {**declared, "schema": {**declared["schema"], "label": {**label, "levels": levels}}}
