"""The guarantee of a measurement in words and numbers, and its plan before a row is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING

from privacy.parameters import Adjacency
from storage.files.documents import Record, Text
from tasks.reporting.claim import Claim, rounded_up

if TYPE_CHECKING:
    import pandas as pd

    from privacy.events import Event
    from tasks.measurement.measurement_plan import MeasurementPlan

_FORMS = {"noise": "{:.4g}".format, "share": "{:.0%}".format}

NOT_CHARGED = "Nothing was charged: no ledger counts this against the budget of these patients."


class Charged(Record):
    """The entry of a ledger that has paid, and the patients who paid, where it is known."""

    entry: Text
    cohort: Text | None = None

    def __str__(self) -> str:
        whose = "" if self.cohort is None else f"to cohort {self.cohort} "
        return f"Charged {whose}as entry {self.entry} of its ledger."


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """A differential-privacy guarantee, computed from the events that it is about.

    Parameters
    ----------
    events : tuple of Event
        Uses of mechanisms: planned, or as they really happened.
    delta : float
        Additive term of the definition, beside the factor e^epsilon.
    adjacency : Adjacency
        Neighbouring tables: with one patient more, or with one exchanged for another.
    privacy_unit : str
        The protected patient, in words.
    max_rows_per_patient : int
        Rows of one patient that have any influence.
    charged : Charged, optional
        The entry of a ledger that has paid.
    tainted : bool, default False
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
    delta: float
    adjacency: Adjacency
    privacy_unit: str
    max_rows_per_patient: int
    charged: Charged | None = None
    tainted: bool = False

    def at(self, *, delta: float) -> Guarantee:
        """Return the guarantee of the same events at another delta."""
        return replace(self, delta=delta)

    @cached_property
    def _totals(self) -> dict[str, float]:
        from storage.releases.bundles import totals_of

        return totals_of(self.events, adjacency=self.adjacency, delta=self.delta)

    @property
    def epsilon(self) -> float:
        """The bound on the privacy loss."""
        return self._totals["epsilon"]

    @property
    def replace_one_epsilon(self) -> float:
        """The bound where one patient is replaced by another, at the same delta."""
        return self._totals["replace_one_epsilon"]

    @property
    def mu(self) -> float:
        """Total of Gaussian differential privacy."""
        return self._totals["mu"]

    @property
    def rho(self) -> float:
        """Half the square of `mu`, which a ledger counts."""
        return self._totals["rho"]

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan:
    """Every planned statistic, with its noise, fixed before a row is read.

    Parameters
    ----------
    measurement : MeasurementPlan
        The planned statistics, in the order in which they are drawn.
    guarantee : Guarantee
        Their sum.

    Examples
    --------
    >>> from clustmix import NaiveBayes, Schema
    >>> schema = Schema(items=("tea",), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> print(NaiveBayes(schema, epsilon=1.0, delta=1e-6).plan())
                      statistic  values  draws noise share
    feature_by_label_histograms       6      1 4.225  100%
    """

    measurement: MeasurementPlan
    guarantee: Guarantee

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each planned statistic.

        Columns are ``statistic``; ``values``, numbers in a draw; ``draws``; ``noise``, standard
        deviation in units of the statistic; ``share`` of ``mu**2``.
        """
        import pandas as pd

        planned = [self.measurement[one.name] for one in self.measurement.statistics]
        total = sum(one.mu**2 for one in planned)
        return pd.DataFrame(
            {
                "statistic": [one.name for one in planned],
                "values": [math.prod(one.shape) for one in planned],
                "draws": [one.n_draws for one in planned],
                "noise": [one.unit_noise_stddev for one in planned],
                "share": [one.mu**2 / total for one in planned],
            }
        )

    def __str__(self) -> str:
        return self.to_frame().to_string(index=False, formatters=_FORMS)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        words = f"{Claim(self.guarantee).definition} Nothing has been read or charged yet."
        table = self.to_frame().to_html(index=False, border=0, formatters=_FORMS)
        return f"{table}<p>{escape(words)}</p>"
