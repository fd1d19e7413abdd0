import numpy as np
import opendp.mod
import pytest
from scipy.special import ndtr
from scipy.stats import binom, chi2

import privacy.randomness
from benchmarks.in_process import SeededNoise
from privacy.randomness import OperatingSystemNoise

DRAWS = 20_000
# The noise comes from the operating system and cannot be seeded. A test that accepts fails by
# chance with probability 1e-9; the tests that must reject have power above 1 - 1e-9, because 0.7
# and 1.3 times sigma change the variance by a factor 0.49 and 1.69, which is more than 50 and 69
# standard errors, sqrt(2 / DRAWS) = 0.01, from 1.
FALSE_ALARM = 1e-9


def variance_is_plausible(noise, *, noise_stddev):
    """Two-sided chi-square test of the variance around the known mean 0."""
    statistic = np.sum((noise / noise_stddev) ** 2)
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], df=noise.size)
    return bool(low <= statistic <= high)


def shape_is_plausible(noise, *, noise_stddev):
    """Chi-square test of the counts in 20 bins of equal mass (the grid is fine against them)."""
    upper_tail = ndtr(-(noise + 0.5) / noise_stddev) + ndtr(-(noise - 0.5) / noise_stddev)
    counts = np.bincount(np.minimum((upper_tail / 2 * 20).astype(int), 19), minlength=20)
    expected = noise.size / 20
    statistic = np.sum((counts - expected) ** 2 / expected)
    return bool(statistic <= chi2.ppf(1 - FALSE_ALARM, df=19))


@pytest.fixture(params=["one thread", "several threads"])
def real_noise(request, monkeypatch):
    """The production source, in one piece and in many, which threads draw."""
    if request.param == "several threads":
        monkeypatch.setattr("privacy.randomness._VALUES_AT_ONCE", 611)
    return OperatingSystemNoise()


@pytest.mark.parametrize("noise_stddev", [300.25, 2.0**28 / 0.2367])
def test_the_sampler_draws_the_stated_noise_and_no_other(noise_stddev, real_noise):
    noise = real_noise.discrete_gaussian((40, DRAWS // 40), noise_stddev=noise_stddev)
    assert (noise.shape, noise.dtype) == ((40, DRAWS // 40), np.int64)
    noise = noise.ravel()
    assert variance_is_plausible(noise, noise_stddev=noise_stddev)
    assert shape_is_plausible(noise, noise_stddev=noise_stddev)
    for wrong in (0.7, 1.3):
        assert not variance_is_plausible(noise, noise_stddev=wrong * noise_stddev)
        assert not shape_is_plausible(noise, noise_stddev=wrong * noise_stddev)


def test_every_residue_is_as_likely_as_the_others():
    # All integers, not a coarser grid and not their absolute values: the low bits and the sign are
    # fair coins. Each count has a two-sided binomial test; the bias of these bits, and the
    # probability of 0, are below 1e-6 and far from what 20,000 draws could show.
    noise = OperatingSystemNoise().discrete_gaussian((DRAWS,), noise_stddev=1e6)
    low, high = binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], DRAWS, 0.5)
    for bit in range(8):
        assert low <= np.sum(noise >> bit & 1) <= high
    assert low <= np.sum(noise > 0) <= high
    third_low, third_high = binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], DRAWS, 1 / 3)
    for residue in range(3):
        assert third_low <= np.sum(noise % 3 == residue) <= third_high


def test_the_sampler_is_right_integer_by_integer(real_noise):
    # A coarse grid, where the discrete law is not a rounded normal: sigma = 0.8.
    noise = real_noise.discrete_gaussian((DRAWS,), noise_stddev=0.8)
    support = np.arange(-3, 4)
    weights = np.exp(-(np.arange(-30, 31) ** 2) / (2 * 0.8**2))
    expected = DRAWS * np.exp(-(support**2) / (2 * 0.8**2)) / weights.sum()
    counts = np.array([np.sum(noise == z) for z in support])
    statistic = np.sum((counts - expected) ** 2 / expected)
    assert statistic <= chi2.ppf(1 - FALSE_ALARM, df=7)


def test_draws_are_independent_and_never_repeat():
    source = OperatingSystemNoise()
    first = source.discrete_gaussian((DRAWS,), noise_stddev=1e9)
    second = source.discrete_gaussian((DRAWS,), noise_stddev=1e9)
    assert not np.array_equal(first, second)
    # Six standard errors of a correlation of independent values.
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(DRAWS)
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 6 / np.sqrt(DRAWS)


PARTS = 4


def test_the_pieces_of_a_large_draw_are_independent(monkeypatch):
    monkeypatch.setattr("privacy.randomness._VALUES_AT_ONCE", 5_000)
    noise = OperatingSystemNoise().discrete_gaussian((PARTS * 5_000,), noise_stddev=1e15)
    # Among 20,000 values of standard deviation 1e15 an equal pair has probability below 1e-7; a
    # seed that two threads share, at any offset, would repeat thousands.
    assert len(np.unique(np.abs(noise))) == PARTS * 5_000
    parts = np.array_split(noise, PARTS)
    for i in range(PARTS):
        for j in range(i):
            # Six standard errors of a correlation of independent values.
            assert abs(np.corrcoef(parts[i], parts[j])[0, 1]) < 6 / np.sqrt(5_000)
    assert OperatingSystemNoise().discrete_gaussian((0, 3), noise_stddev=60.0).shape == (0, 3)


def test_a_piece_that_fails_is_an_error_and_nothing_is_returned(monkeypatch):
    real, asked = privacy.randomness._exact_gaussian, []

    def failing(noise_stddev):
        asked.append(noise_stddev)
        return real(noise_stddev) if len(asked) != 2 else lambda _: [1]

    monkeypatch.setattr("privacy.randomness._VALUES_AT_ONCE", 5)
    monkeypatch.setattr("privacy.randomness._exact_gaussian", failing)
    with pytest.raises(ValueError, match="cannot reshape"):
        OperatingSystemNoise().discrete_gaussian((20,), noise_stddev=60.0)


def test_the_switch_of_the_library_is_left_as_it_was():
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


def test_seeded_noise_is_tainted_and_can_be_repeated():
    first, second = SeededNoise(7), SeededNoise(7)
    noise = first.discrete_gaussian((DRAWS,), noise_stddev=300.0)
    assert np.array_equal(noise, second.discrete_gaussian((DRAWS,), noise_stddev=300.0))
    assert noise.dtype == np.int64
    assert variance_is_plausible(noise, noise_stddev=300.0)
    assert SeededNoise(7).tainted
    assert not OperatingSystemNoise().tainted
