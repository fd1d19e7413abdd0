"""Neural tangent kernels of fully connected ReLU networks of infinite width.

Two views of one kernel are kept here so that each can be checked against the other: the closed
form, fast and differentiable everywhere, and the kernel as ``neural_tangents`` computes it. The
finite random features that approximate it are in `tasks.measurement.random_ntk`.

This is the only module that imports ``neural_tangents``, and it does so only when asked.

References
----------
Jacot, Gabriel and Hongler (2018), "Neural tangent kernel: convergence and generalization in neural
networks". Cho and Saul (2009), "Kernel methods for deep learning" (arc-cosine kernels).
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = jax.Array
Kernel: TypeAlias = Callable[[Array, Array], Array]

# Points whose relative squared sine is below this are taken as coincident: the kernel has a kink
# there, and the derivative of its square root would be rounding error divided by almost zero.
_COINCIDENT = 1e-14


@dataclass(frozen=True, slots=True, kw_only=True)
class FullyConnectedNtk:
    """Closed-form neural tangent kernel of a fully connected ReLU network of infinite width.

    The network is ``Dense, Relu`` repeated `depth` times, then ``Dense(1)``, in the NTK
    parameterisation: pre-activations are ``weight_std / sqrt(width) * W h + bias_std * b`` with
    standard normal W and b.

    Parameters
    ----------
    depth
        Number of hidden layers, at least 0 (0 is the linear kernel).
    weight_std
        Standard deviation of the weights, above 0.
    bias_std
        Standard deviation of the biases, at least 0.

    Raises
    ------
    ValueError
        If a parameter is outside its range.
    """

    depth: int
    weight_std: float = 1.0
    bias_std: float = 0.0

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ValueError(f"expected a depth of 0 or more hidden layers, found {self.depth}")
        if not self.weight_std > 0.0:
            raise ValueError(f"expected weight_std above 0, found {self.weight_std}")
        if not self.bias_std >= 0.0:
            raise ValueError(f"expected bias_std of 0 or more, found {self.bias_std}")

    def __call__(self, x: Array, y: Array) -> Array:
        """Kernel matrix of shape (n, m) between x of shape (n, d) and y of shape (m, d)."""
        weight_variance, bias_variance = self.weight_std**2, self.bias_std**2
        n_inputs = x.shape[1]

        def dense(covariance: Array) -> Array:
            return weight_variance * covariance + bias_variance

        covariance = dense(x @ y.T / n_inputs)
        variance_x = dense(jnp.sum(x * x, axis=1) / n_inputs)
        variance_y = dense(jnp.sum(y * y, axis=1) / n_inputs)
        tangent = covariance
        for _ in range(self.depth):
            relu, derivative = _relu_expectations(covariance, variance_x, variance_y)
            covariance = dense(relu)
            variance_x, variance_y = dense(variance_x / 2.0), dense(variance_y / 2.0)
            tangent = weight_variance * derivative * tangent + covariance
        return tangent


def _relu_expectations(
    covariance: Array, variance_x: Array, variance_y: Array
) -> tuple[Array, Array]:
    """Return E[relu(u) relu(v)] and E[relu'(u) relu'(v)] for Gaussian (u, v).

    The angle comes from ``arctan2`` and not ``arccos``, which keeps full precision near coincident
    points and has a finite derivative there.
    """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipConnectionNtk:
    """Normalised tangent kernel of one hidden ReLU layer in parallel with a linear skip.

    ``k(x, y) = skip_weight * c + (1 - skip_weight) * kappa(c)`` with c the cosine of x and y and
    kappa the tangent kernel of one hidden layer on unit vectors, kappa(1) = 1. It is the kernel
    that `tasks.measurement.random_ntk.RandomNtkFeatures` approximates.

    Parameters
    ----------
    skip_weight
        Share of the linear branch, in [0, 1].
    """

    skip_weight: float

    def __post_init__(self) -> None:
        _check_skip_weight(self.skip_weight)

    def __call__(self, x: Array, y: Array) -> Array:
        """Kernel matrix of shape (n, m) between x of shape (n, d) and y of shape (m, d)."""
        x, y = _unit_rows(x), _unit_rows(y)
        hidden = FullyConnectedNtk(depth=1)(x, y) * x.shape[1]
        return self.skip_weight * (x @ y.T) + (1.0 - self.skip_weight) * hidden


def neural_tangents_kernel(
    *,
    depth: int,
    weight_std: float = 1.0,
    bias_std: float = 0.0,
    skip_weight: float | None = None,
) -> Kernel:
    """Tangent kernel of a fully connected ReLU network as ``neural_tangents.stax`` computes it.

    Parameters
    ----------
    depth
        Number of hidden layers, at least 0.
    weight_std, bias_std
        Standard deviations of weights and biases.
    skip_weight
        When given, a linear branch runs beside the network
        (``FanOut -> (Dense, network) -> FanInSum``); the kernel is then ``skip_weight`` times the
        linear kernel plus ``1 - skip_weight`` times that of the network. Not normalised.

    Returns
    -------
    Kernel
        Function of x (n, d) and y (m, d) that returns the (n, m) kernel matrix.
    """
    stax = _import_stax()

    def network(last_weight_std: float) -> Any:
        layers: list[Any] = []
        for _ in range(depth):
            layers += [_dense(stax, weight_std, bias_std), stax.Relu()]
        return stax.serial(*layers, _dense(stax, last_weight_std, bias_std))

    if skip_weight is None:
        _, _, kernel = network(weight_std)
    else:
        _check_skip_weight(skip_weight)
        _, _, kernel = stax.serial(
            stax.FanOut(2),
            stax.parallel(
                _dense(stax, float(np.sqrt(skip_weight)), 0.0),
                network(float(np.sqrt(1.0 - skip_weight)) * weight_std),
            ),
            stax.FanInSum(),
        )

    def tangent_kernel(x: Array, y: Array) -> Array:
        with warnings.catch_warnings():
            # The library asks for a dense layer in each branch of a sum, which there is.
            warnings.filterwarnings("ignore", message="`FanIn` layers", category=UserWarning)
            return cast("Array", kernel(x, y, "ntk"))

    return tangent_kernel


def _dense(stax: Any, weight_std: float, bias_std: float) -> Any:
    # The width does not enter the kernel of the infinite network.
    return stax.Dense(1, W_std=weight_std, b_std=bias_std if bias_std > 0.0 else None)


def _import_stax() -> Any:
    """Import ``neural_tangents.stax`` 0.6.5 under jax 0.6 or newer and without TensorFlow.

    The library looks for names where older jax releases had them, and imports an experimental
    module that needs TensorFlow and is not used here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import jax.core
        import jax.extend.core as extended
        from jax.interpreters import ad

        for name in ("Jaxpr", "JaxprEqn", "Literal", "Primitive", "Var"):
            if not hasattr(jax.core, name):
                setattr(jax.core, name, getattr(extended, name))
        if not hasattr(ad, "zeros_like_p"):
            # Only a rule of the empirical kernel is registered under this name.
            ad.zeros_like_p = extended.Primitive("zeros_like_removed")  # type: ignore[attr-defined]
        try:
            jax_util = importlib.import_module("jax.util")
        except ImportError:
            jax_util = sys.modules["jax.util"] = types.ModuleType("jax.util")
        for name, function in (("safe_map", _safe_map), ("safe_zip", _safe_zip)):
            if not hasattr(jax_util, name):
                setattr(jax_util, name, function)
        sys.modules.setdefault(
            "neural_tangents.experimental", types.ModuleType("neural_tangents.experimental")
        )
        from neural_tangents import stax
    return stax


def _safe_map(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    return [function(*items) for items in _safe_zip(*arguments)]


def _safe_zip(*arguments: Any) -> list[tuple[Any, ...]]:
    return list(zip(*map(list, arguments), strict=True))


def _unit_rows(x: Array) -> Array:
    """Divide every row by its norm; a row of zeros stays zero and has derivative zero."""
    squares = jnp.sum(x * x, axis=1, keepdims=True)
    positive = squares > 0.0
    return jnp.where(positive, x / jnp.sqrt(jnp.where(positive, squares, 1.0)), 0.0)


def _check_skip_weight(skip_weight: float) -> None:
    if not 0.0 <= skip_weight <= 1.0:
        raise ValueError(f"expected a skip_weight in [0, 1], found {skip_weight}")
