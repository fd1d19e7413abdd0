import numpy as np
import pytest

from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.features import build_feature_map
from tasks.measurement.marginals import draw_codes
from tasks.synthesizers.clustmix.earlier.dependence import (
    Dependence,
    fit_dependence,
    rake,
    tilted,
    tilts,
)

DOMAIN = EncodingDomain(
    column_names=("a", "b", "c"),
    n_codes=(2, 2, 3),
    has_missing=(False,) * 3,
    numeric=(False,) * 3,
    label_levels=("no", "yes"),
)
MAP = build_feature_map(DOMAIN, n_random=4, skip_weight=0.9, public_seed=0)


def correlated_codes(n, seed, agreement=0.8):
    """Columns a and b agree with the given probability; c is independent."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 2, n)
    b = np.where(rng.random(n) < agreement, a, 1 - a)
    return np.column_stack([a, b, rng.integers(0, 3, n)]).astype(np.uint16)


def fit(codes, *, noise=0.0, seed=0):
    phi = MAP.phi(codes)
    second = phi.T @ phi / len(codes)
    extra = np.random.default_rng(seed).normal(0, noise, second.shape)
    extra = np.triu(extra) + np.triu(extra, 1).T
    marginals = np.concatenate(
        [np.bincount(codes[:, j], minlength=n) / len(codes) for j, n in enumerate(DOMAIN.n_codes)]
    )
    return marginals, fit_dependence(
        second + extra,
        MAP,
        component_means=MAP.raw_of_marginals(marginals)[None, :],
        component_weights=np.ones(1),
        expected_squared_norm=1.0,
        noise_stddev=max(noise, 1e-4),
    )


def test_factors_are_recovered_from_a_known_correlation():
    codes = correlated_codes(20_000, 0)
    _, dependence = fit(codes)
    raw = MAP.raw(codes)
    covariance = np.cov(raw.T, bias=True)
    fitted = dependence.loadings @ dependence.loadings.T
    between = np.ones((7, 7), dtype=bool)
    for block in (slice(0, 2), slice(2, 4), slice(4, 7)):
        between[block, block] = False
    assert np.abs(covariance[between]).max() > 0.04
    np.testing.assert_allclose(fitted[between], covariance[between], atol=0.004)
    # Agreement of two fair coins is one direction; column c has no part in it.
    assert dependence.n_factors == 1
    assert np.abs(dependence.loadings[4:]).max() < 0.03


@pytest.mark.parametrize("seed", range(3))
def test_noise_alone_makes_no_factor(seed):
    _, dependence = fit(correlated_codes(50_000, seed, agreement=0.5), noise=0.02, seed=seed)
    assert dependence.n_factors == 0
    assert dependence.loadings.shape == (7, 0)


def test_raking_keeps_the_marginal_under_the_tilt():
    rng = np.random.default_rng(0)
    for _ in range(5):
        marginal, tilt = rng.dirichlet(np.ones(4)), rng.normal(0, 0.7, (4, 2))
        factors = rng.standard_normal((5_000, 2))
        base = rake(marginal, tilt, factors)
        weights = tilted(base, tilt, factors)
        mean = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
        np.testing.assert_allclose(mean, marginal, atol=2e-3)
        # Without raking the marginal would move by more than that.
        plain = tilted(marginal, tilt, factors)
        moved = (plain / plain.sum(axis=1, keepdims=True)).mean(axis=0) - marginal
        assert np.abs(moved).max() > 5e-3


def test_raking_keeps_impossible_codes_impossible_and_needs_no_factor():
    marginal = np.array([0.25, 0.0, 0.75])
    tilt = np.array([[3.0], [50.0], [-3.0]])
    base = rake(marginal, tilt, np.random.default_rng(0).standard_normal((500, 1)))
    assert base[1] == 0.0
    assert base.sum() == pytest.approx(1.0)
    without = rake(marginal, np.zeros((3, 0)), np.zeros((500, 0)))
    np.testing.assert_allclose(without, marginal)


def test_sampling_with_the_factors_brings_back_the_correlation():
    marginals, dependence = fit(correlated_codes(20_000, 1))
    rng, n, start, columns = np.random.default_rng(2), 40_000, 0, []
    factors = rng.standard_normal((n, dependence.n_factors))
    for tilt in tilts(dependence, MAP, marginals):
        marginal = marginals[start : start + len(tilt)]
        start += len(tilt)
        base = rake(marginal, tilt, factors[:2_000])
        columns.append(draw_codes(tilted(base, tilt, factors), n, rng))
    codes = np.column_stack(columns)
    for column, width in enumerate(DOMAIN.n_codes):
        shares = np.bincount(codes[:, column], minlength=width) / n
        begin = DOMAIN.one_hot_offsets[column]
        np.testing.assert_allclose(shares, marginals[begin : begin + width], atol=0.03)
    # Truth 0.8; product of marginals 0.5. The logistic link is not the probit: half the way is
    # the least that counts.
    assert 0.65 < (codes[:, 0] == codes[:, 1]).mean() < 0.9
    assert abs(np.corrcoef(codes[:, 0], codes[:, 2])[0, 1]) < 0.05


def test_a_tilt_is_the_log_odds_of_factor_analysis():
    # Two codes at one half: variance of the raw pair is v (1, -1), loadings l (1, -1).
    loadings = np.zeros((7, 1))
    loadings[:2, 0] = [0.1, -0.1]
    marginals = np.array([0.5, 0.5, 0.5, 0.5, 1 / 3, 1 / 3, 1 / 3])
    first, second, third = tilts(Dependence(loadings=loadings), MAP, marginals)
    # Along (1, -1) / sqrt(2) the covariance is 1 / 6, the loading sqrt(0.02), the code +-sqrt(1/6).
    psi = 1 / 6 - 0.02
    expected = np.sqrt(1 / 6) * np.sqrt(0.02) / psi
    np.testing.assert_allclose(first[:, 0], [expected, -expected])
    assert not second.any()
    assert not third.any()
