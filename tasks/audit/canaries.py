"""The one-run game: many patients, each in the table by its own coin, guessed from one run."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.mechanisms import NoisyStatistic, SelectedCandidate
from privacy.randomness import NoiseSource, OperatingSystemNoise
from tasks.audit.one_run import GuessCounts
from tasks.audit.pairs import AuditPatient, encode
from tasks.execution.executor import InProcessExecutor, IntegerSum
from tasks.measurement.curator import Curator, exact_sum, in_memory
from tasks.measurement.encoded import N_FOLDS, EncodingDomain
from tasks.measurement.synthesizer import Synthesizer, measure

GUESSED_SHARE = 0.25
"""Share of the canaries that the attack guesses about; it abstains where the output says least.

For Gaussian noise and mu from 0.2 to 2 this is near the best share, found by simulation.
"""


def canary_domain(n_codes: int) -> EncodingDomain:
    """One categorical column with a code of its own for every canary of a label."""
    return EncodingDomain(
        column_names=("ward",),
        n_codes=(n_codes,),
        has_missing=(False,),
        numeric=(False,),
        label_levels=("no", "yes"),
    )


def canary_patients(domain: EncodingDomain) -> tuple[AuditPatient, ...]:
    """One patient for every code and label: their contributions hardly overlap."""
    return tuple(
        AuditPatient(records=(((code,), label),), fold=code % N_FOLDS)
        for code in range(domain.n_codes[0])
        for label in range(domain.n_labels)
    )


class CanaryReferee(InProcessExecutor):
    """Makes the sums of a curator over the included canaries, and scores each by every draw.

    Every statistic is a sum over patients once its public arguments are fixed, so the vector of a
    canary is its own sum, and its score is the projection of what was drawn on that vector.
    """

    def __init__(
        self, patients: tuple[AuditPatient, ...], included: NDArray[np.bool_], *, n_columns: int
    ) -> None:
        super().__init__()
        self._each = [in_memory([encode([patient], n_columns=n_columns)]) for patient in patients]
        chosen = [patient for patient, inside in zip(patients, included, strict=True) if inside]
        self._table = in_memory([encode(chosen, n_columns=n_columns)])
        self._vectors: NDArray[np.float64] | None = None
        self.scores = np.zeros(len(patients))

    def sum(
        self, function: Callable[..., IntegerSum], shards: Sequence[Any], public: Mapping[str, Any]
    ) -> IntegerSum:
        """Return the exact sum that a curator asks for, over the included canaries."""
        contribution, arguments = public["contribution"], public["public"]
        vectors = [exact_sum(contribution, arguments, each).reshape(-1) for each in self._each]
        self._vectors = np.array(vectors, dtype=np.float64)
        return exact_sum(contribution, arguments, self._table)

    def seal(self, name: str, noisy: NoisyStatistic | SelectedCandidate) -> None:
        """Add the likelihood ratios of a draw, with every other canary half in the table."""
        if isinstance(noisy, SelectedCandidate):
            raise ValueError("expected a method without private choices, found one")
        if self._vectors is None:
            raise ValueError(f"expected a sum before the draw of {name!r}, found none")
        vectors, self._vectors = self._vectors, None
        from_middle = noisy.values.reshape(-1).astype(np.float64) - vectors.sum(axis=0) / 2.0
        self.scores += vectors @ from_middle / noisy.event.noise_stddev**2


def play_one_run(
    synthesizer: Synthesizer,
    domain: EncodingDomain,
    *,
    mu: float,
    new_noise_source: Callable[[], NoiseSource] = OperatingSystemNoise,
) -> GuessCounts:
    """Run a method, bound to a domain of `canary_domain`, once and guess who is in the table."""
    patients = canary_patients(domain)
    included = np.array([secrets.randbits(1) == 1 for _ in patients])
    referee = CanaryReferee(patients, included, n_columns=domain.n_columns)
    curator = Curator(
        plan=synthesizer.plan(mu=mu),
        shards=(),
        executor=referee,
        noise_source=new_noise_source(),
        seal=referee.seal,
    )
    measure(synthesizer, curator, mu=mu)
    return guess(referee.scores, included)


def guess(scores: NDArray[np.float64], included: NDArray[np.bool_]) -> GuessCounts:
    """Guess "in" for the highest scores and "out" for the lowest, and abstain between.

    `scores` and `included`, the coins to count right guesses by, have shape (m,).
    """
    each = max(1, round(len(scores) * GUESSED_SHARE / 2))
    order = np.argsort(scores, kind="stable")
    correct = int(included[order[-each:]].sum() + (~included[order[:each]]).sum())
    return GuessCounts(canaries=len(scores), guesses=2 * each, correct=correct)
