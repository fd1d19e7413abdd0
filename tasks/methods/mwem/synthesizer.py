"""MWEM, proven form: choose the worst query, measure it, multiply weights; again and again.

Differences from the paper, which claims pure epsilon for counts of rows with a public number of
rows: the answers are patient-weighted; the number of patients is itself a noisy statistic; the
measurements have discrete Gaussian noise; selections and measurements compose as Gaussian
differential privacy; the update meets a measurement instead of taking a short step toward it; and
the first distribution may have noisy one-way histograms.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from privacy.arrays import Records
from tasks.measurement.centred import centred_norm, counts_of, counts_request
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.marginals import to_marginals
from tasks.measurement.method import Released, Stage
from tasks.measurement.plan import (
    MeasurementPlan,
    Request,
    SelectionRequest,
    plan_measurement,
    sum_request,
)
from tasks.measurement.statistics import SUM_SCALE, patient_count
from tasks.methods.mwem import workload as queries
from tasks.methods.mwem.config import MwemConfig
from tasks.methods.mwem.distribution import (
    FactoredDistribution,
    NoisyAnswer,
    iterates,
    matching_tilt,
    update,
)
from tasks.methods.mwem.workload import Workload

COUNT = "patient_count"
HISTOGRAMS = "one_way_histograms"

_MAX_STAGES = 10
"""Rounds are grouped into at most that many stages: a stage has a fixed cost of its own."""

_SMALLEST_COUNT = 0.5
"""Patients that a code or a query has at least: a weight of zero could never grow again."""


def selection_name(number: int) -> str:
    """Name of the choice of round ``number``, from 1."""
    return f"selection_{number:03d}"


def measurement_name(number: int) -> str:
    """Name of the measurement of round ``number``, from 1."""
    return f"measurement_{number:03d}"


@dataclass(frozen=True, slots=True)
class Mwem:
    """MWEM bound to a public domain."""

    domain: EncodingDomain
    config: MwemConfig
    workload: Workload = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "workload", queries.draw_workload(self.domain, self.config))

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Count, histograms where asked for, then a choice and a measurement for each round."""
        config, shares = self.config, self.config.shares
        requests: list[Request] = [sum_request(COUNT, (1,), share=shares.count)]
        if config.start == "histograms":
            n_codes, share = self.workload.n_codes, shares.histograms
            requests.append(counts_request(HISTOGRAMS, n_codes, n_labels=1, share=share))
        for number in range(1, config.rounds + 1):
            requests.append(
                SelectionRequest(
                    name=selection_name(number),
                    n_candidates=len(self.workload),
                    score_sensitivity=SUM_SCALE,
                    share=shares.selections / config.rounds,
                )
            )
            share = shares.measurements / config.rounds
            requests.append(sum_request(measurement_name(number), (1,), share=share))
        return plan_measurement(requests, mu=mu)

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """Return the start, then the rounds in groups."""
        n_rounds = self.config.rounds
        groups = np.array_split(np.arange(1, n_rounds + 1), min(n_rounds, _MAX_STAGES))
        return (
            Stage(name="count", run=self._start),
            *(
                Stage(
                    name=f"rounds-{place:02d}-of-{len(groups):02d}",
                    run=partial(self._rounds, numbers=tuple(int(number) for number in group)),
                )
                for place, group in enumerate(groups, start=1)
            ),
        )

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Sample from the last distribution or the mean of all; see `Synthesizer.sample`."""
        history = self._history(
            released["chosen_queries"].tolist(),
            released["measured_counts"].tolist(),
            float(released["n_patients"][0]),
        )
        rounds = iterates(
            self._first(released), history, passes=self.config.passes, tilt=matching_tilt
        )
        return sample_iterates(
            rounds, len(history), output=self.config.output, n_rows=n_rows, rng=rng
        )

    def _start(self, curator: Curator, released: Released) -> Released:
        """Draw the number of patients, and the histograms where asked for."""
        count = curator.release(COUNT, patient_count)
        n_patients = np.maximum(count, 1.0)
        n_codes = self.workload.n_codes
        marginals = np.concatenate([np.full(n, 1.0 / n) for n in n_codes])
        if self.config.start == "histograms":
            noisy = curator.release(HISTOGRAMS, queries.one_way_histograms, n_codes=n_codes)
            offsets = np.concatenate([[0], np.cumsum(n_codes)])
            noise = curator.plan[HISTOGRAMS].unit_noise_stddev * centred_norm(n_codes)
            [counts] = counts_of(noisy, n_codes)[1]
            marginals = to_marginals(counts, offsets, noise_stddev=noise)
            marginals = np.maximum(marginals, _SMALLEST_COUNT / n_patients)
            totals = np.add.reduceat(marginals, offsets[:-1])
            marginals /= np.repeat(totals, n_codes)
        return {
            "n_patients": n_patients,
            "marginals": marginals,
            "chosen_queries": np.zeros(0, dtype=np.int64),
            "measured_counts": np.zeros(0),
        }

    def _rounds(
        self, curator: Curator, released: Released, *, numbers: tuple[int, ...]
    ) -> Released:
        """Run rounds of choosing, measuring and updating, after those that are released."""
        n_patients = float(released["n_patients"][0])
        chosen = released["chosen_queries"].tolist()
        counts = released["measured_counts"].tolist()
        if numbers[0] != len(chosen) + 1:
            raise ValueError(f"expected the rounds before {numbers[0]}, found {len(chosen)}")
        history = self._history(chosen, counts, n_patients)
        distribution = self._first(released)
        for _ in iterates(distribution, history, passes=self.config.passes, tilt=matching_tilt):
            pass
        for number in numbers:
            query = self._choose(curator, number, distribution, n_patients)
            answer = curator.release(
                measurement_name(number), queries.query_answer, **self.workload.named(query)
            )
            chosen.append(query)
            counts.append(float(answer[0]))
            history = self._history(chosen, counts, n_patients)
            update(distribution, history, passes=self.config.passes, tilt=matching_tilt)
        return {"chosen_queries": np.array(chosen), "measured_counts": np.array(counts)}

    def _choose(
        self, curator: Curator, number: int, distribution: FactoredDistribution, n_patients: float
    ) -> int:
        """Index of the query that is picked; admitted ones are repeated to the planned number."""
        admissible = distribution.admissible(
            self.workload, max_cells=self.config.max_component_cells
        )
        candidates = np.resize(admissible, len(self.workload))
        offered = self.workload.take(candidates)
        estimate = distribution.answers(offered) * n_patients
        index = curator.select(
            selection_name(number),
            queries.workload_answers,
            centre=np.rint(estimate * SUM_SCALE).astype(np.int64),
            workload=offered,
        )
        return int(candidates[index])

    def _first(self, released: Released) -> FactoredDistribution:
        ends = np.cumsum(self.workload.n_codes)[:-1]
        return FactoredDistribution(np.split(released["marginals"], ends))

    def _history(
        self, chosen: Sequence[int], counts: Sequence[float], n_patients: float
    ) -> list[NoisyAnswer]:
        smallest = min(_SMALLEST_COUNT / n_patients, 0.5)
        return [
            NoisyAnswer(
                **self.workload.named(query),
                share=min(max(count / n_patients, smallest), 1.0 - smallest),
            )
            for query, count in zip(chosen, counts, strict=True)
        ]


def sample_iterates(
    distributions: Iterable[FactoredDistribution],
    n_rounds: int,
    *,
    output: str,
    n_rows: int,
    rng: np.random.Generator,
) -> Records:
    """Sample ``(codes, labels)`` from the last of some distributions, or from their mean.

    The mean of products is no product: a record is drawn from one of them, at random. There is a
    distribution after each of one round or more.
    """
    if output == "average":
        sizes = rng.multinomial(n_rows, np.full(n_rounds, 1.0 / n_rounds))
    else:
        sizes = np.zeros(n_rounds, dtype=np.int64)
        sizes[-1] = n_rows
    parts = [
        distribution.sample(int(size), rng)
        for size, distribution in zip(sizes, distributions, strict=True)
    ]
    records = rng.permutation(np.concatenate(parts))
    return records[:, :-1], records[:, -1]
