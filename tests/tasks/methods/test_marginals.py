import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.measurement.marginals import draw_codes, shrink_toward, to_marginals

OFFSETS = np.array([0, 3, 5, 6, 11])
WIDTH = 11


arrays = st.integers(0, 2**32).map(
    lambda seed: np.random.default_rng(seed).normal(0.0, 50.0, (2, WIDTH))
)


@settings(max_examples=50, deadline=None)
@given(histograms=arrays, target=arrays, noise=st.sampled_from([0.0, 1.0, 30.0, 1e9]))
def test_results_are_probabilities_whatever_the_noise_did(histograms, target, noise):
    target = to_marginals(target, OFFSETS, noise_stddev=20.0)
    for result in (
        to_marginals(histograms, OFFSETS, noise_stddev=noise),
        shrink_toward(histograms, target, OFFSETS, noise_stddev=noise),
    ):
        assert (result >= 0).all()
        np.testing.assert_allclose(np.add.reduceat(result, OFFSETS[:-1], axis=-1), 1.0)


def test_entries_below_one_noise_deviation_are_no_share_and_an_empty_column_is_uniform():
    histogram = np.array([60.0, 9.9, 30.0, -5.0, 3.0, -1.0, 10.0, 0.0, 0.0, 0.0, 90.0])
    found = to_marginals(histogram, OFFSETS, noise_stddev=10.0)
    np.testing.assert_allclose(found, [2 / 3, 0, 1 / 3, 0.5, 0.5, 1, 0.1, 0, 0, 0, 0.9])


def test_shrinkage_keeps_what_james_stein_keeps():
    offsets = np.array([0, 5])
    histogram = np.array([60.0, 10.0, 10.0, 10.0, 10.0])
    target = np.full(5, 0.2)
    # Distance 40**2 + 4 * 10**2 = 2000; three variances of 100 are explained.
    kept = 1 - 3 * 100 / 2000
    expected = (20 + kept * (histogram - 20)) / 100
    found = shrink_toward(histogram, target, offsets, noise_stddev=10.0)
    np.testing.assert_allclose(found, expected)


def test_codes_are_drawn_with_their_probabilities():
    rng = np.random.default_rng(0)
    p = np.array([0.0, 0.5, 0.0, 0.2, 0.3, 0.0])
    shares = np.bincount(draw_codes(p, 40_000, rng), minlength=6) / 40_000
    # Five standard deviations of a share of one half: 0.0125.
    np.testing.assert_allclose(shares, p, atol=0.0125)
    assert not shares[p == 0].any()
    by_row = np.tile(7.0 * p, (40_000, 1))
    by_row[:20_000] = [0, 0, 0, 0, 0, 2.0]
    codes = draw_codes(by_row, 40_000, rng)
    assert codes.dtype == np.uint16
    assert (codes[:20_000] == 5).all()
    shares = np.bincount(codes[20_000:], minlength=6) / 20_000
    np.testing.assert_allclose(shares, p, atol=0.018)
