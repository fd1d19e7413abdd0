"""Spent and remaining budget of cohorts: sums, parallel composition, windows. No I/O.

Charges of one cohort add up. Those of different parts of a partition fall on different patients, so
only the largest sum counts (parallel composition), or the k largest where a register lets a patient
be read k times. Two partitions divide the same patients, so their charges add up. Sums stay valid
although requests depend on earlier releases, as their caps were fixed in advance (privacy filter;
Smith and Thakurta, "Fully adaptive composition for Gaussian differential privacy", 2022).
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TypeVar

from privacy.calibration import affordable_epsilon
from privacy.charges import Caps, Charge, Partition
from privacy.errors import refusals
from privacy.ledger import Balance, EntryState, LedgerEntry

refusal = refusals(__package__)

_Key = TypeVar("_Key", str, int)


def moment(recorded_at: str) -> datetime:
    """Return the moment that a time of the journal names, in UTC; ValueError for another form."""
    parsed = datetime.strptime(recorded_at, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    if time_text(parsed) != recorded_at or parsed.year < 1970:
        raise ValueError(recorded_at)
    return parsed


def time_text(when: datetime) -> str:
    """Return a moment in UTC as the journal writes it, which sorts like time."""
    return when.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


@dataclass(frozen=True, slots=True)
class _Limit:
    """One cap, with its `scope` in words, and spending of the payer and of the worst part."""

    name: str
    scope: str
    cap_rho: Decimal
    spent_rho: Decimal
    worst_rho: Decimal

    @property
    def left_rho(self) -> Decimal:
        """The rest; zero if the worst part exceeds the cap, by an adjustment or a lowered cap."""
        left = self.cap_rho - self.spent_rho if self.worst_rho <= self.cap_rho else Decimal(0)
        return left or Decimal(0)


class Spending:
    """Spent budget, built up row by row from the journal, in its order."""

    def __init__(self, rows: Iterable[LedgerEntry] = ()) -> None:
        # By cohort and entry: the first row of each entry that counts, which has its amount.
        self._charges: defaultdict[str, dict[str, LedgerEntry]] = defaultdict(dict)
        self._lifetime_caps: dict[str, Decimal] = {}
        self._dataset_caps: dict[str, Decimal] = {}
        self._window_caps: defaultdict[str, dict[int, Decimal]] = defaultdict(dict)
        self._approval: set[str] = set()
        for row in rows:
            self.record(row)

    def record(self, row: LedgerEntry) -> None:
        """Take the next row of the journal into account."""
        if row.state is EntryState.VOID:
            self._charges[row.cohort].pop(row.entry_id, None)
        elif row.state is EntryState.ADJUSTED:
            self._charges[row.cohort][row.entry_id] = row
        elif row.state is EntryState.RESERVED:
            self._charges[row.cohort][row.entry_id] = row
            _lower(self._lifetime_caps, row.cohort, row.caps.lifetime_rho)
            _lower(self._dataset_caps, row.dataset, row.caps.dataset_rho)
            if row.caps.window_days is not None:
                window_caps = self._window_caps[row.cohort]
                _lower(window_caps, row.caps.window_days, row.caps.window_rho)
            if row.needs_approval:
                self._approval.add(row.cohort)

    def check_policy(self, charge: Charge) -> None:
        """Refuse a charge that drops an approval or changes the neighbours of a cohort.

        It is a LedgerError if an earlier entry of the cohort needed an approval and this one does
        not, or the cohort was charged under the other adjacency: the sum would bound neither.
        """
        if charge.cohort in self._approval and not charge.needs_approval:
            raise refusal("APPROVAL_REQUIRED", cohort=charge.cohort)
        rows = self._charges.get(charge.cohort, {}).values()
        charged = {row.adjacency for row in rows if row.state is EntryState.RESERVED}
        if charged - {charge.adjacency}:
            found = charge.adjacency.value
            raise refusal("ADJACENCY_MIXED", cohort=charge.cohort, found=found)

    def check_caps(self, charge: Charge, *, now: str) -> None:
        """Refuse a charge that a cap does not allow `now`; BudgetRefused names the tightest."""
        limits = self.limits(
            charge.cohort, charge.dataset, charge.partition, caps=charge.caps, now=now
        )
        # The first of equal limits: a lifetime cap comes before a window, which will pass.
        tightest = min(limits, key=lambda limit: limit.left_rho)
        if charge.rho > tightest.left_rho:
            payer = "" if charge.partition is None else f" for {charge.partition}"
            asked = getattr(charge.caps, f"{tightest.name}_rho") or tightest.cap_rho
            fall = "; the larger cap of the site file is not kept, as caps only fall"
            raised = fall if asked > tightest.cap_rho else ""
            epsilon = affordable_epsilon(
                tightest.left_rho, delta=charge.delta, adjacency=charge.adjacency
            )
            facts = {"epsilon": epsilon, "payer": payer, "raised": raised}
            raise refusal("BUDGET_EXCEEDED", charge=charge, cap=tightest, **facts)

    def balance(
        self,
        cohort: str,
        dataset: str | None,
        partition: Partition | None,
        *,
        caps: Caps | None,
        now: str,
    ) -> Balance:
        """Return the spending of a cohort or part, and its rest `now` under its caps and `caps`."""
        limits = self.limits(cohort, dataset, partition, caps=caps, now=now)
        lifetime = next((limit for limit in limits if limit.name == "lifetime"), None)
        if lifetime is None:
            spent, _ = self._spent(cohort, partition)
            return Balance(spent_rho=spent, cap_rho=None)
        left = min(limit.left_rho for limit in limits)
        # By entry the next patients are new: `left` is their rest, `spent` is that of the worst.
        by_entry = partition is not None and partition.period is not None
        spent = lifetime.worst_rho if by_entry else lifetime.spent_rho
        return Balance(
            spent_rho=spent,
            cap_rho=lifetime.cap_rho,
            tightest_rho=None if left == lifetime.cap_rho - spent else left,
        )

    def limits(
        self,
        cohort: str,
        dataset: str | None,
        partition: Partition | None,
        *,
        caps: Caps | None,
        now: str,
    ) -> list[_Limit]:
        """Return every cap in force, with its rest; see `balance` for the parameters."""
        named = f"cohort {cohort!r}"
        limits = []
        lifetime = _smaller(self._lifetime_caps.get(cohort), getattr(caps, "lifetime_rho", None))
        if lifetime is not None:
            limits.append(_Limit("lifetime", named, lifetime, *self._spent(cohort, partition)))
        if dataset is not None:
            cap = _smaller(self._dataset_caps.get(dataset), getattr(caps, "dataset_rho", None))
            if cap is not None:
                spent = self._spent_on_dataset(cohort, dataset, partition)
                limits.append(_Limit("dataset", f"dataset {dataset!r}", cap, *spent))
        windows = dict(self._window_caps.get(cohort, {}))
        if caps is not None and caps.window_days is not None:
            _lower(windows, caps.window_days, caps.window_rho)
        for days, cap in sorted(windows.items()):
            begin = time_text(moment(now) - timedelta(days=days))
            spent = self._spent(cohort, partition, after=begin)
            limits.append(_Limit("window", f"{named} in {days} days", cap, *spent))
        return limits

    def _spent(
        self, cohort: str, partition: Partition | None, *, after: str = ""
    ) -> tuple[Decimal, Decimal]:
        """Return the spending of the payer, and of the worst part of the cohort."""
        rows = self._charges.get(cohort, {}).values()
        return composed_rho([row for row in rows if row.recorded_at > after], partition)

    def _spent_on_dataset(
        self, cohort: str, dataset: str, partition: Partition | None
    ) -> tuple[Decimal, Decimal]:
        """Return the same for one dataset; adjustments of a cohort count in all its datasets."""
        payer, worst = Decimal(0), Decimal(0)
        for name, rows in self._charges.items():
            paid = [row for row in rows.values() if row.dataset == dataset]
            if not paid and name != cohort:
                continue
            paid += [row for row in rows.values() if row.state is EntryState.ADJUSTED]
            own, largest = composed_rho(paid, partition if name == cohort else None)
            payer, worst = payer + own, worst + largest
        return payer, worst


def composed_rho(
    rows: Collection[LedgerEntry], partition: Partition | None = None
) -> tuple[Decimal, Decimal]:
    """Return the sum under parallel composition, for one part and for the worst one.

    The rows are the charges of one cohort that count. The sum of a part adds the charges of the
    whole cohort, of this part, and of the worst part of every other partition. The worst sum adds
    the charges of the whole cohort and of the worst part of every partition; without a partition,
    both sums are the worst one. By entry, each charge is a part: the worst patients pay the
    `at_most` largest charges, the patients of a new part one charge less.
    """
    whole = Decimal(0)
    parts: defaultdict[tuple[str, int, int, str], defaultdict[Hashable, Decimal]] = defaultdict(
        lambda: defaultdict(Decimal)
    )
    for row in rows:
        if row.partition is None:
            whole += row.rho
        else:
            split, part = row.partition.split, row.partition.part
            parts[split][part if row.partition.period is None else row.entry_id] += row.rho
    largest = {key: sorted(sums.values(), reverse=True)[: key[2]] for key, sums in parts.items()}
    worst = whole + sum((sum(sums) for sums in largest.values()), start=Decimal(0))
    if partition is None:
        return worst, worst
    top = largest.get(partition.split, [])
    own = parts[partition.split][partition.part]
    if partition.period is not None:
        own = sum(top[: partition.at_most - 1], start=Decimal(0))
    return worst - sum(top, start=Decimal(0)) + own, worst


def _smaller(first: Decimal | None, second: Decimal | None) -> Decimal | None:
    given = [cap for cap in (first, second) if cap is not None]
    return min(given, default=None)


def _lower(caps: dict[_Key, Decimal], key: _Key, cap: Decimal | None) -> None:
    if cap is not None:
        caps[key] = min(cap, caps.get(key, cap))
