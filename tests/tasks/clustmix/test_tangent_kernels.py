"""Kernels of neural-tangents against the closed form and against networks of some width."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tasks.papers.clustmix.tangent_kernels import tangent_kernel

RNG = np.random.default_rng(4)
X = np.concatenate([RNG.standard_normal((4, 3)), np.zeros((1, 3))])
Y = np.concatenate([RNG.standard_normal((2, 3)), X[:1]])
WIDTH, DRAWS = 512, 60


def closed_form(x, y, *, depth, weight_std, bias_std):
    """Arc-cosine kernels of Cho and Saul (2009), one pair of rows at a time."""
    kernel = np.empty((len(x), len(y)))
    for i, u in enumerate(x):
        for j, v in enumerate(y):
            over = np.array([[u @ u, u @ v], [u @ v, v @ v]]) / len(u)
            over = weight_std**2 * over + bias_std**2
            tangent = over[0, 1]
            for _ in range(depth):
                size = np.sqrt(over[0, 0] * over[1, 1])
                angle = np.arccos(np.clip(over[0, 1] / size, -1.0, 1.0))
                moment = size * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2.0 * np.pi)
                slope = (np.pi - angle) / (2.0 * np.pi)
                over = np.array([[over[0, 0] / 2.0, moment], [moment, over[1, 1] / 2.0]])
                over = weight_std**2 * over + bias_std**2
                tangent = weight_std**2 * slope * tangent + over[0, 1]
            kernel[i, j] = tangent
    return kernel


@pytest.mark.parametrize("setting", [(0, 1.0, 0.0), (1, 1.0, 0.3), (2, 1.4, 0.1), (3, 2**0.5, 0.1)])
def test_a_fully_connected_kernel_is_the_closed_form(setting):
    scales = dict(zip(("depth", "weight_std", "bias_std"), setting, strict=True))
    with jax.enable_x64(True):
        found = tangent_kernel(**scales)(jnp.asarray(X), jnp.asarray(Y))
    np.testing.assert_allclose(found, closed_form(X, Y, **scales), rtol=1e-12)


def convolved(weights, images):
    """Network of one convolution of 3 x 3 and a dense output, in the NTK parameterisation."""
    filters, output = weights
    hidden = jax.lax.conv_general_dilated(
        images, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    hidden = jax.nn.relu(hidden / np.sqrt(9 * images.shape[-1])).reshape(len(images), -1)
    return hidden @ output / np.sqrt(hidden.shape[1])


def test_a_convolutional_kernel_is_that_of_wide_networks():
    """Mean of gradient products over networks of some width: its error bounds the difference."""
    images = RNG.standard_normal((3, 4, 5, 2)).astype(np.float32)
    found = tangent_kernel(depth=1, image=(4, 5, 2))(*2 * (images.reshape(3, -1),))

    @jax.jit
    def drawn(key):
        first, last = jax.random.split(key)
        weights = (
            jax.random.normal(first, (3, 3, 2, WIDTH)), jax.random.normal(last, (20 * WIDTH,))
        )  # fmt: skip
        gradients = jax.jacobian(convolved)(weights, images)
        return sum(jnp.einsum("iw,jw->ij", g.reshape(3, -1), g.reshape(3, -1)) for g in gradients)

    kernels = np.array([drawn(key) for key in jax.random.split(jax.random.key(0), DRAWS)])
    error = kernels.std(axis=0, ddof=1) / np.sqrt(DRAWS)
    assert (np.abs(found - kernels.mean(axis=0)) < 5.0 * error).all()
    assert error.max() < 0.01 * np.abs(found).max()  # a kernel of dense layers is far outside
    dense = tangent_kernel(depth=1)(*2 * (images.reshape(3, -1),))
    assert np.abs(dense - found).max() > 50.0 * error.max()


@pytest.mark.parametrize("image", [None, (3, 1, 1)])
def test_gradients_are_finite_and_right_at_coincident_points_and_at_the_origin(image):
    kernel = tangent_kernel(depth=2, weight_std=1.4, bias_std=0.1, image=image)

    @jax.jit
    def value(z, mask):
        return jnp.sum(mask * kernel(z, z))

    slope = jax.jit(jax.grad(value))
    with jax.enable_x64(True):
        z = jnp.asarray(np.random.default_rng(4).standard_normal((4, 3)))
        z = z.at[1].set(z[0]).at[3].set(0.0)
        assert jnp.all(jnp.isfinite(slope(z, jnp.ones((4, 4)))))
        shift = jnp.zeros_like(z).at[2, 1].set(1e-3)
        expected = (value(z + shift, jnp.eye(4)) - value(z - shift, jnp.eye(4))) / 2e-3
        np.testing.assert_allclose(slope(z, jnp.eye(4))[2, 1], expected, rtol=1e-4)
