"""A sealed measurement, replayed beside the generated table that it was made of.

The method runs again with the draws that are sealed in the place of new ones, so that every exact
sum is known at the arguments that were really used. From a table that this program has not
generated itself, nothing of this can be computed, and only the audit command calls it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from privacy.arrays import Floats, Integers
from privacy.errors import ConfigurationError
from privacy.events import Gaussian
from privacy.randomness import OperatingSystemNoise
from tasks.audit.pairs import PlantedTable
from tasks.audit.projections import project
from tasks.measurement.curator import Contribution, Curator, Recoding, exact_sum, in_memory
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.method import Synthesizer, measure
from tasks.measurement.plan import MeasurementPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedDraw:
    """What is known of one draw, over the noise that its event states, in grid points.

    `residual` (n_values,) is what was sealed less the exact sum. `projection` (n_canaries,) is the
    inner product of each canary's own part with what was sealed less its expectation before the
    coins: a function of the output alone. The own part is its vector less the mean vector of the
    canaries of its label, since what all share tells nothing of one. `squared_norm` (n_canaries,),
    of own part and vector, is a canary's share of mu squared.
    """

    name: str
    noise_stddev: float
    residual: Floats
    projection: Floats
    squared_norm: Floats


class Replay(Curator):
    """Gives a method the draws that were sealed of a generated table; notes what each shows."""

    def __init__(
        self,
        plan: MeasurementPlan,
        table: PlantedTable,
        sealed: Mapping[str, Integers],
        stated: Mapping[str, Gaussian],
    ) -> None:
        super().__init__(plan=plan, shards=(), noise_source=OperatingSystemNoise())
        self._table, self._draws, self._stated = table, sealed, stated
        self._read(table.encoded())
        self.replayed: list[ReplayedDraw] = []

    def release(self, name: str, contribution: Contribution, **public: Any) -> Floats:
        """Return the sealed draw of a statistic; note its residual and all projections."""
        planned, values, event = self.plan[name], self._draws[name], self._stated[name]
        exact, others, everybody = (
            exact_sum(contribution, public, shards)
            for shards in (self._present, self._others, self._everybody)
        )
        # Every coin is fair, so before they are thrown the sum is expected half way.
        surprise = values - (others + everybody) / 2.0
        inner, squared_norm = project(contribution, public, self._canaries, surprise)
        for label in np.unique(self._canaries.label):
            alike = self._canaries.label == label
            rows = self._canaries.only(alike)
            mean = exact_sum(contribution, public, in_memory([rows])) / len(rows)
            inner[alike] -= inner[alike].mean()
            squared_norm[alike] -= project(contribution, public, rows, mean)[0]
        self.replayed.append(
            ReplayedDraw(
                name=name,
                noise_stddev=event.noise_stddev,
                residual=(values - exact).reshape(-1) / event.noise_stddev,
                projection=inner / event.noise_stddev**2,
                squared_norm=squared_norm / event.noise_stddev**2,
            )
        )
        self._count(name)
        released: Floats = values / planned.scale
        return released

    def recode(self, recoding: Recoding, **public: Any) -> None:
        """Code everybody otherwise for the draws that follow."""
        self._read(recoding(self._everybody[0].load(), **public))

    def _read(self, rows: EncodedRows) -> None:
        self._present = in_memory([rows.only(self._table.present)])
        self._others = in_memory([rows.only(self._table.others)])
        self._everybody = in_memory([rows])
        self._canaries = rows.only(slice(0, self._table.n_canaries))


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
    curator = Replay(plan, table, sealed, stated)
    measure(synthesizer, curator, mu=mu)
    return tuple(curator.replayed)


def check_replayable(plan: MeasurementPlan) -> None:
    """Refuse a plan that draws a statistic many times (ConfigurationError): nothing replays it."""
    for planned in plan.statistics:
        if planned.n_draws > 1:
            raise ConfigurationError(
                "AUDIT_UNSUPPORTED",
                "expected a method that draws each statistic once, found one that is drawn many "
                "times; audit it by many runs instead (clustmix audit METHOD)",
            )
