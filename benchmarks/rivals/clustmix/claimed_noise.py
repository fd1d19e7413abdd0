"""Noise of the printed algorithm: Eq. 8, solved for the noise or for the smallest cluster.

Eq. 8 is the delta of a Gaussian mechanism with ``mu = sqrt(C D) / (l sigma)``, for C classes, D
features, and noise sigma on each coordinate of the mean of l rows. The algorithm box leaves C out
of its call of it; Eq. 8 has it and is followed (flaw C10). The paper has no proof that the whole
algorithm is such a mechanism (flaws C4 to C7: memberships, overlaps, two changed means and private
cluster sizes are outside it), so the epsilon that goes in here is the epsilon *claimed*.
"""

import math
from functools import lru_cache

from scipy.optimize import minimize

from privacy.gaussian import gaussian_delta

# A solution is accepted when delta is met to this relative accuracy, on either side (flaw C10).
_RELATIVE_TOLERANCE = 1e-3


@lru_cache(maxsize=4096)
def _claimed_mu(epsilon: float, delta: float) -> float | None:
    """Minimise ``|delta - delta(mu)|`` over ``log mu`` by Nelder-Mead; None without a solution."""
    if not (epsilon > 0.0 and math.isfinite(epsilon) and 0.0 < delta < 1.0):
        return None
    result = minimize(
        lambda log_mu: abs(delta - gaussian_delta(epsilon=epsilon, mu=math.exp(log_mu.item()))),
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
    """Noise per coordinate of one cluster mean, which minimises ``|delta - Eq. 8|`` (line 16).

    It follows a private number of rows (flaw C7); None without a solution: no point (flaw C8).
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
    """Smallest cluster with `noise_sigma` of at most `sigma_max` (line 2); None without one."""
    if not sigma_max > 0.0:
        return None
    mu = _claimed_mu(epsilon, delta)
    if mu is None:
        return None
    return max(1, math.ceil(math.sqrt(n_classes * n_features) / (sigma_max * mu) * (1 - 1e-12)))
