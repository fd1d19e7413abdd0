"""Lower bounds on privacy parameters from the errors of an attack, each with its confidence.

An attack says "present" or "absent" after one run of a mechanism on one of two neighbouring tables.
Differential privacy bounds how small both of its error rates can be, so error rates that are too
small refute a claim. The rates are known from finitely many runs; the bounds here use exact
(Clopper-Pearson) limits, so that a bound exceeds the true parameter with probability at most
``1 - confidence``, whatever the mechanism is.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtri

from privacy.arrays import Floats, Integers

MIN_CONFIDENCE = 0.75
"""Least confidence of a bound: below it Hoeffding's comparison with the binomial does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCounts:
    """Errors of fixed attacks (one, or an array of them) in `runs` independent runs on each table.

    A false positive is a run without the patient in which the attack said "present", a false
    negative a run with the patient in which it said "absent"; there is a run or more.
    """

    false_positives: Integers
    false_negatives: Integers
    runs: int

    def __post_init__(self) -> None:
        both = np.array([self.false_positives, self.false_negatives])
        if self.runs < 1 or both.min() < 0 or both.max() > self.runs:
            raise ValueError("expected a run or more, and 0 <= errors <= runs")

    @property
    def total(self) -> Integers:
        """Errors on both tables."""
        return self.false_positives + self.false_negatives

    def upper_limits(self, *, confidence: float) -> Floats:
        """Upper limits (2, ...) of both rates that hold together with this confidence."""
        each = 1.0 - (1.0 - confidence) / 2.0  # Bonferroni
        both = np.array([self.false_positives, self.false_negatives])
        return upper_limit(both, self.runs, confidence=each)


def upper_limit(errors: Integers, runs: int, *, confidence: float) -> Floats:
    """Clopper-Pearson upper limits of error rates, of the shape of `errors`.

    A limit is the rate in (0, 1] at which `errors` or fewer errors in so many independent runs have
    probability ``1 - confidence``: over the runs, it is at least the rate with this confidence
    (Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 26, 1934).
    """
    if not MIN_CONFIDENCE <= confidence < 1.0:
        raise ValueError(
            f"expected confidence from {MIN_CONFIDENCE} to below 1, found {confidence}"
        )
    limits = betaincinv(errors + 1.0, np.maximum(runs - errors, 1.0), confidence)
    found: Floats = np.where(errors < runs, limits, 1.0)
    return found


def epsilon_lower_bound(counts: ErrorCounts, *, delta: float, confidence: float) -> Floats:
    """Lower bound on epsilon at `delta`, with no assumption about the mechanism.

    Under (epsilon, delta)-DP ``1 - fn <= exp(epsilon) fp + delta`` for the error rates ``fp`` and
    ``fn`` of any attack, and the same with the tables exchanged (Kairouz, Oh and Viswanath 2015,
    Theorem 2.1). Both rates are replaced by upper limits, each at half of the error probability.
    The attack was fixed before these runs, and `delta` is in [0, 1). With probability `confidence`
    the bound, at least 0, does not exceed epsilon.
    """
    rates = counts.upper_limits(confidence=confidence)
    gained = np.maximum(1.0 - rates[::-1] - delta, 1e-300)
    bound: Floats = np.maximum(np.log(gained / rates).max(axis=0), 0.0)
    return bound


def mu_lower_bound(counts: ErrorCounts, *, confidence: float) -> Floats:
    """Lower bound on mu of Gaussian differential privacy.

    A mu-GDP mechanism has ``fn >= Phi(Phi^-1(1 - fp) - mu)`` for every attack (Dong, Roth and Su
    2022, Definition 2.6), so ``mu >= Phi^-1(1 - fp) - Phi^-1(fn)``. Auditing the claim that was
    made, mu-GDP, and not the epsilon that follows from it, needs far fewer runs (Nasr et al.,
    "Tight auditing of differentially private machine learning", 2023, section 4). The bound is at
    least 0, and counts and confidence are as in `epsilon_lower_bound`. It refutes mu-GDP for a
    smaller mu; it says nothing about a mechanism for which another claim was made.
    """
    rates = counts.upper_limits(confidence=confidence)
    bound: Floats = np.maximum(-ndtri(rates).sum(axis=0), 0.0)
    return bound


def mu_lower_bound_balanced(counts: ErrorCounts, *, confidence: float) -> Floats:
    """Lower bound on mu from the number of correct answers over both tables.

    Under mu-GDP the mean of the two success rates is at most ``Phi(mu / 2)``, because the total
    variation distance is at most that of ``N(0, 1)`` and ``N(mu, 1)``. One limit is needed where
    `mu_lower_bound` needs two, which is worth half of the runs for an attack near the middle.

    With equally many runs of both tables the number of correct answers is a sum of independent
    indicators; raise their rates until the mean is ``p = Phi(mu / 2)``, which only makes many
    correct answers likelier. The upper tail of the sum beyond its mean is at most that of a
    binomial with rate ``p`` (Hoeffding, "On the distribution of the number of successes in
    independent trials", 1956, Theorem 4), so the Clopper-Pearson limit holds for it too. A
    binomial with ``p >= 1/2`` reaches its mean with probability above 1/4 (Greenberg and Mohri
    2014), which keeps the limit of every confidence from `MIN_CONFIDENCE` in that tail.
    """
    rate = upper_limit(counts.total, 2 * counts.runs, confidence=confidence)
    bound: Floats = np.maximum(-2.0 * ndtri(rate), 0.0)
    return bound
