"""The request of a release, public, as the orchestrator stores it."""

from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from flows.site.site_file import SiteFile, load_site
from privacy.calibration import release_rho
from privacy.charges import Caps, Partition
from privacy.errors import refusals
from privacy.parameters import PrivacyParameters, PrivacyUnit
from storage.files.documents import DatasetName, Record, ReleaseId
from storage.files.refs import ReleaseRef, new_release_id
from storage.schema.visit_columns import AnyPartition, ByEntry
from tasks.steps.job import ReleaseJob

refusal = refusals(__package__)

_ARRIVAL_ID = r"^a-[0-9]{8}-[0-9a-f]{8}$"


def _in_order(schema: dict[str, Any]) -> None:
    for position, shown in enumerate(schema["properties"].values()):
        shown["position"] = position


FORM = ConfigDict(
    use_attribute_docstrings=True,
    field_title_generator=lambda name, _: name.replace("_", " ").capitalize(),
    json_schema_extra=_in_order,
)
"""Configuration of a request that the page of the orchestrator asks for: fields in their order."""


class ReleaseRequest(Record):
    """Make a synthetic release of one dataset.

    Source, guarantee and approval are declared in the dataset's site file. A request never holds a
    value of the table, a secret or a seed, because the orchestrator stores and shows it.
    """

    model_config = FORM

    dataset: DatasetName
    """Name of the dataset, in lower-case letters, digits and hyphens. Its site file says everything
    else about the release."""
    arrival: str | None = Field(default=None, pattern=_ARRIVAL_ID)
    """Id of the table that has arrived and is to be read, a-YYYYMMDD-xxxxxxxx, as clustmix status
    lists it. Left out: the source that the site file names."""
    new_draw: bool = False
    """Draw new noise, and pay again, where this table was measured before. Otherwise an unchanged
    table costs nothing and gives the same release."""
    release_id: ReleaseId = Field(default_factory=new_release_id)
    """Id of the release, r-YYYYMMDD-xxxxxxxx. Leave it out: it is made anew."""
    again: bool = False
    """Charge once more although the last release was charged and stopped: say so once its cause is
    mended."""
    period: str | None = None
    """Period of a release by entry, as 2026-03. Left out: the last that has ended."""

    def site_path(self, sites: Path) -> Path:
        """Return the site file of the dataset, in the folder of site files."""
        return sites / f"{self.dataset}.yaml"


class SiteRequest(ReleaseRequest):
    """A request from the command line: any site file, and the key id of the requester."""

    site_file: str = Field(min_length=1)
    requester: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")

    def site_path(self, sites: Path) -> Path:
        """Return the place of the site file."""
        return Path(self.site_file)


def job_of(
    site: SiteFile, release_id: str, *, requester: str | None = None, period: str | None = None
) -> ReleaseJob:
    """Return the job of a release from its site file; `period` is by default the last one."""

    def rho(epsilon: float) -> Decimal:
        parameters = PrivacyParameters(epsilon=epsilon, delta=site.parameters.delta)
        return release_rho(parameters, adjacency=site.privacy.adjacency)

    last = None if site.publish is None else site.publish.pool.last
    budget, dataset, window = site.budget, site.budget.dataset_epsilon, site.budget.window
    return ReleaseJob(
        ref=ReleaseRef(dataset=site.dataset, release_id=release_id),
        title=site.title,
        source=site.source,
        table_schema=site.table_schema,
        columns_to_read=site.columns_to_read,
        unit=site.unit,
        visits=site.privacy_unit.visits,
        parameters=site.parameters,
        adjacency=site.privacy.adjacency,
        cohort=site.cohort,
        lifetime_epsilon=budget.lifetime_epsilon,
        caps=Caps(
            lifetime_rho=rho(budget.lifetime_epsilon),
            dataset_rho=None if dataset is None else rho(dataset),
            window_rho=None if window is None else rho(window.epsilon),
            window_days=None if window is None else window.days,
        ),
        partition=_partition_of(site.privacy_unit.partition, site.dataset, site.unit, period),
        entry=site.entry,
        needs_approval=site.approval == "officer",
        requester=requester,
        method=site.method,
        rows=site.n_rows,
        soft_labels=site.soft_labels,
        points=None if site.distill is None else site.distill.points,
        patients=site.patients,
        parts=site.parts or last or 1,
        pool_last=last,
        events=site.event_tables,
        site=site.model_dump(mode="json", by_alias=True),
    )


def _partition_of(
    part: AnyPartition | None, dataset: str, unit: PrivacyUnit, period: str | None
) -> Partition | None:
    if part is None:
        return None
    # With dataset and patient column: another table may number the same patients differently, and
    # its parts then overlap with those of this one.
    spelling = "".join(f" {step}" for step in unit.key_normal)  # which divides them anew
    scheme = f"of {dataset} by {unit.column}{spelling}"
    if isinstance(part, ByEntry):
        period = period or part.last_period(datetime.now(UTC))
        return Partition(scheme=f"entry {scheme}", parts=None, part=period, at_most=part.at_most)
    return Partition(scheme=f"{part.scheme} {scheme}", parts=part.parts, part=part.part)


def load_job(request: ReleaseRequest, *, sites: Path, requester: str | None) -> ReleaseJob:
    """Read the site file of a request; errors are those of `load_site` and `asked_job`."""
    site = load_site(request.site_path(sites))
    # A request on the page of the orchestrator has no requester of its own.
    known = request.requester if isinstance(request, SiteRequest) else requester
    return asked_job(request, site, requester=known)


def asked_job(request: ReleaseRequest, site: SiteFile, *, requester: str | None) -> ReleaseJob:
    """Return the job of a request, if its site file allows it (else ConfigurationError)."""
    if site.dataset != request.dataset:
        raise refusal("OTHER_DATASET", wanted=request.dataset, found=site.dataset)
    if site.approval == "officer" and requester is None:
        raise refusal("REQUESTER_MISSING")
    if site.distill is not None:
        # A missing package is noticed before the charge.
        import_module("tasks.distillation.tangent_kernels").tangent_kernel(depth=1)
    if request.period is not None:
        expected, entry = "no period", site.entry
        if entry is not None:
            expected = f"a {entry.every} up to {entry.last_period(datetime.now(UTC))}, the last"
        if entry is None or not entry.has_ended(request.period):
            raise refusal("PERIOD_INVALID", expected=expected, found=request.period)
    return job_of(site, request.release_id, requester=requester, period=request.period)
