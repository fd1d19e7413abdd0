"""The cost of the next twelve months of a schedule, in words."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from privacy.charges import Partition
from privacy.ledger import Balance, LedgerEntry


def next_year(
    schedule: Mapping[str, str],
    charge: tuple[Partition | None, Decimal],
    *,
    entries: Iterable[LedgerEntry],
    balance: Balance,
) -> str:
    """Describe the number of releases of a schedule, at most 1,000, and their share of the cap.

    By entry, their cost is the increase of the sum of the `at_most` largest charges.
    """
    from prefect.server.schemas.schedules import CronSchedule

    partition, rho = charge
    now, times = datetime.now(UTC), CronSchedule(**schedule)
    n_runs = len(asyncio.run(times.get_dates(start=now, end=now + timedelta(days=365))))
    paid, most, cap = list[Decimal](), n_runs, balance.cap_rho or rho
    if partition is not None and partition.period:
        own = [e for e in entries if e.partition and e.partition.split == partition.split]
        paid, most = sorted(e.rho for e in own if e.counts)[-partition.at_most :], partition.at_most
    cost = sum(sorted([*paid, *n_runs * [rho]])[-most:], Decimal(0)) - sum(paid, Decimal(0))
    fit = "" if cost <= cap - balance.spent_rho else f"; {balance.releases_left(rho)} fit"
    return f"{n_runs} releases add {cost / cap:.0%} of the cap{fit}"
