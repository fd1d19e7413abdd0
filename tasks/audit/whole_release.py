"""What an attack on a whole release of a generated table found, and what that proves.

The attack sees what was sealed, or the synthetic rows, and the list of canaries; it does not see
the coins. It scores every canary and guesses.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom, chi2

from privacy.arrays import Codes, Floats
from privacy.gaussian import gaussian_epsilon
from tasks.audit.findings import ABOVE, LOWER_BOUND, WITHIN, ClaimedGuarantee
from tasks.audit.one_run import (
    GuessCounts,
    independent_mu_lower_bound,
    one_run_epsilon_lower_bound,
    one_run_mu_lower_bound,
)
from tasks.audit.pairs import PlantedTable
from tasks.audit.replay import ReplayedDraw

LOUDEST_SHARE = 0.05
"""Share of the canaries that is guessed about where an attack may abstain.

With 20,000 canaries it is near the best share at epsilon 1 and 4, for any mechanism and for mu-GDP.
"""

FACTORS = (1.25, 1.5, 2.0, 3.0)
"""Factors of mu that the power is stated for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessFinding:
    """What the guesses of one attack prove, each bound with the confidence of the audit.

    The loudest canaries are those whose scores are the most extreme. Bounds on epsilon and mu hold
    where the noise is independent and Gaussian; with ``_gdp`` and ``_any``, for any mu-GDP
    mechanism (Mahloujifar and others) or any (epsilon, delta)-DP mechanism (Steinke and others).
    """

    canaries: int
    correct: int
    loudest: int
    loudest_correct: int
    epsilon_any: float
    mu_any: float
    epsilon_gdp: float
    mu: float
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """The noise in what was sealed over that which the events state.

    `ratio` is the root mean square over all `n_values`, from `lowest` to `highest` for honest noise
    with the confidence of the audit; `statistics` are the ratios of each.
    """

    n_values: int
    ratio: float
    lowest: float
    highest: float
    statistics: dict[str, float]

    @property
    def as_stated(self) -> bool:
        """Whether honest noise can be so."""
        return self.lowest <= self.ratio <= self.highest


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRelease:
    """What the audit of one whole release found, each bound with the confidence.

    Guesses are from what was sealed, and from the synthetic rows. The power is, for each factor of
    mu, the probability that the former report so large a mu; an honest run is expected to give the
    expected epsilon as a bound.
    """

    dataset: str
    method: str
    claim: ClaimedGuarantee
    confidence: float
    patients: int
    measurement: GuessFinding
    bundle: GuessFinding
    residual: Residual
    power: dict[float, float]
    expected_epsilon: float
    release_seconds: float

    @property
    def audited_epsilon(self) -> float:
        """Largest lower bound on epsilon."""
        findings = (self.measurement, self.bundle)
        return max(max(f.epsilon_any, f.epsilon_gdp, f.epsilon) for f in findings)

    @property
    def verdict(self) -> str:
        """Whether a bound or the noise is against the claim."""
        within = self.residual.as_stated and self.audited_epsilon <= self.claim.epsilon
        return WITHIN if within else ABOVE

    @property
    def exit_code(self) -> int:
        """Exit code of a command that shows this."""
        return 0 if self.verdict == WITHIN else 1

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values, with what is derived."""
        values = asdict(self)
        claim = values.pop("claim")
        return {
            **values,
            "claimed_epsilon": claim["epsilon"],
            "delta": claim["delta"],
            "claimed_mu": claim["mu"],
            "power": {f"{factor:g}": found for factor, found in self.power.items()},
            "audited_epsilon": self.audited_epsilon,
            "noise_as_stated": self.residual.as_stated,
            "verdict": self.verdict,
            "note": LOWER_BOUND,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementScores:
    """Scores of all canaries from what was sealed, above 0 for "in".

    `signal` is the expected difference of the score of a canary that is in and one that is out,
    `noise_variance` the variance of a score by the stated noise alone.
    """

    scores: Floats
    signal: float
    noise_variance: float

    def attained_mu(self, factor: float) -> float:
        """Mu that a score shows if mu is so many times what is stated; coins disturb as before."""
        rest = float(np.var(self.scores)) - self.signal**2 / 4.0 - self.noise_variance
        # What is left is estimated from noisy scores, so it may come out below nothing.
        return self.signal / math.sqrt(max(rest, 0.0) + self.noise_variance / factor**2)


def score_measurement(draws: Sequence[ReplayedDraw]) -> MeasurementScores:
    """Score canaries by the projections of all draws, each weighted by how little disturbs it.

    A draw of few values cannot tell many canaries apart: their coins disturb each other there. How
    much shows in the variance of the projections, which is a function of the output, so weights by
    its inverse are the best matched filter that an attacker can form from single projections.
    """
    scores = np.zeros(len(draws[0].projection))
    signal = noise_variance = 0.0
    for draw in draws:
        projection = draw.projection - draw.projection.mean()
        strength = float(draw.squared_norm.mean())
        weight = strength / float(np.mean(projection**2))
        scores += weight * projection
        signal += weight * strength
        noise_variance += weight**2 * strength
    return MeasurementScores(scores=scores, signal=signal, noise_variance=noise_variance)


def score_rows(table: PlantedTable, codes: Codes, labels: Codes) -> Floats:
    """Scores (n_canaries,): how often a canary's codes stand beside its label in synthetic rows."""
    n_canaries, offsets = table.n_canaries, table.domain.one_hot_offsets
    counts = np.zeros((table.domain.n_labels, table.domain.one_hot_width))
    for column, start in enumerate(offsets[:-1]):
        np.add.at(counts, (labels, start + codes[:, column]), 1.0)
    own = table.labels[:n_canaries]
    scores = np.zeros(n_canaries)
    for column, (start, stop) in enumerate(pairwise(offsets)):
        block = counts[:, start:stop]
        surprise = block - block.mean(axis=1, keepdims=True)
        scores += surprise[own, table.codes[:n_canaries, column]]
    return scores


def judge_scores(
    scores: Floats, included: NDArray[np.bool_], *, delta: float, confidence: float
) -> GuessFinding:
    """Guess "in" for the upper half of the scores (m,), "out" for the lower, and bound epsilon."""
    far = scores - np.median(scores)
    right = (far > 0.0) == included
    loudest = np.argsort(-np.abs(far), kind="stable")[: max(1, round(len(far) * LOUDEST_SHARE))]
    all_counts = GuessCounts(canaries=len(far), guesses=len(far), correct=int(right.sum()))
    counts = GuessCounts(canaries=len(far), guesses=len(loudest), correct=int(right[loudest].sum()))
    mu_any = one_run_mu_lower_bound(counts, confidence=confidence)
    mu = independent_mu_lower_bound(all_counts, confidence=confidence)
    return GuessFinding(
        canaries=len(far),
        correct=all_counts.correct,
        loudest=counts.guesses,
        loudest_correct=counts.correct,
        epsilon_any=one_run_epsilon_lower_bound(counts, delta=delta, confidence=confidence),
        mu_any=mu_any,
        epsilon_gdp=_epsilon(mu_any, delta=delta),
        mu=mu,
        epsilon=_epsilon(mu, delta=delta),
    )


def judge_residual(draws: Sequence[ReplayedDraw], *, confidence: float) -> Residual:
    """Compare the noise in what was sealed with what the events state.

    The sum of the squares of n standard Gaussian values is chi-squared with n degrees of freedom.
    Discrete noise of thousands of grid points differs from it by less than can be seen.
    """
    squares = {draw.name: float(np.mean(draw.residual**2)) for draw in draws}
    values = sum(draw.residual.size for draw in draws)
    total = sum(float(np.sum(draw.residual**2)) for draw in draws)
    tail = (1.0 - confidence) / 2.0
    return Residual(
        n_values=values,
        ratio=math.sqrt(total / values),
        lowest=math.sqrt(float(chi2.ppf(tail, values)) / values),
        highest=math.sqrt(float(chi2.isf(tail, values)) / values),
        statistics={name: math.sqrt(square) for name, square in squares.items()},
    )


def guess_power(
    measured: MeasurementScores, *, canaries: int, mu: float, confidence: float
) -> dict[float, float]:
    """Probability that guesses report a mechanism, for each factor of the claimed `mu`."""
    rates = {factor: float(ndtr(measured.attained_mu(factor) / 2.0)) for factor in FACTORS}
    counts = np.arange(canaries // 2, canaries + 1)
    # The least number of right guesses that is reported: the tail of the claim is below the level.
    reported = counts[binom.sf(counts - 1, canaries, ndtr(mu / 2.0)) < 1.0 - confidence]
    least = int(reported[0]) if len(reported) else canaries + 1
    return {factor: float(binom.sf(least - 1, canaries, rate)) for factor, rate in rates.items()}


def expected_bound(
    measured: MeasurementScores, *, canaries: int, delta: float, confidence: float
) -> float:
    """Epsilon that independent guesses are expected to prove of an honest run."""
    correct = round(canaries * float(ndtr(measured.attained_mu(1.0) / 2.0)))
    counts = GuessCounts(canaries=canaries, guesses=canaries, correct=correct)
    return _epsilon(independent_mu_lower_bound(counts, confidence=confidence), delta=delta)


def _epsilon(mu: float, *, delta: float) -> float:
    return gaussian_epsilon(delta=delta, mu=mu) if mu > 0.0 else 0.0
