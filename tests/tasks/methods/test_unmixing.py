"""Records out of mixtures: variances by theory, shares by hand, drawn columns by frequency."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring import domain_with

from tasks.measurement import unmixing
from tasks.measurement.unmixing import (
    Mixtures,
    draw_records,
    spiked_variances,
    spread,
)
from tasks.measurement.vectors import VectorMap

DOMAIN = domain_with(101, 4, 2, 9, numeric=(0, 3), missing=[3])
VECTORS = VectorMap(DOMAIN)


@settings(max_examples=50, deadline=None)
@given(variance=st.floats(0.01, 1e4), aspect=st.floats(0.01, 20.0))
def test_a_spiked_variance_undoes_the_shift_and_loses_the_angle(variance, aspect):
    # Baik and Silverstein: a signal of this variance shows up there, at this angle.
    eigenvalue = (1 + variance) * (1 + aspect / variance)
    found = spiked_variances(np.array([eigenvalue]), aspect=aspect)[0]
    if variance <= np.sqrt(aspect) * (1 + 1e-6):
        # Below the threshold the noise hides it; the eigenvalue is that of a larger signal.
        return
    cosine = (1 - aspect / variance**2) / (1 + aspect / variance)
    assert found == pytest.approx(variance * cosine, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("shape", [(300, 12), (12, 300), (40, 40)])
def test_spread_is_that_of_a_singular_value_decomposition(shape):
    rng = np.random.default_rng(6)
    means = 3.0 * rng.random((shape[0], 2)) @ rng.random((2, shape[1])) + 0.1 * rng.random(shape)
    mixtures = Mixtures(means=means, order=5, noise_stddev=0.03)
    average = means.mean(axis=0)
    along = average / np.linalg.norm(average)
    moved = (means - average) @ (np.eye(shape[1]) - np.outer(along, along))
    left, singular, right = np.linalg.svd(moved, full_matrices=False)
    variances = spiked_variances(singular**2 / shape[0] / 0.03**2, aspect=shape[1] / shape[0])
    assert 0 < np.count_nonzero(variances) < min(shape)
    expected = average + left * np.sqrt(shape[0] * 5 * variances) * 0.03 @ right
    found = spread(mixtures, np.arange(shape[1]))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_drawn_columns_have_the_shares_and_numbers_are_the_nearest(monkeypatch):
    means = np.zeros((2, VECTORS.width))
    means[:, 0] = (0.25, 0.704)
    means[:, 1:5] = (0.6, 0.4, 0.0, 0.0005)
    means[:, 5] = (0.3, 0.3)
    means[:, 6] = (0.14, 1.0)
    mixtures = Mixtures(means=means, order=3, noise_stddev=0.001)
    chosen = np.arange(20_000) % 2
    codes = draw_records(mixtures, means, VECTORS, chosen=chosen, rng=np.random.default_rng(0))
    assert (codes.dtype, codes.shape) == (np.uint16, (20_000, 4))
    np.testing.assert_array_equal(codes[:, 0], np.where(chosen == 0, 25, 70))
    np.testing.assert_array_equal(codes[:, 3], np.where(chosen == 0, 1, 7))
    # The last ward is below the noise of the average.
    wards = np.bincount(codes[:, 1], minlength=4) / 20_000
    np.testing.assert_allclose(wards, [0.6, 0.4, 0, 0], atol=0.015)
    assert wards[2] == wards[3] == 0
    assert codes[:, 2].mean() == pytest.approx(0.3, abs=0.015)
    monkeypatch.setattr(unmixing, "_ROWS_AT_ONCE", 1_023)
    again = draw_records(mixtures, means, VECTORS, chosen=chosen, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(again, codes)
