"""What a measurement may tell about a patient: in a sentence, in numbers, and before it is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from privacy.events import Composed, Event
from privacy.parameters import Adjacency
from storage.files.documents import Record, Text
from storage.releases.bundles import totals_of
from tasks.measurement.plan import MeasurementPlan
from tasks.reporting.guarantee import Claim, rounded_up

if TYPE_CHECKING:
    import pandas as pd

NOT_CHARGED = (
    "Nothing was charged: no ledger counts this against what these patients may still be asked."
)


class Charged(Record):
    """The entry of a ledger that has paid, and the patients who paid, where it is known."""

    entry: Text
    cohort: Text | None = None

    def __str__(self) -> str:
        whose = "" if self.cohort is None else f"to cohort {self.cohort} "
        return f"Charged {whose}as entry {self.entry} of its ledger."


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """A differential-privacy guarantee, computed from the events that it is about.

    Parameters
    ----------
    events
        Uses of mechanisms: planned, or as they really happened.
    epsilon, delta
        The bound on the privacy loss, and the probability with which it may fail.
    replace_one_epsilon
        The bound where one patient is replaced by another, at the same delta.
    mu, rho
        Total of Gaussian differential privacy; ``rho = mu**2 / 2`` is what a ledger counts.
    adjacency
        Which two tables count as neighbours.
    privacy_unit, max_rows_per_patient
        Whom it protects, in words, and how many rows of one patient have any influence.
    charged
        The entry of a ledger that has paid, or None.
    tainted
        Whether the noise can be drawn again; nothing is guaranteed then.

    Examples
    --------
    >>> from clustmix import NaiveBayes, Schema
    >>> schema = Schema(items=("tea",), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> guarantee = NaiveBayes(schema, epsilon=1.0, delta=1e-6).plan().guarantee
    >>> guarantee
    Guarantee(epsilon=1, delta=1e-6, adjacency='add_remove', unit='one row, which is one patient')
    >>> guarantee.at(delta=1e-9).epsilon > guarantee.epsilon
    True
    """

    events: tuple[Event, ...]
    epsilon: float
    delta: float
    replace_one_epsilon: float
    mu: float
    rho: float
    adjacency: Adjacency
    privacy_unit: str
    max_rows_per_patient: int
    charged: Charged | None = None
    tainted: bool = False

    @classmethod
    def of(
        cls,
        events: Sequence[Event],
        *,
        delta: float,
        adjacency: Adjacency,
        privacy_unit: str,
        max_rows_per_patient: int,
        charged: Charged | None = None,
        tainted: bool = False,
    ) -> Guarantee:
        """Add up events; see `storage.releases.bundles.totals_of`."""
        return cls(
            events=tuple(events),
            **_amounts(events, adjacency, delta),
            delta=delta,
            adjacency=adjacency,
            privacy_unit=privacy_unit,
            max_rows_per_patient=max_rows_per_patient,
            charged=charged,
            tainted=tainted,
        )

    def at(self, *, delta: float) -> Guarantee:
        """Return what the same events guarantee at another delta."""
        return replace(self, delta=delta, **_amounts(self.events, self.adjacency, delta))

    @property
    def event(self) -> Composed:
        """The composition of all events."""
        return Composed(events=self.events)

    @property
    def statement(self) -> str:
        """The guarantee in plain words, and whether a ledger counts it."""
        return f"{Claim(self).statement} {NOT_CHARGED if self.charged is None else self.charged}"

    def __str__(self) -> str:
        return self.statement

    def __repr__(self) -> str:
        marks = ", tainted=True" * self.tainted
        if self.charged is not None:
            marks += f", charged={self.charged.entry!r}"
        return (
            f"Guarantee(epsilon={rounded_up(self.epsilon)}, delta={rounded_up(self.delta)}, "
            f"adjacency={self.adjacency.value!r}, unit={self.privacy_unit!r}{marks})"
        )


def _amounts(events: Sequence[Event], adjacency: Adjacency, delta: float) -> dict[str, Any]:
    return asdict(totals_of(events, adjacency=adjacency, delta=delta))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan:
    """What will be measured and with which noise, set before a row is read.

    Parameters
    ----------
    measurement
        Every planned look at the rows.
    guarantee
        What they add up to.

    Examples
    --------
    >>> from clustmix import NaiveBayes, Schema
    >>> schema = Schema(items=("tea",), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> print(NaiveBayes(schema, epsilon=1.0, delta=1e-6).plan())
    statistic                      values  draws     noise  share
    feature_by_label_histograms         6      1     4.225   100%
    """

    measurement: MeasurementPlan
    guarantee: Guarantee

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each planned statistic.

        Columns are ``statistic``; ``values``, numbers in a draw; ``draws``; ``noise``, standard
        deviation in units of the statistic; ``share`` of ``mu**2``.
        """
        import pandas as pd

        return pd.DataFrame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        total = sum(planned.mu**2 for planned in self.measurement.statistics)
        return [
            {
                "statistic": planned.name,
                "values": math.prod(planned.shape),
                "draws": planned.n_draws,
                "noise": planned.unit_noise_stddev,
                "share": planned.mu**2 / total,
            }
            for planned in self.measurement.statistics
        ]

    def __str__(self) -> str:
        lines = [f"{'statistic':<30} {'values':>6} {'draws':>6} {'noise':>9} {'share':>6}"]
        for row in self._rows():
            lines.append(
                f"{row['statistic']:<30} {row['values']:>6} {row['draws']:>6} "
                f"{row['noise']:>9.4g} {row['share']:>6.0%}"
            )
        return "\n".join(lines)

    __repr__ = __str__
