"""The order of label levels that an earlier program did not keep, taken from a site file.

Measurements of format 1 hold a site file whose label levels stand in the order of the alphabet,
whatever the order in which they were measured. Only a person's site file still has that order.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from flows.publication import (
    ReleaseOutcome,
    entry_of,
    job_of_measurement,
    measurement_of,
    release_locked,
    resample,
)
from flows.publication import publish as go_on
from flows.site.request import job_of
from flows.site.site_file import SiteFile
from privacy.errors import ConfigurationError, IntegrityError, LedgerError
from privacy.ledger import EntryState
from storage.keys.keys import SigningKey
from storage.releases.measurements import DeclaredOrder, Measurement
from storage.schema.vocabulary import Vocabulary
from tasks.steps.request_key import request_key
from tasks.steps.run import ReleaseJob, Site, measurement_settings

_WAITING = (EntryState.SEALED, EntryState.APPROVED)
_MEASURED = (*_WAITING, EntryState.PUBLISHED, EntryState.REVOKED)


def publish_in_order(
    site: Site, release_id: str, site_file: SiteFile, *, key: SigningKey
) -> ReleaseOutcome:
    """Publish a measurement of format 1 by the order that a site file declares; nothing is charged.

    A release that was not published yet is published under its own id; of one that was, other rows
    are published under a new id. What was published before stays as it is: it is taken back by
    ``clustmix revoke``.

    Parameters
    ----------
    site
        The installation.
    release_id
        The release that paid.
    site_file
        Equals the one that was measured with, but for the order of the label levels.
    key
        Key of the person who says so; an officer's where the release needed an officer, or was
        taken back, which was for its order alone then.

    Raises
    ------
    ConfigurationError
        If the site file declares something else, or the key is not an officer's.
    IntegrityError
        If the measurement states its order itself, or another one was declared before.
    LedgerError
        If no such release has a measurement.
    """
    entry = entry_of(site, release_id)
    if entry.state not in _MEASURED:
        raise LedgerError(
            "NOTHING_TO_PUBLISH",
            f"expected a sealed measurement, found {release_id} {entry.state.value}",
        )
    measurement = measurement_of(site, entry)
    if measurement.record.vocabulary is not None:
        raise IntegrityError(
            "ORDER_KNOWN",
            "expected a measurement that does not state the order of its label levels, found that "
            f"of {release_id}, which does; publish it without --site",
        )
    revoked = entry.state is EntryState.REVOKED
    if entry.needs_approval or revoked:
        site.keys.require_officer(key.key_id)
    job = job_of(site_file, release_id)
    if not _same_but_for_order(job, job_of_measurement(measurement, release_id)):
        raise ConfigurationError(
            "OTHER_SITE_FILE",
            f"expected the site file that {release_id} was measured with, found one that differs "
            "in more than the order of label levels; give the one of that time",
        )
    with release_locked(site, release_id):
        site.measurements.declare_order(
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
    return go_on(site, release_id) if entry.state in _WAITING else resample(site, release_id)


def earlier_key(job: ReleaseJob, site: Site, content_sha256: str) -> str | None:
    """Return the key under which an earlier program has measured this table, with this site file.

    The key of a request depends on the order of label levels now, so that such a measurement is
    not found by it.

    Returns
    -------
    str or None
        None where there is no such measurement.

    Raises
    ------
    ConfigurationError
        If nobody has declared its order yet: naming the release, and how to publish it at no
        charge.
    """
    for entry in site.ledger.entries():
        if entry.dataset != job.ref.dataset or entry.state not in _MEASURED:
            continue
        try:
            measurement = measurement_of(site, entry)
        except IntegrityError:
            continue  # lost or damaged: it cannot be published any more
        if measurement.record.vocabulary is None and _is_of(measurement, job, site, content_sha256):
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


def _is_of(measurement: Measurement, job: ReleaseJob, site: Site, content_sha256: str) -> bool:
    """Whether a measurement of format 1 is of this table and this site file but for order."""
    record = measurement.record
    before = job_of_measurement(measurement, record.release_id)
    # Its key was made from the site file as it was written then.
    settings = measurement_settings(record.site, cohort=before.cohort)
    key = request_key(
        site.keys.ledger_secret(),
        content_sha256=content_sha256,
        settings=settings,
        code=record.code_sha256,
    )
    return key == record.request_key and _same_but_for_order(job, before)


def _same_but_for_order(first: ReleaseJob, second: ReleaseJob) -> bool:
    return _unordered(first) == _unordered(second)


def _unordered(job: ReleaseJob) -> dict[str, Any]:
    """Return what shapes a measurement, with the label levels in the order of the alphabet."""
    settings = job.measurement_settings
    label = settings["schema"]["label"]
    levels = sorted(label["levels"] or (), key=lambda level: level["name"])
    schema = {**settings["schema"], "label": {**label, "levels": levels}}
    return {**settings, "schema": schema}
