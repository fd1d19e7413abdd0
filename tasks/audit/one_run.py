"""The one-run audit: many patients included by coins in one run, guessed from its output.

Three readings of the same kind of guesses, from the weakest assumption to the strongest: any
(epsilon, delta)-DP mechanism, any mu-GDP mechanism, and independent Gaussian noise.

Sources: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023.
Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run", ICML 2025.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, expit, ndtr, ndtri

from privacy.arrays import Floats, Integers
from privacy.mechanisms import NoisyStatistic
from privacy.randomness import OperatingSystemNoise
from tasks.audit.bounds import upper_limit
from tasks.audit.pairs import AuditPatient, encode
from tasks.execution.executor import InProcessExecutor
from tasks.measurement.curator import Curator, exact_sum, in_memory
from tasks.measurement.encoded import N_FOLDS, EncodingDomain
from tasks.measurement.method import Synthesizer, measure

_BISECTIONS = 60

_MU_STEPS = 20
"""Halvings of the interval of mu: a tail of thousands of steps is computed at each."""

_LARGEST_MU = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessCounts:
    """Guesses about which canaries, each included by its own fair coin, are in the table.

    Of `canaries` (m) patients a guess is made about `guesses` (r), fixed before the run; the attack
    abstains on the others. `correct` (v) are right.
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.guesses <= self.canaries or self.guesses < 1:
            raise ValueError(
                "expected correct <= guesses <= canaries and a guess, found "
                f"{self.correct}, {self.guesses}, {self.canaries}"
            )


def one_run_p_value(counts: GuessCounts, *, epsilon: float, delta: float) -> float:
    r"""Largest probability of so many right guesses under (epsilon, delta)-DP.

    With ``W ~ Binomial(r, e^epsilon / (1 + e^epsilon))``,

    .. math:: P[V \ge v] \le P[W \ge v] + 2 m \delta \max_{1 \le i \le v} P[v > W \ge v - i] / i,

    where the mechanism is (epsilon, delta)-DP for adding or removing any one canary, the coins
    are fair and independent, and the attack sees the output alone (Theorem 5.2 and Appendix D).

    The result is in [0, 1]. For i above v the numerator grows no more, so the maximum is at i <= v.
    """
    r, v = counts.guesses, counts.correct
    rate = float(expit(epsilon))
    if v == 0:
        return 1.0
    tail = float(bdtrc(v - 1, r, rate))
    if delta == 0.0:
        return tail
    below = bdtr(np.arange(v, dtype=np.float64) - 1.0, r, rate)
    below[0] = 0.0
    # Entry i - 1: P[v - i <= W < v] / i, for i = 1 .. v.
    slopes = (float(bdtr(v - 1, r, rate)) - below[::-1]) / np.arange(1, v + 1)
    return min(1.0, tail + 2.0 * counts.canaries * delta * float(slopes.max()))


def one_run_epsilon_lower_bound(counts: GuessCounts, *, delta: float, confidence: float) -> float:
    """Largest epsilon that the guesses refute at `delta`.

    If (epsilon, delta) is refuted then so is every smaller epsilon with this delta, because the
    smaller one implies the larger one; it does not matter whether the p-value is monotone. It is
    the refuted end of a bisection, 0 if epsilon 0 is not refuted, and exceeds epsilon with
    probability at most ``1 - confidence``.
    """
    level = 1.0 - confidence

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(counts, epsilon=epsilon, delta=delta) < level

    return _largest_refuted(refuted, steps=_BISECTIONS, limit=math.inf)


def _largest_refuted(refuted: Callable[[float], bool], *, steps: int, limit: float) -> float:
    """Refuted end of a bisection, 0 if 0 is not refuted; it is looked for up to a limit."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < limit and refuted(high):
        low, high = high, 2.0 * high
    for _ in range(steps if math.isfinite(high) else 0):
        middle = (low + high) / 2.0
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def refutes_gaussian_dp(counts: GuessCounts, *, mu: float, level: float) -> bool:
    r"""Return whether so many right guesses have probability below `level` under mu-GDP.

    Let ``P_i`` be the probability of i or more right guesses, ``r_i`` that of the same and a coin
    drawn at random being among the right ones, and ``h_i`` that of it being among the wrong ones.
    To turn that coin over turns the event of ``r_i`` into that of ``h_{i-1}`` on a neighbouring
    table, so ``r_i <= F(h_{i-1})`` for the concave ``F(x) = Phi(Phi^-1(x) + mu)``, on average over
    tables and coins (the theorem of Mahloujifar, Melis and Chaudhuri for tails). With
    ``r_i + h_i = (r / m) P_i`` this bounds ``P_{i-1}`` from below, from ``P_v >= level`` down
    to ``P_0``. By induction more mass above v makes every bound larger, so the least is reached
    with all of it at v. If ``P_0`` would have to exceed one, ``P_v`` is below `level`.

    The guesses are a function of the output alone; `mu` is at least 0 and `level` in (0, 1).
    """
    canaries, guesses = counts.canaries, counts.guesses
    # In units of 1 / m: right with the coin, wrong with the coin.
    right, wrong = level * counts.correct, level * (guesses - counts.correct)
    for i in range(counts.correct - 1, -1, -1):
        least = canaries * float(ndtr(ndtri(right / canaries) - mu))
        if least > wrong:
            right += (least - wrong) * i / (guesses - i)
            wrong = least
        if right + wrong > guesses:
            return True
    return False


def one_run_mu_lower_bound(counts: GuessCounts, *, confidence: float) -> float:
    """Largest mu that the guesses refute; the rest is as `one_run_epsilon_lower_bound`."""
    level = 1.0 - confidence
    return _largest_refuted(
        lambda mu: refutes_gaussian_dp(counts, mu=mu, level=level),
        steps=_MU_STEPS,
        limit=_LARGEST_MU,
    )


def independent_mu_lower_bound(counts: GuessCounts, *, confidence: float) -> float:
    """Lower bound on mu where the guesses about all canaries are independent.

    A guess about one coin is right with probability at most ``Phi(mu / 2)``. Independent Gaussian
    noise on vectors of canaries that do not overlap makes the guesses independent, so they are a
    binomial count. Where vectors overlap, the coins of the others disturb each guess. To first
    order that costs more right guesses than it adds to the variance of their number, for mu above
    ``5 / sqrt(canaries)``, and simulations find the bound no less often below mu; it is not proven
    there, nor for other mechanisms. There has to be a guess about every canary (ValueError): the
    rate of the guesses of an attack that abstains is not bounded so.
    """
    if counts.guesses != counts.canaries:
        raise ValueError("expected a guess about every canary")
    rate = upper_limit(counts.guesses - counts.correct, counts.guesses, confidence=confidence)
    return max(0.0, float(-2.0 * ndtri(rate)))


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
    """Makes sums over the included canaries, and scores each by its projection in every draw."""

    def __init__(
        self, patients: tuple[AuditPatient, ...], included: NDArray[np.bool_], *, n_columns: int
    ) -> None:
        super().__init__()
        self._each = [in_memory([encode([patient], n_columns=n_columns)]) for patient in patients]
        chosen = [patient for patient, inside in zip(patients, included, strict=True) if inside]
        self._table = in_memory([encode(chosen, n_columns=n_columns)])
        self._vectors: Floats | None = None
        self.scores = np.zeros(len(patients))

    def sum(
        self, function: Callable[..., Integers], shards: Sequence[Any], public: Mapping[str, Any]
    ) -> Integers:
        """Return the exact sum that a curator asks for, over the included canaries."""
        contribution, arguments = public["contribution"], public["public"]
        vectors = [exact_sum(contribution, arguments, each).reshape(-1) for each in self._each]
        self._vectors = np.array(vectors, dtype=np.float64)
        return exact_sum(contribution, arguments, self._table)

    def seal(self, name: str, noisy: NoisyStatistic) -> None:
        """Add the likelihood ratios of a draw, with every other canary half in the table."""
        if self._vectors is None:
            raise ValueError(f"expected a sum before the draw of {name!r}, found none")
        vectors, self._vectors = self._vectors, None
        from_middle = noisy.values.reshape(-1).astype(np.float64) - vectors.sum(axis=0) / 2.0
        self.scores += vectors @ from_middle / noisy.event.noise_stddev**2


def play_one_run(synthesizer: Synthesizer, domain: EncodingDomain, *, mu: float) -> GuessCounts:
    """Run a method, bound to a domain of `canary_domain`, once and guess who is in the table."""
    patients = canary_patients(domain)
    included = np.array([secrets.randbits(1) == 1 for _ in patients])
    referee = CanaryReferee(patients, included, n_columns=domain.n_columns)
    curator = Curator(
        plan=synthesizer.plan(mu=mu),
        shards=(),
        executor=referee,
        noise_source=OperatingSystemNoise(),
        seal=referee.seal,
    )
    measure(synthesizer, curator, mu=mu)
    return guess(referee.scores, included)


def guess(scores: Floats, included: NDArray[np.bool_]) -> GuessCounts:
    """Guess "in" for the highest scores (m,), "out" for the lowest; `included` are the coins."""
    each = max(1, round(len(scores) * GUESSED_SHARE / 2))
    order = np.argsort(scores, kind="stable")
    correct = int(included[order[-each:]].sum() + (~included[order[:each]]).sum())
    return GuessCounts(canaries=len(scores), guesses=2 * each, correct=correct)
