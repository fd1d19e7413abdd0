"""Remaining budget of each dataset, by its site file and by the ledger."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import NamedTuple

from flows.site.request import job_of
from flows.site.site_file import SiteFile, load_site
from privacy.charges import Caps, Partition
from privacy.errors import ClustMixError
from privacy.ledger import EntryState, LedgerEntry, latest_entries
from privacy.spending import Spending, time_text
from storage.files.refs import new_release_id

LOW_PERCENT = 20
"""Below this the budget of a dataset is low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetBudget:
    """Remaining share of the scarcest cap, rounded down, and the number of releases it allows."""

    dataset: str
    percent_left: int
    releases_left: int

    @property
    def is_low(self) -> bool:
        """True if the budget is below `LOW_PERCENT`."""
        return self.percent_left < LOW_PERCENT


class _Payer(NamedTuple):
    """The payer of the releases of a dataset, its caps, and the charge of one release."""

    cohort: str
    partition: Partition | None
    caps: Caps
    rho: Decimal


class SiteFolder:
    """The site files ``<dataset>.yaml`` of an installation, read again when they change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, tuple[tuple[int, int], SiteFile | ClustMixError]] = {}

    def sites(self) -> dict[str, SiteFile]:
        """Return the site files that can be released from, by dataset."""
        found = (site for site in self._files().values() if isinstance(site, SiteFile))
        return {site.dataset: site for site in found}

    def faults(self) -> dict[str, str]:
        """Return the codes of the files that are no site files, by file name."""
        found = self._files().items()
        return {path.name: site.code for path, site in found if isinstance(site, ClustMixError)}

    def _files(self) -> dict[Path, SiteFile | ClustMixError]:
        found = {}
        for path in sorted(self._folder.glob("*.yaml")):
            try:
                status = path.stat()
            except OSError:
                continue  # removed in this moment
            stamp = (status.st_mtime_ns, status.st_size)
            if path not in self._read or self._read[path][0] != stamp:
                self._read[path] = (stamp, _site_or_fault(path))
            found[path] = self._read[path][1]
        return found


def budgets(sites: dict[str, SiteFile], rows: tuple[LedgerEntry, ...]) -> list[DatasetBudget]:
    """Return the budget of each dataset that has a site file or an entry in the whole journal."""
    spending = Spending(rows)
    now = max(time_text(datetime.now(UTC)), rows[-1].recorded_at if rows else "")
    released = [e for e in latest_entries(rows).values() if e.state is not EntryState.ADJUSTED]
    payers = {e.dataset: _Payer(e.cohort, e.partition, e.caps, e.rho) for e in released}
    for dataset, site in sites.items():
        job = job_of(site, new_release_id())
        payers[dataset] = _Payer(job.cohort, job.partition, job.caps, job.charge_rho)
    return [_budget(spending, dataset, payers[dataset], now) for dataset in sorted(payers)]


def _budget(spending: Spending, dataset: str, payer: _Payer, now: str) -> DatasetBudget:
    limits = spending.limits(payer.cohort, dataset, payer.partition, caps=payer.caps, now=now)
    share = min(limit.left_rho / limit.cap_rho for limit in limits)
    left = max(Decimal(0), min(limit.left_rho for limit in limits))
    return DatasetBudget(
        dataset=dataset,
        percent_left=max(0, int((share * 100).to_integral_value(ROUND_FLOOR))),
        releases_left=int(left // payer.rho),
    )


def _site_or_fault(path: Path) -> SiteFile | ClustMixError:
    try:
        return load_site(path)
    except ClustMixError as error:
        return error
