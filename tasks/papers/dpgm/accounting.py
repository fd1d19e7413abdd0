"""Epsilon of DPGM's settings as section 5 of the paper computes it.

It is no guarantee; flaws G1, G6, G8 and G9 are in it.
Source: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), Lemma 1, Eq. 4, Eq. 7 and
Theorem 4.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import logsumexp

from tasks.papers.printed_noise import least_noise

MAX_ORDER = 32
"""Moments of orders 1 to 32 are computed (section 6.1)."""

J_VALUES = tuple(index / 11 for index in range(1, 11))
"""The 10 values of j_1 in Eq. 7. The paper does not say which; a finer grid moves epsilon by 0.003
at its settings for MNIST."""

_GRID_POINTS = 8_001


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSettings:
    """What epsilon depends on.

    The noise scales are those of the norm histograms, of k-means and of the gradients; the noise is
    ``sqrt(2)`` times as much in units of one record. There are T_K rounds of k-means and T_S steps
    of gradient descent; q is the batch size over the number of records.
    """

    sigma_c: float
    sigma_k: float
    sigma_g: float
    clustering_rounds: int
    sampling_probability: float
    n_steps: int
    delta: float


def steps_of(*, epochs: int, sampling_probability: float) -> int:
    """Return the iterations of some epochs of ``ceil(1 / q)`` each (section 6.2)."""
    return epochs * math.ceil(1.0 / sampling_probability)


def paper_epsilon(settings: NoiseSettings) -> float:
    """Epsilon of Theorem 4, as printed; it proves nothing.

    ``min over l of (alpha_K(l) + alpha_S(l) - log delta) / l`` for l from 1 to `MAX_ORDER`, with
    alpha_K of Eq. 4 without the norm bound (the kernel's features need none) and alpha_S of Eq. 7.
    """
    best = math.inf
    for order in range(1, MAX_ORDER + 1):
        # Lemma 1 with 1/4, once for the counts and once for the sums (flaw G1).
        gaussian = (order**2 + order) / (4.0 * settings.sigma_k**2)
        clustering = settings.clustering_rounds * 2.0 * gaussian
        training = settings.n_steps * _step_moment(
            order, settings.sampling_probability, settings.sigma_c, settings.sigma_g
        )
        best = min(best, (clustering + training - math.log(settings.delta)) / order)
    return best


def paper_sigma_g(settings: NoiseSettings, *, epsilon: float) -> float:
    """Noise scale of the gradients for which Theorem 4, as printed, gives `epsilon`.

    Its ``sigma_g`` is not read. It is a ConfigurationError if k-means and the norm histograms alone
    take more.
    """
    return least_noise(
        lambda sigma_g: paper_epsilon(replace(settings, sigma_g=sigma_g)) <= epsilon,
        otherwise="expected an epsilon that leaves something for the gradients, found "
        f"{epsilon!r}; choose a larger epsilon, a larger sigma_k or sigma_c, or fewer epochs",
        start=0.25,
    )


@lru_cache(maxsize=4096)
def _step_moment(order: int, probability: float, sigma_c: float, sigma_g: float) -> float:
    """Bound of Eq. 7 for one iteration, minimised over `J_VALUES` (flaw G8)."""
    return min(
        j * _sampled_moment(order / j, probability, sigma_c)
        + (1.0 - j) * _sampled_moment(order / (1.0 - j), probability, sigma_g)
        for j in J_VALUES
    )


@lru_cache(maxsize=16384)
def _sampled_moment(order: float, probability: float, sigma: float) -> float:
    """``log max(E_1, E_2)`` of section 5, by numerical integration.

    The trapezoid rule on a grid finer than sigma is exact to rounding for such smooth functions.
    """
    reach = order + 2.0 + 12.0 * sigma
    n_points = max(_GRID_POINTS, 2 * math.ceil(4.0 * reach / sigma) + 1)
    x = np.linspace(-reach, reach, n_points)
    normaliser = 0.5 * math.log(2.0 * math.pi * sigma**2)
    without = -np.square(x) / (2.0 * sigma**2) - normaliser
    shifted = -np.square(x - 1.0) / (2.0 * sigma**2) - normaliser
    if probability < 1.0:
        mixed = np.logaddexp(math.log1p(-probability) + without, math.log(probability) + shifted)
    else:
        mixed = shifted
    log_step = math.log(x[1] - x[0])
    first = logsumexp(without + order * (without - mixed)) + log_step
    second = logsumexp(mixed + order * (mixed - without)) + log_step
    return float(max(first, second))
