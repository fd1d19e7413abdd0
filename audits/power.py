"""Power of an audit by many runs: the probability that it reports a mu that is too large.

"Within the claim" says little where nothing would have been found.
"""

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from audits.bounds import ErrorCounts, mu_lower_bound_balanced
from audits.game import play_once
from audits.pairs import NeighbourPair
from privacy.randomness import OperatingSystemNoise
from tasks.measurement.method import Synthesizer

FACTORS = (1.5, 2.0, 3.0)
"""Factors of mu that the power is stated for."""


def shown_mu(synthesizer: Synthesizer, pair: NeighbourPair, *, mu: float) -> float:
    """Mu that a pair shows: the patient's distance in all draws, in stated standard deviations."""
    seen = play_once(synthesizer, pair, mu=mu, present=True, noise_source=OperatingSystemNoise())
    squares = [float(np.sum(draw.standardised(draw.present) ** 2)) for draw in seen.draws]
    return float(np.sqrt(sum(squares)))


def detection_rates(
    shown: float, *, claimed: float, runs: int, confidence: float
) -> dict[float, float]:
    """Probability of a report for a pair that shows a mu, by the factor of mu in truth.

    `runs` and `confidence` are those of the bound on mu, from the likelihood ratio at its neutral
    point: each of its answers is wrong with probability ``Phi(-mu / 2)``. Other attacks add to it.
    """
    errors = np.arange(runs + 1)
    counts = ErrorCounts(false_positives=errors, false_negatives=0 * errors, runs=runs)
    reported = mu_lower_bound_balanced(counts, confidence=confidence) > claimed
    most = int(reported.sum()) - 1  # the bound falls with the errors
    return {
        factor: float(binom.cdf(most, 2 * runs, ndtr(-factor * shown / 2.0))) for factor in FACTORS
    }
