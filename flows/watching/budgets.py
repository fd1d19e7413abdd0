"""Remaining budget of each dataset, by its site file and by the ledger."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path

from flows.site.request import job_of
from flows.site.site_file import SiteFile, load_site
from flows.site.yearly import next_year
from flows.watching.schedules import overdue
from privacy.errors import ClustMixError
from privacy.ledger import EntryState, LedgerEntry, latest_entries
from privacy.spending import Spending, time_text
from storage.files.refs import new_release_id


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetBudget:
    """Rest under the scarcest cap, in percent (rounded down) and in releases; schedule."""

    dataset: str
    percent_left: int
    releases_left: int
    last_release: str | None = None
    overdue: datetime | None = None
    year: str = ""


def read_sites(folder: Path) -> tuple[dict[str, SiteFile], dict[str, str]]:
    """Return the site files of a folder by dataset, and the codes of faulty files by name."""
    sites: dict[str, SiteFile] = {}
    faults: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            site = load_site(path)
            sites[site.dataset] = site
        except ClustMixError as error:
            faults[path.name] = error.code
    return sites, faults


def budgets(sites: dict[str, SiteFile], rows: tuple[LedgerEntry, ...]) -> list[DatasetBudget]:
    """Return the budget of each dataset that has a site file or an entry in the whole journal."""
    spending = Spending(rows)
    now = max(time_text(datetime.now(UTC)), rows[-1].recorded_at if rows else "")
    released = [e for e in latest_entries(rows).values() if e.state is not EntryState.ADJUSTED]
    # The payer of the releases of a dataset, its caps, and the charge of one release.
    payers = {e.dataset: (e.cohort, e.partition, e.caps, e.rho) for e in released}
    for dataset, site in sites.items():
        job = job_of(site, new_release_id())
        part, known = job.partition, payers.get(dataset, (None, None))[1]
        if part is not None and part.period and known is not None and known.period:
            part = replace(part, register=known.register)  # which the ledger alone knows
        payers[dataset] = (job.cohort, part, job.caps, job.charge_rho)
    published = {e.dataset: e.release_id for e in released if e.state is EntryState.PUBLISHED}
    found = []
    for dataset, (cohort, partition, caps, rho) in sorted(payers.items()):
        limits = spending.limits(cohort, dataset, partition, caps=caps, now=now)
        share = min(limit.left_rho / limit.cap_rho for limit in limits)
        left = max(Decimal(0), min(limit.left_rho for limit in limits))
        late, year, own = None, "", sites.get(dataset)
        if own is not None and own.schedule is not None:
            when, made = own.schedule.model_dump(), [row for row in rows if row.dataset == dataset]
            late = overdue(when, own.entry, made)
            balance = spending.balance(cohort, dataset, partition, caps=caps, now=now)
            year = next_year(when, (partition, rho), entries=released, balance=balance)
        budget = DatasetBudget(
            dataset=dataset,
            percent_left=max(0, int((share * 100).to_integral_value(ROUND_FLOOR))),
            releases_left=int(left // rho),
            last_release=published.get(dataset),
            overdue=late,
            year=year,
        )
        found.append(budget)
    return found
