"""Attack on one whole measurement of generated patients with tables of events.

Canaries are patients with whole histories. The attack sees every noisy sum and the canaries, and
knows how the sums are made; it does not see the coins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from audits.planted import PlantedTable
from privacy.arrays import Floats, Indices
from privacy.randomness import NoiseSource
from tasks.measurement.curator import Contribution, Curator, Recoding, exact_sum
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.methods.clustmix.events.event_domain import Events, first_events, hidden_codes
from tasks.methods.clustmix.events.event_release import EventRelease

Tables = Mapping[str, tuple[EncodedRows, Indices]]
"""Rows of each table by name, "" for patients, and the patient of each row, ascending."""


def with_histories(table: PlantedTable, release: EventRelease, rng: np.random.Generator) -> Tables:
    """Draw events of planted patients, 1 to the most of each table for a canary.

    Every other patient is steady: one event comes again and again after one gap, so that no vector
    of a history is longer. All other codes and gaps are uniform over what is declared.
    """
    rows, n = table.encoded(), len(table.labels)
    hidden, found = [rows.codes], {}
    for name, own in release.tables_at(1.0).items():
        domain, canary = own.events, np.arange(n) < table.n_canaries
        who = np.repeat(np.arange(n), rng.integers(canary, domain.most, n, endpoint=True))
        steady, start = (who % 2 == 0)[:, None], rng.choice(domain.offsets, n)[who]
        sizes = [len(domain.places), *(one.n_codes for one in domain.others), len(domain.gaps)]
        once, each = (rng.integers(sizes, size=(size, len(sizes))) for size in (n, len(who)))
        codes = np.where(steady, once[who], each)
        rank = np.arange(len(who)) - np.searchsorted(who, who)
        moment = start + np.asarray(domain.gaps)[codes[:, -1]] * np.where(steady[:, 0], rank, 1)
        ties = rng.integers(2**63, size=len(who)).astype(np.uint64)
        kept = first_events(domain, Events(who, moment, codes[:, :-1]), ties)
        hidden.append(hidden_codes(domain, kept, n_patients=n))
        found[name] = own.records(kept, table.codes), kept.patient
    return {"": (replace(rows, codes=np.concatenate(hidden, axis=1)), np.arange(n)), **found}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedDraw:
    """One draw of D values, in units of its stated noise.

    `vectors` (n_canaries, D) are what each canary adds, `bound` the stated bound of their norms;
    `surprise` (D,) is the released sum less its expectation before the coins, and `residual` (D,)
    less the exact sum.
    """

    name: str
    bound: float
    vectors: Floats
    surprise: Floats
    residual: Floats


class AttackedCurator(Curator):
    """Draws from the planted patients who are present, and keeps what an attack needs."""

    def __init__(
        self, plan: MeasurementPlan, planted: PlantedTable, tables: Tables, noise: NoiseSource
    ) -> None:
        here = {name: [rows.only(planted.present[who])] for name, (rows, who) in tables.items()}
        super().__init__(plan=plan, shards=here[""], noise_source=noise, beside=here)
        self._planted, self._tables, self._name = planted, tables, ""
        self.draws: list[AttackedDraw] = []

    def of(
        self, plan: MeasurementPlan, table: str | None = None, prefix: str = ""
    ) -> "AttackedCurator":
        """Return the curator of a part of the plan, with the same list of draws."""
        part: Any = super().of(plan, table, prefix)
        part._name = table or ""
        return part  # type: ignore[no-any-return]

    def recode(self, recoding: Recoding, **public: Any) -> None:
        """Code the rows otherwise, those of the canaries among them."""
        super().recode(recoding, **public)
        rows, patient = self._tables[self._name]
        self._tables = {**self._tables, self._name: (recoding(rows, **public), patient)}

    def release(self, name: str, contribution: Contribution, **public: Any) -> Floats:
        """Draw a statistic, and keep it beside the vectors of the canaries."""
        planned, released = self.plan[name], super().release(name, contribution, **public)
        rows, patient = self._tables[self._name]
        borders = np.searchsorted(patient, np.arange(self._planted.n_canaries + 1))
        parts = [*(slice(*pair) for pair in pairwise(borders)), slice(borders[-1], None)]
        with threadpool_limits(1, user_api="blas"):
            sums = [exact_sum(contribution, public, [rows.only(part)]).ravel() for part in parts]
        *vectors, others = np.stack(sums) / planned.noise_stddev
        own, known = np.stack(vectors), released.ravel() * (planned.scale / planned.noise_stddev)
        self.draws.append(
            AttackedDraw(
                name=name,
                bound=planned.l2_sensitivity / planned.noise_stddev,
                vectors=own,
                surprise=known - others - own.sum(axis=0) / 2.0,
                residual=known - others - self._planted.included @ own,
            )
        )
        return released


def log_odds(draws: Sequence[AttackedDraw], *, noise: float = 1.0) -> tuple[Floats, Floats]:
    """Log-odds that each canary is in, and the mu that the release shows of it.

    It is the best linear estimate from all draws, for an attack that expects `noise` of what is
    stated. With the Gram matrix K of the vectors and coins of the variance 1/4, coins are estimated
    by ``inv(K + 4 I) V surprise``. Given its coin, the mean of an estimate moves by a, the diagonal
    of ``inv(K + 4 I) K``, and its variance, by noise and the other coins, is ``a (1 - a) / 4``.
    """
    vectors = np.concatenate([draw.vectors for draw in draws], axis=1) / noise
    surprise = np.concatenate([draw.surprise for draw in draws]) / noise
    inverse = np.linalg.inv(vectors @ vectors.T + 4.0 * np.eye(len(vectors)))
    rest = 4.0 * np.diagonal(inverse)  # 1 - a
    return 4.0 * (inverse @ (vectors @ surprise)) / rest, 2.0 * np.sqrt(1.0 / rest - 1.0)
