"""MWEM as its paper prints it: pure epsilon, Laplace noise, a public number of rows.

Figure 1 of Hardt et al. 2012: each of T rounds spends ``epsilon / (2 T)`` on the choice of a query
by the exponential mechanism and as much on its answer with Laplace noise; half the error of a
share is the step; the mean of all distributions is the result. Several passes over all measurements
in each round are the improvement that the paper describes itself. The paper counts rows, so a
patient with several rows is not one unit, and the noise here is continuous and can be repeated:
for public benchmark data alone.
"""

from dataclasses import dataclass

import numpy as np

from privacy.arrays import Codes, Floats, Records
from privacy.parameters import PrivacyParameters
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.mwem.config import MwemConfig
from tasks.methods.mwem.distribution import (
    FactoredDistribution,
    NoisyAnswer,
    iterates,
    printed_tilt,
    update,
)
from tasks.methods.mwem.synthesizer import sample_iterates
from tasks.methods.mwem.workload import draw_workload, workload_answers


@dataclass(frozen=True, slots=True)
class PaperMwem:
    """MWEM as printed: the start is uniform, the output the mean, and ``delta`` is not used."""

    domain: EncodingDomain
    config: MwemConfig
    parameters: PrivacyParameters

    def synthesize(
        self, codes: Codes, labels: Codes, rng: np.random.Generator, executor: Executor = IN_PROCESS
    ) -> Records:
        """Make as many records as there are real ones; see `PaperForm.synthesize`.

        There is a row or more, and no code outside the domain (ValueError).

        Privacy
        -------
        Claimed by the paper: epsilon under replacement of one row, whose number is public.
        """
        n_rows = len(labels)
        if n_rows == 0:
            raise ValueError("expected one row or more, found none")
        workload, config = draw_workload(self.domain, self.config), self.config
        epsilon_round = self.parameters.epsilon / (2.0 * config.rounds)
        rows = EncodedRows(
            codes=codes, label=labels, weight=np.ones(n_rows), fold=np.zeros(n_rows, dtype=np.uint8)
        )
        exact = workload_answers(rows, workload=workload) / SUM_SCALE
        distribution = FactoredDistribution.uniform(workload.n_codes)
        history: list[NoisyAnswer] = []
        for _ in range(config.rounds):
            admissible = distribution.admissible(workload, max_cells=config.max_component_cells)
            errors = np.abs(distribution.answers(workload) * n_rows - exact)[admissible]
            query = int(admissible[_exponential_mechanism(errors, epsilon_round, rng)])
            noisy = exact[query] + rng.laplace(scale=1.0 / epsilon_round)
            history.append(NoisyAnswer(**workload.named(query), share=noisy / n_rows))
            update(distribution, history, passes=config.passes, tilt=printed_tilt)
        start = FactoredDistribution.uniform(workload.n_codes)
        rounds = iterates(start, history, passes=config.passes, tilt=printed_tilt)
        return sample_iterates(rounds, config.rounds, output="average", n_rows=n_rows, rng=rng)


def _exponential_mechanism(scores: Floats, epsilon: float, rng: np.random.Generator) -> int:
    """Index drawn with weights ``exp(epsilon * score / 2)``, for scores of sensitivity 1."""
    return int(np.argmax(epsilon * scores / 2.0 + rng.gumbel(size=len(scores))))
