import math

import mpmath
import pytest

from tasks.papers.clustmix.noise import minimum_cluster_size, noise_sigma


def eq8_delta(epsilon, sigma, size, n_classes, n_features):
    """Eq. 8 in 60 digits."""
    with mpmath.workdps(60):
        ratio = mpmath.mpf(size) * mpmath.mpf(sigma) / mpmath.sqrt(n_classes * n_features)
        first = mpmath.ncdf(-epsilon * ratio + 1 / (2 * ratio))
        return float(first - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon * ratio - 1 / (2 * ratio)))


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu"),
    # Values of mu known from exact Gaussian calibration.
    [(1.0, 1e-5, 0.2681), (2.0, 1e-6, 0.4483), (0.5, 1e-6, 0.1241)],
)
def test_noise_matches_known_calibration(epsilon, delta, mu):
    sigma = noise_sigma(epsilon=epsilon, delta=delta, cluster_size=10, n_classes=1, n_features=1)
    assert 1.0 / (10 * sigma) == pytest.approx(mu, abs=1e-4)


@pytest.mark.parametrize(
    ("epsilon", "delta", "size"), [(0.01, 1e-2, 2), (1.0, 1e-5, 100), (50.0, 1e-10, 5000)]
)
def test_noise_solves_equation_8(epsilon, delta, size):
    sigma = noise_sigma(epsilon=epsilon, delta=delta, cluster_size=size, n_classes=2, n_features=14)
    assert eq8_delta(epsilon, sigma, size, 2, 14) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(("sigma_max", "epsilon"), [(0.01, 0.2), (1.0, 10.0)])
def test_minimum_size_is_the_smallest_whose_noise_is_within_the_limit(sigma_max, epsilon):
    settings = {"epsilon": epsilon, "delta": 1e-5, "n_classes": 2, "n_features": 14}
    size = minimum_cluster_size(sigma_max=sigma_max, **settings)
    assert noise_sigma(cluster_size=size, **settings) <= sigma_max * (1 + 1e-9)
    assert size == 1 or noise_sigma(cluster_size=size - 1, **settings) > sigma_max


def test_no_solution_is_reported_as_none():
    shape = {"n_classes": 2, "n_features": 3}
    for epsilon, delta in ((0.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0), (math.nan, 0.1)):
        assert noise_sigma(epsilon=epsilon, delta=delta, cluster_size=10, **shape) is None
        assert minimum_cluster_size(epsilon=epsilon, delta=delta, sigma_max=0.1, **shape) is None
    assert noise_sigma(epsilon=1.0, delta=1e-5, cluster_size=0, **shape) is None
    assert minimum_cluster_size(epsilon=1.0, delta=1e-5, sigma_max=0.0, **shape) is None
