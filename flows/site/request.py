"""The request of a release, public, as the orchestrator stores it."""

from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path

from pydantic import Field

from flows.site.site_file import AnyPartition, SiteFile, load_site
from privacy.calibration import release_rho
from privacy.charges import Caps, Partition
from privacy.errors import ConfigurationError
from privacy.parameters import PrivacyParameters, PrivacyUnit
from storage.files.documents import Record
from storage.files.refs import ReleaseRef, new_release_id
from storage.schema.visit_columns import ByEntry
from tasks.steps.job import ReleaseJob

RELEASE_ID = r"^r-[0-9]{8}-[0-9a-f]{8}$"  # names a folder before anything else is checked
_ARRIVAL_ID = r"^a-[0-9]{8}-[0-9a-f]{8}$"
NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"


class ReleaseRequest(Record):
    """Make a synthetic release of one dataset.

    Source, guarantee and approval are declared in the dataset's site file. A request never holds a
    value of the table, a secret or a seed, because the orchestrator stores and shows it.
    """

    dataset: str = Field(
        title="Dataset",
        description="Name of the dataset, in lower-case letters, digits and hyphens. Its site file "
        "says everything else about the release.",
        pattern=NAME,
        max_length=63,
        json_schema_extra={"position": 0},
    )
    arrival: str | None = Field(
        default=None,
        title="Arrival",
        description="Id of the table that has arrived and is to be read, a-YYYYMMDD-xxxxxxxx, as "
        "clustmix status lists it. Left out: the source that the site file names.",
        pattern=_ARRIVAL_ID,
        json_schema_extra={"position": 1},
    )
    release_id: str = Field(
        default_factory=new_release_id,
        title="Release id",
        description="Id of the release, r-YYYYMMDD-xxxxxxxx. Leave it out: it is made anew.",
        pattern=RELEASE_ID,
        json_schema_extra={"position": 3},
    )
    new_draw: bool = Field(
        default=False,
        title="New draw",
        description="Draw new noise, and pay again, where this table was measured before. "
        "Otherwise an unchanged table costs nothing and gives the same release.",
        json_schema_extra={"position": 2},
    )

    again: bool = Field(
        default=False,
        title="Again",
        description="Charge once more although the last release was charged and stopped: say so "
        "once its cause is mended.",
        json_schema_extra={"position": 4},
    )

    period: str | None = Field(
        default=None,
        title="Period",
        description="Period of a release by entry, as 2026-03. Left out: the last that has ended.",
        json_schema_extra={"position": 5},
    )

    def site_path(self, sites: Path) -> Path:
        """Return the site file of the dataset, in the folder of site files."""
        return sites / f"{self.dataset}.yaml"

    def requester_of(self, usual: str | None) -> str | None:
        """Return the key id of the person who asks: the usual one, as the page knows nobody."""
        return usual


class SiteRequest(ReleaseRequest):
    """A request from the command line: any site file, and the key id of the requester."""

    site_file: str = Field(min_length=1)
    requester: str | None = Field(default=None, pattern=r"^[0-9a-f]{16}$")

    def site_path(self, sites: Path) -> Path:
        """Return the place of the site file."""
        return Path(self.site_file)

    def requester_of(self, usual: str | None) -> str | None:
        """Return the key id of the person who asks."""
        return self.requester


def job_of(
    site: SiteFile, release_id: str, *, requester: str | None = None, period: str | None = None
) -> ReleaseJob:
    """Return the public facts of a release from its site file, of the last period by default."""

    def rho(epsilon: float) -> Decimal:
        parameters = PrivacyParameters(epsilon=epsilon, delta=site.parameters.delta)
        return release_rho(parameters, adjacency=site.privacy.adjacency)

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
        pool_last=None if site.publish is None else site.publish.pool.last,
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
    return asked_job(request, site, requester=request.requester_of(requester))


def asked_job(request: ReleaseRequest, site: SiteFile, *, requester: str | None) -> ReleaseJob:
    """Return the job of a request, if its site file allows it (else ConfigurationError)."""
    if site.dataset != request.dataset:
        raise ConfigurationError(
            "OTHER_DATASET",
            f"expected a site file of dataset {request.dataset!r}, found {site.dataset!r}",
        )
    if site.approval == "officer" and requester is None:
        raise ConfigurationError(
            "REQUESTER_MISSING",
            "expected the key of the person who asks, because an officer other than that person "
            "has to approve; give --key (clustmix keygen makes one), or CLUSTMIX_REQUESTER where "
            "the orchestrator asks",
        )
    if site.distill is not None:
        # A missing package is noticed before the charge.
        import_module("tasks.distillation.tangent_kernels").tangent_kernel(depth=1)
    if request.period is not None:
        expected, entry = "no period", site.entry
        if entry is not None:
            expected = f"a {entry.every} up to {entry.last_period(datetime.now(UTC))}, the last"
        if entry is None or not entry.has_ended(request.period):
            text = f"expected {expected}, by privacy_unit.partition, found {request.period}"
            raise ConfigurationError("PERIOD_INVALID", text)
    return job_of(site, request.release_id, requester=requester, period=request.period)
