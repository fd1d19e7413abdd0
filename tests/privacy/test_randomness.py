import numpy as np
import opendp.mod
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import chi2

from privacy.randomness import OperatingSystemNoise, SeededNoise

DRAWS = 20_000
# The noise comes from the operating system and cannot be seeded. A test that accepts fails by
# chance with probability 1e-9; the tests that must reject have power above 1 - 1e-9, because 0.7
# and 1.3 times sigma change the variance by a factor 0.49 and 1.69, which is more than 50 and 69
# standard errors, sqrt(2 / DRAWS) = 0.01, from 1.
FALSE_ALARM = 1e-9


def variance_is_plausible(noise: NDArray[np.int64], *, noise_stddev: float) -> bool:
    """Two-sided chi-square test of the variance around the known mean 0."""
    statistic = np.sum((noise / noise_stddev) ** 2)
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], df=noise.size)
    return bool(low <= statistic <= high)


def shape_is_plausible(noise: NDArray[np.int64], *, noise_stddev: float) -> bool:
    """Chi-square test of the counts in 20 bins of equal mass (the grid is fine against them)."""
    upper_tail = ndtr(-(noise + 0.5) / noise_stddev) + ndtr(-(noise - 0.5) / noise_stddev)
    counts = np.bincount(np.minimum((upper_tail / 2 * 20).astype(int), 19), minlength=20)
    expected = noise.size / 20
    statistic = np.sum((counts - expected) ** 2 / expected)
    return bool(statistic <= chi2.ppf(1 - FALSE_ALARM, df=19))


@pytest.mark.parametrize("noise_stddev", [300.25, 2.0**28 / 0.2367])
def test_the_sampler_draws_the_stated_noise_and_no_other(noise_stddev: float) -> None:
    noise = OperatingSystemNoise().discrete_gaussian((DRAWS,), noise_stddev=noise_stddev)
    assert noise.dtype == np.int64
    assert variance_is_plausible(noise, noise_stddev=noise_stddev)
    assert shape_is_plausible(noise, noise_stddev=noise_stddev)
    for wrong in (0.7, 1.3):
        assert not variance_is_plausible(noise, noise_stddev=wrong * noise_stddev)
        assert not shape_is_plausible(noise, noise_stddev=wrong * noise_stddev)


def test_the_sampler_is_right_integer_by_integer() -> None:
    # A coarse grid, where the discrete law is not a rounded normal: sigma = 0.8.
    noise = OperatingSystemNoise().discrete_gaussian((DRAWS,), noise_stddev=0.8)
    support = np.arange(-3, 4)
    weights = np.exp(-(np.arange(-30, 31) ** 2) / (2 * 0.8**2))
    expected = DRAWS * np.exp(-(support**2) / (2 * 0.8**2)) / weights.sum()
    counts = np.array([np.sum(noise == z) for z in support])
    statistic = np.sum((counts - expected) ** 2 / expected)
    assert statistic <= chi2.ppf(1 - FALSE_ALARM, df=7)


def test_the_test_of_the_shape_rejects_a_uniform_of_the_same_variance() -> None:
    uniform = np.random.default_rng(0).uniform(-1, 1, DRAWS) * np.sqrt(3) * 300.0
    noise = np.rint(uniform).astype(np.int64)
    assert variance_is_plausible(noise, noise_stddev=300.0)
    assert not shape_is_plausible(noise, noise_stddev=300.0)


def test_draws_are_independent_and_never_repeat() -> None:
    source = OperatingSystemNoise()
    first = source.discrete_gaussian((DRAWS,), noise_stddev=1e9)
    second = source.discrete_gaussian((DRAWS,), noise_stddev=1e9)
    assert not np.array_equal(first, second)
    # Six standard errors of a correlation of independent values.
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(DRAWS)
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 6 / np.sqrt(DRAWS)


def test_large_draws_are_made_in_pieces_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privacy.randomness._VALUES_AT_ONCE", 7)
    noise = OperatingSystemNoise().discrete_gaussian((4, 5), noise_stddev=1e12)
    assert noise.shape == (4, 5)
    assert len(np.unique(noise)) == 20


def test_the_switch_of_the_library_is_left_as_it_was() -> None:
    before = set(opendp.mod.GLOBAL_FEATURES)
    OperatingSystemNoise().discrete_gaussian((1,), noise_stddev=50.0)
    assert before == opendp.mod.GLOBAL_FEATURES
    opendp.mod.enable_features("contrib")
    try:
        OperatingSystemNoise().discrete_gaussian((1,), noise_stddev=50.0)
        assert "contrib" in opendp.mod.GLOBAL_FEATURES
    finally:
        if "contrib" not in before:
            opendp.mod.disable_features("contrib")


def test_seeded_noise_is_tainted_and_can_be_repeated() -> None:
    noise = SeededNoise(7).discrete_gaussian((DRAWS,), noise_stddev=300.0)
    assert np.array_equal(noise, SeededNoise(7).discrete_gaussian((DRAWS,), noise_stddev=300.0))
    assert noise.dtype == np.int64
    assert variance_is_plausible(noise, noise_stddev=300.0)
    assert SeededNoise(7).tainted
    assert not OperatingSystemNoise().tainted
