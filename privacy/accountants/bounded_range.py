r"""What one private selection by the exponential mechanism costs, in ``mu`` and in ``rho``.

Candidate ``j`` is chosen with probability ``P(j)`` proportional to ``exp(epsilon u_j / (2 D))``;
each score ``u_j`` changes by at most ``D`` between neighbours (McSherry and Talwar, "Mechanism
design via differential privacy", FOCS 2007: epsilon-DP). The loss is
``log P(j) / Q(j) = epsilon (u_j - u'_j) / (2 D) + constant``, so its *range* over the outcomes is
at most epsilon: ``P(j) Q(k) <= e**epsilon Q(j) P(k)`` for all ``j, k`` (bounded range, Durfee and
Rogers, "Practical differentially private top-k selection with pay-what-you-get composition",
NeurIPS 2019). An epsilon-DP draw has losses from -epsilon to epsilon, a range of
2 epsilon; that the range is half of it is what is used here, for both amounts.

**zCDP.** Range epsilon implies ``epsilon**2 / 8``-zCDP (Cesar and Rogers, "Bounding, concentrating,
and truncating: unifying privacy loss composition for data analytics", ALT 2021, for the range just
defined), a quarter of the ``epsilon**2 / 2`` of epsilon-DP.

*Proof.* Let ``L`` be the loss and ``K(a) = log E_Q exp(a L)``, so that ``K(0) = K(1) = 0`` and the
divergence of order ``a > 1`` is ``K(a) / (a-1)``. ``K''`` is the variance of a variable of range
epsilon, at most ``epsilon**2 / 4``. So ``K(a) - epsilon**2 a (a-1) / 8`` is concave, vanishes at 0
and at 1, and is at most 0 beyond. []

**Gaussian DP.** Range epsilon implies mu-GDP with ``mu = -2 Phi^-1(1 / (1 + exp(epsilon/2)))``.

*Proof.* Let all losses of ``P`` against ``Q`` lie in ``[t - epsilon, t]``; ``0 <= t <= epsilon``,
because ``P`` and ``Q`` both sum to one. (1) ``P/Q`` has mean one under ``Q``, and of all laws on
``[e**(t-epsilon), e**t]`` with that mean the one on the two ends is largest in convex order. A
hockey-stick divergence is a convex function of the ratio, so the pair is dominated by the pair of
coins with the losses ``t`` and ``t - epsilon`` and nothing else. (2) Let ``p`` and ``q`` be the
probabilities of the loss ``t`` under the two. The trade-off function of the coins is linear between
``(0, 1)``, ``(q, 1-p)`` and ``(1, 0)``. That of mu-GDP is convex and joins the same ends, so it
lies below if it does so at ``q``: ``Phi(Phi^-1(1-q) - mu) <= 1-p``, which is
``mu >= Phi^-1(p) - Phi^-1(q)``. (3) ``logit(p) - logit(q) = t - (t - epsilon) = epsilon``, so the
right side is ``h(x) - h(x - epsilon)`` with ``x = logit(p)`` and ``h = Phi^-1(logistic)``. ``h`` is
odd, and concave above 0 (4), so its slope is even and falls with the distance from 0, and over a
window of width epsilon it grows most around 0: by ``2 h(epsilon/2)``, the stated ``mu``.
(4) With ``z = h(x)``, ``F = Phi(z)`` and the normal density ``f``, ``h' = F (1-F) / f``, and
``d log h' / dz = z - f (2F-1) / (F (1-F))``, which has the sign of ``-K``,
``K = f (2F-1) - z F (1-F)``. ``K`` vanishes at 0 and at infinity. ``K' = 2 f**2 - F (1-F)`` is
positive at 0 (``1/pi - 1/4``) and vanishes at infinity, and its slope ``f ((2F-1) - 4 z f)`` is
first negative and then positive, since ``(2F-1) - 4 z f`` starts at 0 with slope ``-2 f(0)``, has
one minimum, at ``z**2 = 1/2``, and ends at 1. So ``K'`` is first positive and then negative, and
``K`` is nowhere negative above 0. []

It is attained by two candidates that exchange the scores ``D`` and 0.
The same proof with losses from -epsilon to epsilon, a window of width 2 epsilon, gives
``-2 Phi^-1(1 / (1 + e**epsilon))`` for (epsilon, 0)-DP alone, about twice as much.

Neighbours by replacement: losses and ranges of a removal and an addition add up, and by group
privacy of mu-GDP the usual factor 4 of ``mu**2`` is enough.
"""

import math

from scipy.special import erf, erfinv, log_ndtr, ndtri

from privacy.errors import ConfigurationError
from privacy.events import MAX_SELECTION_EPSILON, MIN_SELECTION_EPSILON

_ULP = 2.0**-40
"""Margin for the special functions, far above their rounding."""


def selection_mu(epsilon: float) -> float:
    """Parameter of Gaussian differential privacy of one selection, rounded up.

    It is ``-2 Phi^-1(1 / (1 + exp(epsilon/2)))``; about ``0.627 epsilon`` for a small epsilon > 0.
    """
    if epsilon < 4:
        # 1 - 2 / (1 + exp(epsilon/2)) = tanh(epsilon/4): no cancellation near 0.
        mu = 2 * math.sqrt(2) * float(erfinv(math.tanh(epsilon / 4)))
    else:
        mu = -2 * float(ndtri(1 / (1 + math.exp(epsilon / 2))))
    return mu * (1 + _ULP)


def selection_rho(epsilon: float) -> float:
    """Zero-concentrated DP of one selection, ``epsilon**2 / 8``, rounded up."""
    return epsilon * epsilon / 8 * (1 + _ULP)


def selection_epsilon(*, mu: float) -> float:
    """Largest epsilon of one selection that is mu-GDP, rounded down.

    It is at most `privacy.events.MAX_SELECTION_EPSILON`. It is a ConfigurationError if `mu` is not
    finite and above 0 (``CALIBRATION_ARGUMENT_INVALID``), or allows less than
    `privacy.events.MIN_SELECTION_EPSILON` (``CALIBRATION_UNREACHABLE``).
    """
    if not (math.isfinite(mu) and mu > 0):
        raise ConfigurationError(
            "CALIBRATION_ARGUMENT_INVALID", f"expected mu to be finite and above 0, found {mu!r}"
        )
    if mu < 2:
        epsilon = 4 * math.atanh(float(erf(mu / (2 * math.sqrt(2)))))
    else:
        epsilon = 2 * float(log_ndtr(mu / 2) - log_ndtr(-mu / 2))
    epsilon = min(epsilon * (1 - 4 * _ULP), MAX_SELECTION_EPSILON)
    if epsilon < MIN_SELECTION_EPSILON:
        raise ConfigurationError(
            "CALIBRATION_UNREACHABLE",
            f"expected mu that allows an epsilon of {MIN_SELECTION_EPSILON} for a selection, found "
            f"{mu!r}; choose a larger epsilon for the release or fewer selections",
        )
    return epsilon
