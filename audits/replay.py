"""A sealed measurement, replayed beside the generated table that it was made of.

The method runs again with the sealed draws in the place of new ones, so that every exact sum is
known at the arguments that were really used. Nothing of this can be computed of a table that this
program has not generated itself, and the audit command alone calls it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from audits.planted import PlantedTable
from privacy.arrays import Floats, Integers
from privacy.errors import ConfigurationError
from privacy.events import Gaussian
from privacy.randomness import OperatingSystemNoise
from tasks.measurement.curator import Contribution, Curator, Recoding, exact_sum
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import Synthesizer, measure


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedDraw:
    """Noise and projections of one draw, in units of the noise that its event states.

    `residual` (n_values,) is the sealed draw less the exact sum. `projection` (n_canaries,) is the
    inner product of each canary's own part with the sealed draw less its expectation before the
    coins: a function of the output alone. The own part is its vector less the mean vector of the
    canaries of its label, since a part that all share says nothing of one. `squared_norm`
    (n_canaries,), of own part and vector, is a canary's share of mu squared.
    """

    name: str
    residual: Floats
    projection: Floats
    squared_norm: Floats


class Replay(Curator):
    """Gives a method the draws that were sealed of a generated table, and projects each."""

    def __init__(
        self,
        plan: MeasurementPlan,
        table: PlantedTable,
        *,
        sealed: Mapping[str, Integers],
        stated: Mapping[str, Gaussian],
    ) -> None:
        super().__init__(plan=plan, shards=(), noise_source=OperatingSystemNoise())
        self._table, self._draws, self._stated = table, sealed, stated
        self._read(table.encoded())
        self.replayed: list[ReplayedDraw] = []

    def release(self, name: str, contribution: Contribution, **public: Any) -> Floats:
        """Return the sealed draw of a statistic; keep its residual and all projections."""
        planned, values = self.plan[name], self._draws[name]
        stddev = self._stated[name].noise_stddev
        exact, others, everybody = (
            exact_sum(contribution, public, [rows])
            for rows in (
                self._rows.only(self._table.present),
                self._rows.only(self._table.others),
                self._rows,
            )
        )
        # Every coin is fair, so before they are thrown the sum is expected half way.
        surprise = values - (others + everybody) / 2.0
        canaries = self._rows.only(slice(0, self._table.n_canaries))
        inner, squared_norm = project(contribution, public, canaries, surprise)
        self.replayed.append(
            ReplayedDraw(
                name=name,
                residual=(values - exact).reshape(-1) / stddev,
                projection=inner / stddev**2,
                squared_norm=squared_norm / stddev**2,
            )
        )
        self._n_draws[name] = 1
        released: Floats = values / planned.scale
        return released

    def recode(self, recoding: Recoding, **public: Any) -> None:
        """Recode everybody for the draws that follow."""
        self._read(recoding(self._rows, **public))

    def _read(self, rows: EncodedRows) -> None:
        self._rows = rows


def project(
    contribution: Contribution, public: dict[str, Any], rows: EncodedRows, direction: Floats
) -> tuple[Floats, Floats]:
    """Project a direction on the own part of the vector of every row, a patient each.

    Returns the inner products and the squared norms of `ReplayedDraw`, in grid points. The vector
    is the exact contribution of the row alone.
    """
    flat = direction.reshape(-1)
    inner, squared_norm = np.zeros((2, len(rows)))
    # The products of one row are too small for threads, which would wait for each other.
    with threadpool_limits(1, user_api="blas"):
        for label in np.unique(rows.label):
            (alike,) = np.nonzero(rows.label == label)
            total = exact_sum(contribution, public, [rows.only(alike)])
            mean = total.reshape(-1) / len(alike)
            for i in alike:
                one = exact_sum(contribution, public, [rows.only(slice(i, i + 1))])
                vector = one.reshape(-1).astype(np.float64)
                own = vector - mean
                inner[i], squared_norm[i] = own @ flat, own @ vector
    return inner, squared_norm


def replay(
    synthesizer: Synthesizer,
    *,
    mu: float,
    table: PlantedTable,
    sealed: Mapping[str, Integers],
    stated: Mapping[str, Gaussian],
) -> tuple[ReplayedDraw, ...]:
    """Replay a sealed measurement of a generated table; draws and events are by statistic.

    Privacy
    -------
    Reads no table: the rows are those that the caller has generated.
    """
    plan = synthesizer.plan(mu=mu)
    check_replayable(plan)
    curator = Replay(plan, table, sealed=sealed, stated=stated)
    measure(synthesizer, curator)
    return tuple(curator.replayed)


def check_replayable(plan: MeasurementPlan) -> None:
    """Refuse a plan that draws a statistic many times (ConfigurationError)."""
    for planned in plan.statistics:
        if planned.n_draws > 1:
            raise ConfigurationError(
                "AUDIT_UNSUPPORTED",
                "expected a method with one noisy sum over all patients for each statistic, found "
                "another kind of draw; audit it by many runs instead (clustmix audit METHOD)",
            )
