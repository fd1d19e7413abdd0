import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.measurement.unmixing import Mixtures, spiked_variances, spread


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
