"""Noise of the published algorithm: Eq. 8, solved for the noise or for the smallest cluster.

Eq. 8 is the delta of a Gaussian mechanism with ``mu = sqrt(C D) / (l sigma)``. The paper has no
proof that the whole algorithm is such a mechanism (flaws C4 to C7: memberships, overlaps, two
changed means and private cluster sizes are outside it), so the epsilon that goes in here is the
epsilon *claimed*, nothing more.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtr

# A solution is accepted when delta is met to this relative accuracy, on either side (flaw C10).
_RELATIVE_TOLERANCE = 1e-3


def eq8_delta(
    *, epsilon: float, sigma: float, cluster_size: float, n_classes: int, n_features: int
) -> float:
    """Delta of Eq. 8.

    ``Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2)``, with
    ``mu = sqrt(n_classes n_features) / (cluster_size sigma)``.

    Parameters
    ----------
    epsilon
        Claimed epsilon, above 0.
    sigma
        Standard deviation of the noise added to each coordinate of a cluster mean, above 0.
    cluster_size
        Number l of rows in the mean, above 0 (real, so that it can be solved for).
    n_classes, n_features
        C and D. The algorithm box leaves C out of its call of this function; Eq. 8 has it and is
        followed (flaw C10).
    """
    return _gaussian_delta(
        epsilon, math.sqrt(n_classes * n_features) / (float(cluster_size) * float(sigma))
    )


def _gaussian_delta(epsilon: float, mu: float) -> float:
    upper = ndtr(-epsilon / mu + mu / 2.0)
    lower = np.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2.0))
    return max(0.0, float(upper - lower))


@lru_cache(maxsize=4096)
def _claimed_mu(epsilon: float, delta: float) -> float | None:
    """Minimise ``|delta - delta(mu)|`` over ``log mu`` by Nelder-Mead; None without a solution.

    Eq. 8 depends on sigma and l only through mu, so one search serves every cluster size.
    """
    if not (epsilon > 0.0 and math.isfinite(epsilon) and 0.0 < delta < 1.0):
        return None
    result = minimize(
        lambda log_mu: abs(delta - _gaussian_delta(epsilon, math.exp(float(log_mu[0])))),
        x0=[math.log(epsilon) if epsilon < 1.0 else 0.5 * math.log(epsilon)],
        method="Nelder-Mead",
        options={"xatol": 1e-12, "fatol": 1e-9 * delta, "maxiter": 2000},
    )
    if not result.fun <= _RELATIVE_TOLERANCE * delta:
        return None
    return math.exp(float(result.x[0]))


@lru_cache(maxsize=4096)
def noise_sigma(
    *, epsilon: float, delta: float, cluster_size: int, n_classes: int, n_features: int
) -> float | None:
    """Noise of one cluster mean: the sigma that minimises ``|delta - Eq. 8|`` (line 16).

    Parameters
    ----------
    epsilon, delta
        Claimed parameters.
    cluster_size
        Rows in the mean. It is a private number, and the noise follows it (flaw C7).
    n_classes, n_features
        C and D.

    Returns
    -------
    float or None
        Standard deviation per coordinate, in units of features scaled to [0, 1]; None when no
        solution is found, in which case the point is discarded (flaw C8).
    """
    if cluster_size < 1:
        return None
    mu = _claimed_mu(epsilon, delta)
    if mu is None:
        return None
    return math.sqrt(n_classes * n_features) / (cluster_size * mu)


def minimum_cluster_size(
    *, epsilon: float, delta: float, sigma_max: float, n_classes: int, n_features: int
) -> int | None:
    """Smallest cluster whose noise does not exceed `sigma_max` (line 2).

    The real l that minimises ``|delta - Eq. 8|`` at ``sigma_max`` is rounded up, so that
    `noise_sigma` is at most `sigma_max` for every cluster that is at least this large.

    Returns
    -------
    int or None
        l_min, at least 1; None when no solution is found.
    """
    if not sigma_max > 0.0:
        return None
    mu = _claimed_mu(epsilon, delta)
    if mu is None:
        return None
    return max(1, math.ceil(math.sqrt(n_classes * n_features) / (sigma_max * mu) * (1 - 1e-12)))
