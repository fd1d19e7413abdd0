"""Kernel inducing points: a few labelled points from which kernel ridge regression predicts.

Points and labels move by Adam along the loss of kernel ridge regression on batches of rows (Eq. 5
of the 3A paper, which is Eq. 6 with alpha 0), inside the unit box. Slices of the rows have points
of their own, so that each is a task; the labels of all points together are then solved for.

Everything is in float64 and a function of its arguments: on one kind of machine the same bytes.

Source: Nguyen, Chen and Lee, "Dataset meta-learning from kernel ridge-regression", 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve
from numpy.typing import NDArray

from privacy.arrays import Floats
from tasks.distillation.tangent_kernels import Kernel, tangent_kernel

RIDGE = 0.1
"""Ridge of the regression, in parts of the mean diagonal of the kernel of the points."""

STEPS, BATCH, RATE = 200, 500, 0.02

_BLOCK, _JITTER = 200, 1e-9
_WEIGHT_STD, _BIAS_STD = 2.0**0.5, 0.1
_REPEATABLE = {
    # One thread a product: with several, the last bits depend on the number of processors.
    "cpu": {"xla_cpu_multi_thread_eigen": False},
    "gpu": {"xla_gpu_deterministic_ops": True, "xla_gpu_autotune_level": 0},
}

Image = tuple[int, int, int] | None
"""Rows, columns and channels of images, whose kernel is convolutional; else fully connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Rows (n, d), in units of `unit`, with labels (n, C), and how many points stand for them.

    The points begin as rows, spread over the labels as the rows are; with the seed, which is
    public, come the rows of each step.
    """

    rows: NDArray[np.uint8]
    unit: float
    labels: Floats
    n_points: int
    seed: tuple[int, ...]
    image: Image = None


def platform(_: object = None) -> str:
    """Return the kind of device that jax computes on here."""
    return str(jax.default_backend())


def loss(points: Array, labels: Array, rows: Array, wanted: Array, *, kernel: Kernel) -> Array:
    """Return half the mean squared error, at rows, of ridge regression on the labelled points."""
    gram = kernel(points, points)
    factor = cho_factor(gram + _ridge(gram), lower=True)
    found = kernel(rows, points) @ cho_solve(factor, labels)
    return 0.5 * jnp.mean(jnp.sum((wanted - found) ** 2, axis=1))


def optimised(task: Slice) -> Floats:
    """Return the points (n_points, d) of a slice, moved to where they predict its rows best."""
    n_rows = len(task.rows)
    by_label = np.argsort(task.labels.argmax(axis=1), kind="stable")
    first = by_label[np.linspace(0, n_rows - 1, task.n_points).round().astype(np.int64)]
    batches = np.random.default_rng(task.seed).integers(n_rows, size=(STEPS, min(BATCH, n_rows)))
    with jax.enable_x64(True):
        rows, labels = jnp.asarray(task.rows), jnp.asarray(task.labels)
        start = (rows[first] * task.unit, labels[first])
        move = _descent(task.image, platform())
        return np.asarray(move(start, rows, labels, jnp.asarray(batches), task.unit))


def best_labels(points: Floats, rows: Slice) -> Floats:
    """Return the labels (p, C) of points (p, d) whose regression predicts the rows best.

    The loss at all rows is quadratic in the labels. It is minimised with the norm of the regression
    as a penalty, weighted by the ridge.
    """
    with jax.enable_x64(True):
        terms, at = _normal_terms(rows.image, platform()), jnp.asarray(points)
        products, right = np.zeros((len(at), len(at))), np.zeros((len(at), rows.labels.shape[1]))
        for first in range(0, len(rows.rows), _BLOCK):
            block = slice(first, first + _BLOCK)
            product, part = terms(at, rows.rows[block] * rows.unit, rows.labels[block])
            products, right = products + np.asarray(product), right + np.asarray(part)
        gram = np.asarray(jax.jit(kernel_of(rows.image))(at, at))
    ridge = np.asarray(_ridge(gram))
    normal = products + ridge[0, 0] * gram
    normal += _JITTER * np.trace(normal) / len(normal) * np.eye(len(normal))
    solved: Floats = (gram + ridge) @ np.linalg.solve(normal, right)
    return solved


@cache
def kernel_of(image: Image) -> Kernel:
    """Return the tangent kernel of a network with one hidden layer."""
    return tangent_kernel(depth=1, weight_std=_WEIGHT_STD, bias_std=_BIAS_STD, image=image)


def _ridge(gram: Any) -> Any:
    return RIDGE * jnp.mean(jnp.diag(gram)) * jnp.eye(len(gram), dtype=gram.dtype)


@cache
def _normal_terms(image: Image, device: str) -> Callable[..., tuple[Array, Array]]:
    kernel = kernel_of(image)

    def terms(points: Array, rows: Array, labels: Array) -> tuple[Array, Array]:
        crossed = kernel(rows, points)
        return crossed.T @ crossed, crossed.T @ labels

    return jax.jit(terms, compiler_options=_REPEATABLE.get(device))


@cache
def _descent(image: Image, device: str) -> Callable[..., Array]:
    kernel = kernel_of(image)

    def move(start: Any, rows: Array, labels: Array, batches: Array, unit: Array) -> Array:
        adam = optax.adam(optax.cosine_decay_schedule(RATE, len(batches)))

        def step(carry: Any, batch: Array) -> tuple[Any, None]:
            labelled, moments = carry
            gradient = jax.grad(
                lambda one: loss(*one, rows[batch] * unit, labels[batch], kernel=kernel)
            )(labelled)
            updates, moments = adam.update(gradient, moments)
            points, own = optax.apply_updates(labelled, updates)
            return ((jnp.clip(points, 0.0, 1.0), own), moments), None

        (ended, _), _ = jax.lax.scan(step, (start, adam.init(start)), batches)
        points: Array = ended[0]
        return points

    return jax.jit(move, compiler_options=_REPEATABLE.get(device))
