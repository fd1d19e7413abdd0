"""Algorithm 2 of the 3A paper on coded rows: each column's codes, scaled to [0, 1]."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privacy.arrays import Codes, Records
from privacy.errors import InputError
from privacy.parameters import PrivacyParameters
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.measurement.encoded import EncodingDomain
from tasks.papers.clustmix.algorithm import ClustMixAlgorithm
from tasks.papers.clustmix.config import AlgorithmConfig
from tasks.papers.clustmix.scaling import ScalingKind
from tasks.synthesizers.clustmix.config import ClustMixConfig


@dataclass(frozen=True, slots=True)
class PaperClustMix:
    """ClustMix as printed with the ``published`` settings; the clock is monotonic, in seconds."""

    domain: EncodingDomain
    config: ClustMixConfig
    parameters: PrivacyParameters
    clock: Callable[[], float] | None = None

    def synthesize(
        self, codes: Codes, labels: Codes, rng: np.random.Generator, executor: Executor = IN_PROCESS
    ) -> Records:
        """Make one synthetic record of each cluster; without any it is an InputError.

        Privacy
        -------
        Claimed by the paper, not proven; see the package docstring.
        """
        printed = self.config.published
        method = ClustMixAlgorithm(
            config=AlgorithmConfig(
                epsilon=self.parameters.epsilon,
                delta=self.parameters.delta,
                sigma_max=printed.sigma_max,
                alpha=printed.alpha,
                ridge=printed.regularisation,
                scaling=ScalingKind(printed.scaling),
            ),
            clock=self.clock,
        )
        largest_code = np.maximum(np.array(self.domain.n_codes) - 1.0, 1.0)
        rows, levels = method.synthesize(
            codes / largest_code, labels.astype(np.int64), rng, executor
        )
        if len(levels) == 0:
            raise InputError(
                "NOTHING_SYNTHESISED",
                "expected a class with enough rows for one cluster, found none; raise sigma_max",
            )
        return np.rint(rows * largest_code).astype(np.uint16), levels.astype(np.uint16)
