"""Lower bounds on privacy parameters from the errors of an attack, each with its confidence.

An attack says "present" or "absent" after one run of a mechanism on one of two neighbouring tables.
Differential privacy bounds how small both of its error rates can be, so error rates that are too
small refute a claim. The rates are known from finitely many runs; the bounds here use exact
(Clopper-Pearson) limits, so that a bound exceeds the true parameter with probability at most
``1 - confidence``, whatever the mechanism is.
"""

import math
from dataclasses import dataclass

from scipy.special import betaincinv, ndtri

MIN_CONFIDENCE = 0.75
"""Least confidence of a bound: below it Hoeffding's comparison with the binomial does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCounts:
    """Errors of one fixed attack in independent runs on each of two tables.

    A false positive is a run without the patient in which the attack said "present", a false
    negative a run with the patient in which it said "absent"; there is a run or more of each table.
    """

    false_positives: int
    absent_runs: int
    false_negatives: int
    present_runs: int

    def __post_init__(self) -> None:
        for errors, runs in (
            (self.false_positives, self.absent_runs),
            (self.false_negatives, self.present_runs),
        ):
            if not 0 <= errors <= runs or runs < 1:
                raise ValueError(f"expected 0 <= errors <= runs and a run, found {errors}, {runs}")


def upper_limit(errors: int, runs: int, *, confidence: float) -> float:
    """Clopper-Pearson upper limit of an error rate.

    It is the rate in (0, 1] at which `errors` or fewer errors in so many independent runs have
    probability ``1 - confidence``: over the runs, it is at least the rate with this confidence
    (Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 26, 1934).
    """
    _check_confidence(confidence)
    if errors >= runs:
        return 1.0
    return float(betaincinv(errors + 1, runs - errors, confidence))


def epsilon_lower_bound(counts: ErrorCounts, *, delta: float, confidence: float) -> float:
    """Lower bound on epsilon at `delta`, with no assumption about the mechanism.

    Under (epsilon, delta)-DP ``1 - fn <= exp(epsilon) fp + delta`` for the error rates ``fp`` and
    ``fn`` of any attack, and the same with the tables exchanged (Kairouz, Oh and Viswanath 2015,
    Theorem 2.1). Both rates are replaced by upper limits, each at half of the error probability.
    The attack was fixed before these runs, and `delta` is in [0, 1). With probability `confidence`
    the bound, at least 0, does not exceed epsilon.
    """
    false_positive, false_negative = _upper_limits(counts, confidence=confidence)
    bound = 0.0
    for null, other in ((false_positive, false_negative), (false_negative, false_positive)):
        if 1.0 - other > delta:
            bound = max(bound, math.log((1.0 - other - delta) / null))
    return bound


def mu_lower_bound(counts: ErrorCounts, *, confidence: float) -> float:
    """Lower bound on mu of Gaussian differential privacy.

    A mu-GDP mechanism has ``fn >= Phi(Phi^-1(1 - fp) - mu)`` for every attack (Dong, Roth and Su
    2022, Definition 2.6), so ``mu >= Phi^-1(1 - fp) - Phi^-1(fn)``. Auditing the claim that was
    made, mu-GDP, and not the epsilon that follows from it, needs far fewer runs (Nasr et al.,
    "Tight auditing of differentially private machine learning", 2023, section 4). The bound is at
    least 0, and counts and confidence are as in `epsilon_lower_bound`. It refutes mu-GDP for a
    smaller mu; it says nothing about a mechanism for which another claim was made.
    """
    false_positive, false_negative = _upper_limits(counts, confidence=confidence)
    return max(0.0, float(-ndtri(false_positive) - ndtri(false_negative)))


def mu_lower_bound_balanced(counts: ErrorCounts, *, confidence: float) -> float:
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

    There are equally many runs of both tables (ValueError); the rest is as `epsilon_lower_bound`.
    """
    if counts.absent_runs != counts.present_runs:
        raise ValueError("expected equally many runs of both tables")
    errors = counts.false_positives + counts.false_negatives
    rate = upper_limit(errors, 2 * counts.absent_runs, confidence=confidence)
    return max(0.0, float(-2.0 * ndtri(rate)))


def _upper_limits(counts: ErrorCounts, *, confidence: float) -> tuple[float, float]:
    """Upper limits of both error rates that hold together with this confidence (Bonferroni)."""
    _check_confidence(confidence)
    each = 1.0 - (1.0 - confidence) / 2.0
    return (
        upper_limit(counts.false_positives, counts.absent_runs, confidence=each),
        upper_limit(counts.false_negatives, counts.present_runs, confidence=each),
    )


def _check_confidence(confidence: float) -> None:
    if not MIN_CONFIDENCE <= confidence < 1.0:
        raise ValueError(
            f"expected confidence from {MIN_CONFIDENCE} to below 1, found {confidence}"
        )
