"""Bounds from guesses in one run: many patients included by coins, guessed from its output.

Three readings of the same kind of guesses, from the weakest assumption to the strongest: any
(epsilon, delta)-DP mechanism, any mu-GDP mechanism, and independent Gaussian noise. The first two
are estimators of `jax_privacy.auditing`, which comes with the extra ``audit``.

Sources: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023.
Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run", ICML 2025.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from audits.bounds import upper_limit
from privacy.errors import extra


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessCounts:
    """Guesses about which canaries, each included by its own fair coin, are in the table.

    Of `canaries` (m) patients a guess is made about `guesses` (r), a number that was fixed before
    the run; the attack abstains on the others. `correct` (v) are right.
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


def one_run_epsilon(
    counts: GuessCounts, *, delta: float, confidence: float, gaussian: bool = False
) -> float:
    """Largest epsilon that the guesses refute at `delta`, 0 or more.

    It holds for any mechanism that is (epsilon, delta)-DP for adding or removing any one canary
    (Steinke, Nasr and Jagielski, Theorem 5.2 and Appendix D), or, if `gaussian`, for any that is
    mu-GDP for the mu of this epsilon (Mahloujifar, Melis and Chaudhuri). The coins are fair and
    independent, and the attack sees the output alone. The bound exceeds epsilon with probability
    at most ``1 - confidence``.
    """
    with extra("audit"):
        from jax_privacy.auditing import CanaryScoreAuditor, Explicit
    # The theorems count right guesses, whichever way each went. An auditor counts what is above a
    # threshold; it needs a canary on either side, so one right guess less is stated where all are.
    correct = min(counts.correct, counts.canaries - 1)
    if correct == 0:
        return 0.0
    wrong_or_silent = np.zeros(counts.canaries - correct)
    wrong_or_silent[: counts.guesses - correct] = 1.0
    auditor = CanaryScoreAuditor(np.ones(correct), wrong_or_silent)
    bound = auditor.epsilon_one_run_fdp if gaussian else auditor.epsilon_one_run
    return float(bound(1.0 - confidence, delta, threshold_strategy=Explicit(0.5)))


def independent_mu(counts: GuessCounts, *, confidence: float) -> float:
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
    wrong = np.array(counts.guesses - counts.correct)
    return max(0.0, float(-2.0 * ndtri(upper_limit(wrong, counts.guesses, confidence=confidence))))
