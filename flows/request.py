"""The request of a release: what the orchestrator stores and its page asks for. All public."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from flows.site import Approval, SiteFile, load_site
from privacy.errors import ConfigurationError
from privacy.ledger import Partition
from privacy.parameters import Analysis
from storage.refs import ReleaseRef, new_release_id
from tasks.run import ReleaseJob


class ReleaseRequest(BaseModel):
    """Release a synthetic table of one dataset.

    The site file says everything else. A request never holds a value of the table, a secret or a
    seed, because the orchestrator stores and shows it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    site_file: str = Field(description="Site file of the dataset (YAML).", min_length=1)
    dataset: str = Field(description="Dataset that the site file must be about.", min_length=1)
    release_id: str = Field(
        default_factory=new_release_id,
        description="Id of the release; made anew if left out.",
        pattern=r"^r-[0-9]{8}-[0-9a-f]{8}$",  # names a folder before anything else is checked
    )
    new_draw: bool = Field(
        default=False,
        description="Draw new noise, and pay again, where this table was measured before.",
    )
    requester: str | None = Field(
        default=None,
        description="Key id of the person who asks; needed where an officer has to approve.",
        pattern=r"^[0-9a-f]{16}$",
    )


def job_of(site: SiteFile, release_id: str, *, requester: str | None = None) -> ReleaseJob:
    """Return the public facts of a release from its site file."""
    window = site.budget.window
    return ReleaseJob(
        ref=ReleaseRef(dataset=site.dataset, release_id=release_id),
        title=site.title,
        source=site.source,
        table_schema=site.table_schema,
        columns_to_read=site.columns_to_read,
        unit=site.unit,
        parameters=site.parameters,
        adjacency=site.privacy.adjacency,
        cohort=site.cohort,
        lifetime_epsilon=site.budget.lifetime_epsilon,
        dataset_epsilon=site.budget.dataset_epsilon,
        window_epsilon=None if window is None else window.epsilon,
        window_days=None if window is None else window.days,
        partition=_partition_of(site),
        needs_approval=site.approval is Approval.OFFICER,
        requester=requester,
        method=site.method,
        rows=site.rows,
        site=site.model_dump(mode="json", by_alias=True),
    )


def _partition_of(site: SiteFile) -> Partition | None:
    """Return the part of the patients that a site file reads.

    The scheme holds the dataset and the patient column: another table may name the same patients by
    other numbers, and then its parts are not disjoint from those of this one.
    """
    declared = site.privacy_unit.partition
    if declared is None:
        return None
    scheme = f"{declared.scheme} of {site.dataset} by {site.privacy_unit.column}"
    return Partition(scheme=scheme, parts=declared.parts, part=declared.part)


def load_job(request: ReleaseRequest) -> ReleaseJob:
    """Read the site file of a request.

    Raises
    ------
    ConfigurationError
        If the file is not a valid site file, is about another dataset, asks for an analysis
        that cannot be published, or needs an approval and nobody signs the request.
    """
    site = load_site(Path(request.site_file))
    if site.dataset != request.dataset:
        raise ConfigurationError(
            "OTHER_DATASET",
            f"expected a site file of dataset {request.dataset!r}, found {site.dataset!r}",
        )
    if site.analysis is not Analysis.PROVEN:
        raise ConfigurationError(
            "NOT_PUBLISHABLE",
            "expected analysis: proven, found published: its epsilon is claimed by the paper, not "
            "proven, so it can be compared (clustmix benchmark) but not released",
        )
    if site.approval is Approval.OFFICER and request.requester is None:
        raise ConfigurationError(
            "REQUESTER_MISSING",
            "expected the key of the person who asks, because an officer other than that person "
            "has to approve; give --key (clustmix keygen makes one)",
        )
    return job_of(site, request.release_id, requester=request.requester)
