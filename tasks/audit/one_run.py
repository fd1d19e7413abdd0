"""The one-run audit: many patients included by coins in one run, guessed from its output.

Source: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, bdtrc, expit

_BISECTIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessCounts:
    """Guesses about which canaries were included.

    Parameters
    ----------
    canaries
        Number m of patients, each included by its own fair coin.
    guesses
        Number r of canaries about which a guess was made, fixed before the run; the attack
        abstains on the others.
    correct
        Number v of right guesses.
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

    Parameters
    ----------
    counts
        What the attack achieved.
    epsilon, delta
        The claim to be refuted, at least 0.

    Returns
    -------
    float
        In [0, 1]. For i above v the numerator grows no more, so the maximum is at i <= v.
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
    smaller one implies the larger one; it does not matter whether the p-value is monotone.

    Parameters
    ----------
    counts
        What the attack achieved.
    delta
        Delta of the claim.
    confidence
        Probability with which the bound does not exceed epsilon.

    Returns
    -------
    float
        The refuted end of a bisection; 0 if epsilon 0 is not refuted.
    """
    level = 1.0 - confidence

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(counts, epsilon=epsilon, delta=delta) < level

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2.0 * high
        if not math.isfinite(high):
            return low
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
