"""The tangent kernel in closed form, and the public random features that stand in for one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.measurement.random_ntk import RandomNtkFeatures
from tasks.papers.clustmix.ntk import tangent_kernel

X = np.array([[1.0, -2.0, 0.5], [0.0, 1.5, -1.0]])
Y = np.array([[0.3, 0.4, -1.2], [1.0, -2.0, 0.5]])

# neural-tangents 0.6.5, stax.serial(Dense, Relu, ..., Dense(1)), in float64.
NEURAL_TANGENTS = {
    (0, 1.0, 0.0): [[-0.3666666666666667, 1.75], [0.6, -1.1666666666666665]],
    (1, 1.0, 0.0): [[0.007666666765071772, 1.75], [0.5468842764160063, -0.0915365266187455]],
    (2, 1.4, 0.1): [[0.8001680587479, 9.940928], [2.9113479226814, 0.69977569122091]],
    (3, 2.0**0.5, 0.1): [
        [1.6549944836537263, 14.10000000000001], [3.879045945764064, 1.859362734266283]
    ],
}  # fmt: skip

# The same library: FanOut -> (Dense, one hidden layer) -> FanInSum, over the norms of the points.
NEURAL_TANGENTS_WITH_SKIP = {
    0.0: [[0.007721556215152444, 1.0], [0.7000541894779642, -0.06648051138544261]],
    0.3: [[-0.10538245492305093, 1.0], [0.7204518602973624, -0.3007319216907068]],
    1.0: [[-0.3692918142455256, 1.0], [0.7680464255426249, -0.8473185457363234]],
}


def draw(**changes):
    settings = {"n_inputs": 3, "n_random": 8, "skip_weight": 0.5, "public_seed": 0}
    return RandomNtkFeatures.draw(**settings | changes)


@pytest.mark.parametrize("setting", NEURAL_TANGENTS)
def test_closed_form_equals_neural_tangents(setting):
    depth, weight_std, bias_std = setting
    with jax.enable_x64(True):
        found = tangent_kernel(
            jnp.asarray(X), jnp.asarray(Y), depth=depth, weight_std=weight_std, bias_std=bias_std
        )
    np.testing.assert_allclose(found, NEURAL_TANGENTS[setting], rtol=1e-13)


def test_gradient_is_finite_and_right_at_coincident_points_and_at_the_origin():
    kernel = partial(tangent_kernel, depth=2, weight_std=1.4, bias_std=0.1)

    @jax.jit
    def value(z, mask):
        return jnp.sum(mask * kernel(z, z))

    slope = jax.jit(jax.grad(value))
    with jax.enable_x64(True):
        z = jnp.asarray(np.random.default_rng(4).standard_normal((4, 3)))
        z = z.at[1].set(z[0]).at[3].set(0.0)
        assert jnp.all(jnp.isfinite(slope(z, jnp.ones((4, 4)))))
        shift = jnp.zeros_like(z).at[2, 1].set(1e-6)
        expected = (value(z + shift, jnp.eye(4)) - value(z - shift, jnp.eye(4))) / 2e-6
        np.testing.assert_allclose(slope(z, jnp.eye(4))[2, 1], expected, rtol=1e-6)


def skip_kernel(x, y, skip_weight):
    """What the features approximate: arc-cosine kernels of the cosine, written out."""
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    cosine = np.clip(x @ y.T, -1.0, 1.0)
    angle = np.arccos(cosine)
    hidden = (2.0 * (np.pi - angle) * cosine + np.sin(angle)) / (2.0 * np.pi)
    return skip_weight * cosine + (1.0 - skip_weight) * hidden


@pytest.mark.parametrize("skip_weight", NEURAL_TANGENTS_WITH_SKIP)
def test_kernel_of_the_features_equals_neural_tangents(skip_weight):
    expected = NEURAL_TANGENTS_WITH_SKIP[skip_weight]
    np.testing.assert_allclose(skip_kernel(X, Y, skip_weight), expected, atol=1e-8)


def feature_errors(n_random, n_seeds, skip_weight=0.3):
    """Errors of phi(x) . phi(y) against the kernel: shape (n_seeds, 48)."""
    x, y = (np.random.default_rng(7).standard_normal((n, 5)) for n in (8, 6))
    features = (
        draw(n_inputs=5, n_random=n_random, skip_weight=skip_weight, public_seed=seed)
        for seed in range(n_seeds)
    )
    exact = skip_kernel(x, y, skip_weight)
    return np.array([(phi(x) @ phi(y).T - exact).ravel() for phi in features])


def test_random_features_converge_to_the_kernel_at_the_monte_carlo_rate_and_without_bias():
    # 60 seeds x 48 pairs: the root mean square error is known to about 4 percent, so a rate of
    # n^-1/2 (a ratio of 4) is told apart from n^-1/4 (2) and n^-1 (16) with power above 0.999.
    coarse, fine = feature_errors(256, 60), feature_errors(4096, 60)
    assert 3.0 < np.sqrt(np.mean(coarse**2) / np.mean(fine**2)) < 5.3
    # Two-sided, per pair, at 5 standard errors; the division by the norm has a bias of 1/n.
    error = fine.std(axis=0, ddof=1) / np.sqrt(60)
    assert np.all(np.abs(fine.mean(axis=0)) < 5.0 * error + 10.0 / 4096)
    assert np.max(error) < 0.005


def test_random_features_have_norm_at_most_one_and_almost_one():
    features = draw(n_inputs=4, n_random=32, public_seed=1)
    rng = np.random.default_rng(9)
    x = rng.standard_normal((2000, 4)) * 10.0 ** rng.uniform(-8, 8, (2000, 1))
    squares = [sum(int(v * 2**60) ** 2 for v in row) for row in features(x)[:50]]
    assert all(square <= 2**120 for square in squares)
    norms = np.linalg.norm(features(x), axis=1)
    assert 1.0 - 1e-9 < norms.min() <= norms.max() <= 1.0
    assert np.all(features(np.zeros((1, 4))) == 0.0)
    assert features(x).shape == (2000, features.n_features) == (2000, 36)


def test_random_features_agree_between_numpy_and_jax():
    features = draw(n_inputs=4, n_random=64, skip_weight=0.2)
    x = np.random.default_rng(11).standard_normal((10, 4))
    x[3] = 0.0
    with jax.enable_x64(True):
        compiled, gradient = jax.jit(jax.vjp, static_argnums=0)(features.__call__, jnp.asarray(x))
        np.testing.assert_allclose(compiled, features(x), rtol=0, atol=1e-14)
        slope = np.random.default_rng(12).standard_normal(compiled.shape)
        np.testing.assert_allclose(gradient(slope)[0], features.pullback(x, slope), atol=1e-12)


def test_public_seed_fixes_the_features():
    first, again, other = (draw(public_seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first.gates, again.gates)
    assert not np.array_equal(first.gates, other.gates)
    assert not np.array_equal(first.gates, first.directions)
    with pytest.raises(ValueError, match="read-only"):
        first.gates[0, 0] = 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_inputs": 0}, "expected n_inputs of 1 or more, found 0"),
        ({"n_random": 3}, "expected an even n_random of 2 or more, found 3"),
        ({"n_random": 0}, "expected an even n_random of 2 or more, found 0"),
        ({"skip_weight": 1.5}, r"expected a skip_weight in \[0, 1\], found 1.5"),
    ],
)
def test_features_refuse_bad_parameters(change, message):
    with pytest.raises(ValueError, match=message):
        draw(**change)
