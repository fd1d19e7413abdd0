import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.measurement.random_ntk import RandomNtkFeatures
from tasks.papers.clustmix.ntk import (
    FullyConnectedNtk,
    SkipConnectionNtk,
    neural_tangents_kernel,
)


def points(n, d, seed):
    return np.random.default_rng(seed).standard_normal((n, d))


def slope_of(function):
    """Compiled as one program: step by step, each operation would be compiled by itself."""
    return jax.jit(jax.grad(function))


def normalised(kernel, x, y):
    """Reference kernel divided by the exact self-kernels |x|^2 / d (both branches, no bias)."""
    norm_x = np.linalg.norm(x, axis=1) / np.sqrt(x.shape[1])
    norm_y = np.linalg.norm(y, axis=1) / np.sqrt(y.shape[1])
    with jax.enable_x64(True):
        exact = np.asarray(jax.jit(kernel)(jnp.asarray(x), jnp.asarray(y)))
    return exact / np.outer(norm_x, norm_y)


@pytest.mark.parametrize(
    ("depth", "weight_std", "bias_std"),
    [(0, 1.0, 0.0), (1, 1.0, 0.0), (2, 1.4, 0.1), (3, 2.0**0.5, 0.1)],
)
def test_closed_form_equals_neural_tangents(depth, weight_std, bias_std):
    settings = {"depth": depth, "weight_std": weight_std, "bias_std": bias_std}
    with jax.enable_x64(True):
        x, y = jnp.asarray(points(9, 6, 1)), jnp.asarray(points(5, 6, 2))
        closed = jax.jit(FullyConnectedNtk(**settings).__call__)(x, y)
        library = jax.jit(neural_tangents_kernel(**settings))(x, y)
        assert closed.dtype == jnp.float64
        np.testing.assert_allclose(closed, library, rtol=0, atol=1e-10)


def test_closed_form_equals_monte_carlo_of_a_wide_network():
    # The definition: inner product of the gradients of a wide network at random weights.
    rng = np.random.default_rng(0)
    x, width = points(2, 3, 3), 400_000
    first, last = rng.standard_normal((width, 3)), rng.standard_normal(width)
    drive = x @ first.T / np.sqrt(3)
    active = (drive > 0).astype(float)
    hidden = np.maximum(drive, 0)
    last_layer = hidden @ hidden.T / width
    first_layer = (active * last**2) @ active.T / width * (x @ x.T / 3)
    with jax.enable_x64(True):
        closed = jax.jit(FullyConnectedNtk(depth=1).__call__)(jnp.asarray(x), jnp.asarray(x))
    np.testing.assert_allclose(closed, last_layer + first_layer, rtol=0.02)


def test_gradient_is_finite_and_right_at_coincident_points():
    kernel = jax.jit(FullyConnectedNtk(depth=2, weight_std=1.4, bias_std=0.1).__call__)
    with jax.enable_x64(True):
        x = jnp.asarray(points(4, 3, 4)).at[1].set(jnp.asarray(points(4, 3, 4))[0])
        gradient = slope_of(lambda z: jnp.sum(jnp.diag(kernel(z, z))))(x)
        assert jnp.all(jnp.isfinite(slope_of(lambda z: jnp.sum(kernel(z, z)))(x)))
        step = 1e-6
        shift = jnp.zeros_like(x).at[2, 1].set(step)
        slope = (
            jnp.sum(jnp.diag(kernel(x + shift, x + shift)))
            - jnp.sum(jnp.diag(kernel(x - shift, x - shift)))
        ) / (2 * step)
        np.testing.assert_allclose(gradient[2, 1], slope, rtol=1e-6)


def test_zero_rows_have_finite_kernels_and_gradients():
    with jax.enable_x64(True):
        x = jnp.zeros((2, 3))
        for kernel in (FullyConnectedNtk(depth=2), SkipConnectionNtk(skip_weight=0.5)):
            assert jnp.all(jax.jit(kernel.__call__)(x, x) == 0.0)
            assert jnp.all(jnp.isfinite(slope_of(lambda z, k=kernel: jnp.sum(k(z, z)))(x)))


@pytest.mark.parametrize("skip_weight", [0.0, 0.3, 1.0])
def test_skip_connection_equals_normalised_neural_tangents(skip_weight):
    x, y = points(7, 5, 5), points(4, 5, 6)
    library = normalised(neural_tangents_kernel(depth=1, skip_weight=skip_weight), x, y)
    with jax.enable_x64(True):
        kernel = jax.jit(SkipConnectionNtk(skip_weight=skip_weight).__call__)
        closed = kernel(jnp.asarray(x), jnp.asarray(y))
        np.testing.assert_allclose(closed, library, rtol=0, atol=1e-10)


def feature_errors(n_random, n_seeds, skip_weight=0.3):
    """Errors of phi(x) . phi(y) against neural_tangents: shape (n_seeds, 48)."""
    x, y = points(8, 5, 7), points(6, 5, 8)
    library = normalised(neural_tangents_kernel(depth=1, skip_weight=skip_weight), x, y)
    errors = []
    for seed in range(n_seeds):
        features = RandomNtkFeatures.draw(
            n_inputs=5, n_random=n_random, skip_weight=skip_weight, public_seed=seed
        )
        errors.append((features(x) @ features(y).T - library).ravel())
    return np.array(errors)


def test_random_features_converge_to_neural_tangents_at_the_monte_carlo_rate():
    # 60 seeds x 48 pairs: the root mean square error is known to about 4 percent, so a rate of
    # n^-1/2 (a ratio of 4) is told apart from n^-1/4 (2) and n^-1 (16) with power above 0.999.
    coarse = np.sqrt(np.mean(feature_errors(256, 60) ** 2))
    fine = np.sqrt(np.mean(feature_errors(4096, 60) ** 2))
    assert 3.0 < coarse / fine < 5.3
    assert fine < 0.03


def test_random_features_are_centred_on_neural_tangents():
    # Two-sided, per pair, at 5 standard errors; a kernel wrong by 0.02 is seen with power > 0.99.
    errors = feature_errors(2048, 100)
    standard_error = errors.std(axis=0, ddof=1) / np.sqrt(len(errors))
    bias_of_normalisation = 10.0 / 2048
    assert np.all(np.abs(errors.mean(axis=0)) < 5.0 * standard_error + bias_of_normalisation)
    assert np.max(standard_error) < 0.003


def test_random_features_have_norm_at_most_one_and_almost_one():
    features = RandomNtkFeatures.draw(n_inputs=4, n_random=32, skip_weight=0.5, public_seed=1)
    x = points(2000, 4, 9) * 10.0 ** np.random.default_rng(1).uniform(-8, 8, (2000, 1))
    squares = [sum(int(v * 2**60) ** 2 for v in row) for row in features(x)[:50]]
    assert all(square <= 2**120 for square in squares)
    norms = np.linalg.norm(features(x), axis=1)
    assert np.all(norms <= 1.0)
    assert np.all(norms > 1.0 - 1e-9)
    assert np.all(features(np.zeros((1, 4))) == 0.0)
    assert features(x).shape == (2000, features.n_features) == (2000, 36)


def test_random_features_look_at_one_record_alone():
    features = RandomNtkFeatures.draw(n_inputs=4, n_random=64, skip_weight=0.5, public_seed=1)
    x = points(10, 4, 10)
    np.testing.assert_allclose(features(x)[3:4], features(x[3:4]), rtol=0, atol=1e-15)


def test_random_features_agree_between_numpy_and_jax():
    features = RandomNtkFeatures.draw(n_inputs=4, n_random=64, skip_weight=0.2, public_seed=1)
    x = points(10, 4, 11)
    with jax.enable_x64(True):
        compiled = jax.jit(features.__call__)(jnp.asarray(x))
        np.testing.assert_allclose(compiled, features(x), rtol=0, atol=1e-14)
        gradient = slope_of(lambda z: jnp.sum(features(z)))(jnp.zeros((2, 4)))
        assert jnp.all(jnp.isfinite(gradient))


def test_public_seed_fixes_the_features():
    def draw(seed):
        return RandomNtkFeatures.draw(n_inputs=3, n_random=8, skip_weight=0.5, public_seed=seed)

    assert np.array_equal(draw(5).gates, draw(5).gates)
    assert not np.array_equal(draw(5).gates, draw(6).gates)
    assert not np.array_equal(draw(5).gates, draw(5).directions)
    with pytest.raises(ValueError, match="read-only"):
        draw(5).gates[0, 0] = 0.0


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
    settings = {"n_inputs": 3, "n_random": 8, "skip_weight": 0.5, "public_seed": 0} | change
    with pytest.raises(ValueError, match=message):
        RandomNtkFeatures.draw(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": -1}, "expected a depth of 0 or more hidden layers, found -1"),
        ({"depth": 1, "weight_std": 0.0}, "expected weight_std above 0, found 0.0"),
        ({"depth": 1, "bias_std": -1.0}, "expected bias_std of 0 or more, found -1.0"),
    ],
)
def test_closed_form_refuses_bad_parameters(settings, message):
    with pytest.raises(ValueError, match=message):
        FullyConnectedNtk(**settings)


def test_importing_the_module_imports_neither_neural_tangents_nor_tensorflow():
    program = (
        "import sys, tasks.papers.clustmix.ntk as n; n.FullyConnectedNtk(depth=1);"
        "sys.exit(any(m.split('.')[0] in ('neural_tangents', 'tensorflow') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
