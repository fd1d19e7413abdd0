"""The tangent kernel in closed form."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
