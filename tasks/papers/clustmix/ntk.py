"""Neural tangent kernel of a fully connected ReLU network of infinite width, in closed form.

References
----------
Jacot, Gabriel and Hongler (2018), "Neural tangent kernel: convergence and generalization in neural
networks". Cho and Saul (2009), "Kernel methods for deep learning" (arc-cosine kernels).
"""

import jax.numpy as jnp
from jax import Array

# Points whose relative squared sine is below this are taken as coincident: the kernel has a kink
# there, and the derivative of its square root would be rounding error divided by almost zero.
_COINCIDENT = 1e-14


def tangent_kernel(
    x: Array, y: Array, *, depth: int, weight_std: float = 1.0, bias_std: float = 0.0
) -> Array:
    """Kernel matrix (n, m) of x (n, d) and y (m, d); linear for a `depth` of 0.

    The network is ``Dense, Relu`` repeated `depth` times, then ``Dense(1)``, in the NTK
    parameterisation: ``weight_std / sqrt(width) * W h + bias_std * b`` with standard normal W and
    b.
    """
    weight_variance, bias_variance = weight_std**2, bias_std**2
    n_inputs = x.shape[1]

    def dense(covariance: Array) -> Array:
        return weight_variance * covariance + bias_variance

    covariance = dense(x @ y.T / n_inputs)
    variance_x = dense(jnp.sum(x * x, axis=1) / n_inputs)
    variance_y = dense(jnp.sum(y * y, axis=1) / n_inputs)
    tangent = covariance
    for _ in range(depth):
        relu, derivative = _relu_expectations(covariance, variance_x, variance_y)
        covariance = dense(relu)
        variance_x, variance_y = dense(variance_x / 2.0), dense(variance_y / 2.0)
        tangent = weight_variance * derivative * tangent + covariance
    return tangent


def _relu_expectations(
    covariance: Array, variance_x: Array, variance_y: Array
) -> tuple[Array, Array]:
    """Return E[relu(u) relu(v)] and E[relu'(u) relu'(v)] for Gaussian (u, v)."""
    product = variance_x[:, None] * variance_y[None, :]
    gap = product - covariance**2
    apart = gap > _COINCIDENT * product
    sine = jnp.where(apart, jnp.sqrt(jnp.where(apart, gap, 1.0)), 0.0)
    angle = jnp.where(
        product > 0.0, jnp.arctan2(sine, jnp.where(product > 0.0, covariance, 1.0)), 0.0
    )
    relu = (sine + (jnp.pi - angle) * covariance) / (2.0 * jnp.pi)
    derivative = (jnp.pi - angle) / (2.0 * jnp.pi)
    return relu, derivative
