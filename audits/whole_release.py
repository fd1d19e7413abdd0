"""Findings of an attack on a whole release of a generated table, and their proofs.

The attack sees the sealed draws, or the synthetic rows, and the list of canaries; it does not see
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
from scipy.stats import chi2

from audits.findings import Claim
from audits.guesses import GuessCounts, independent_mu, one_run_epsilon
from audits.planted import PlantedTable
from audits.replay import ReplayedDraw
from privacy.arrays import Codes, Floats
from privacy.gaussian import gaussian_epsilon

LOUDEST_SHARE = 0.05
"""Share of the canaries that is guessed about where an attack may abstain.

With 20,000 canaries it is near the best share at epsilon 1 and 4, for any mechanism and for mu-GDP.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessFinding:
    """Bounds from the guesses of one attack, each with the confidence of the audit.

    The loudest canaries are those whose scores are the most extreme. `mu` and `epsilon` hold where
    the noise is independent and Gaussian, `epsilon_gdp` for any mu-GDP mechanism, and
    `epsilon_any` for any (epsilon, delta)-DP mechanism.
    """

    canaries: int
    correct: int
    loudest: int
    loudest_correct: int
    epsilon_any: float
    epsilon_gdp: float
    mu: float
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Noise in the sealed draws over the noise that their events state.

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
        """True if honest noise can have this ratio."""
        return self.lowest <= self.ratio <= self.highest


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRelease:
    """Findings of the audit of one whole release, each bound with the confidence.

    Guesses are from the sealed draws, and from the synthetic rows. The former are expected to prove
    the expected epsilon of an honest release.
    """

    dataset: str
    method: str
    claim: Claim
    confidence: float
    patients: int
    measurement: GuessFinding
    bundle: GuessFinding
    residual: Residual
    expected_epsilon: float
    release_seconds: float

    @property
    def audited_epsilon(self) -> float:
        """Largest lower bound on epsilon."""
        findings = (self.measurement, self.bundle)
        return max(max(f.epsilon_any, f.epsilon_gdp, f.epsilon) for f in findings)

    @property
    def within_claim(self) -> bool:
        """True if neither a bound nor the noise contradicts the claim."""
        return self.residual.as_stated and self.audited_epsilon <= self.claim.epsilon

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values, with everything that is derived."""
        values = asdict(self)
        values.pop("claim")
        return {
            **values,
            **self.claim.facts(within=self.within_claim),
            "audited_epsilon": self.audited_epsilon,
            "noise_as_stated": self.residual.as_stated,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementScores:
    """Scores of all canaries from the sealed draws, above 0 for "in".

    `signal` is the expected difference of the score of a canary that is in and one that is out,
    `noise_variance` the variance of a score by the stated noise alone.
    """

    scores: Floats
    signal: float
    noise_variance: float

    @property
    def expected_mu(self) -> float:
        """Mu that the scores show of an honest release, with the disturbance by other coins."""
        rest = float(np.var(self.scores)) - self.signal**2 / 4.0
        return self.signal / math.sqrt(max(rest, self.noise_variance))


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
    mu = independent_mu(all_counts, confidence=confidence)
    epsilon_any, epsilon_gdp = (
        one_run_epsilon(counts, delta=delta, confidence=confidence, gaussian=gaussian)
        for gaussian in (False, True)
    )
    return GuessFinding(
        canaries=len(far),
        correct=all_counts.correct,
        loudest=counts.guesses,
        loudest_correct=counts.correct,
        epsilon_any=epsilon_any,
        epsilon_gdp=epsilon_gdp,
        mu=mu,
        epsilon=_epsilon(mu, delta=delta),
    )


def judge_residual(draws: Sequence[ReplayedDraw], *, confidence: float) -> Residual:
    """Compare the noise in the sealed draws with their events.

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


def expected_bound(mu: float, *, canaries: int, delta: float, confidence: float) -> float:
    """Epsilon that independent guesses of a mu are expected to prove."""
    correct = round(canaries * float(ndtr(mu / 2.0)))
    counts = GuessCounts(canaries=canaries, guesses=canaries, correct=correct)
    return _epsilon(independent_mu(counts, confidence=confidence), delta=delta)


def _epsilon(mu: float, *, delta: float) -> float:
    return gaussian_epsilon(delta=delta, mu=mu) if mu > 0.0 else 0.0
