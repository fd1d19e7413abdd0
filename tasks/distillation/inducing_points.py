"""Kernel inducing points: a few labelled points from which kernel ridge regression predicts.

Points and labels move by Adam along the loss of kernel ridge regression on batches of rows (Eq. 5
of the 3A paper, or Eq. 6 with alpha 0), inside the unit box. Slices of the rows have points of
their own; the labels of all points together are then solved for. Everything is in float64 and a
function of its arguments: on one kind of machine the same bytes.

Source: Nguyen, Chen and Lee, "Dataset meta-learning from kernel ridge-regression", 2020.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve
from threadpoolctl import threadpool_limits

from privacy.arrays import Floats, Floats32
from tasks.distillation.tangent_kernels import Kernel, tangent_kernel

RIDGE = 0.1
"""Ridge of the regression, in parts of the mean diagonal of the kernel of the points."""

_STEPS, _BATCH, _RATE = 200, 500, 0.02
_BLOCK, _JITTER = 200, 1e-9
_REPEATABLE: dict[str, dict[str, Any]] = {
    "cpu": {"xla_cpu_multi_thread_eigen": False},
    "gpu": {"xla_gpu_deterministic_ops": True, "xla_gpu_autotune_level": 0},
}

Slice = tuple[Floats32, Floats, int, tuple[int, ...]]
"""Rows (n, d) with labels (n, C), the number of their points, and a public seed of batches."""


@cache
def kernel_of_network() -> Kernel:
    """Return the kernel of one dense hidden layer; convolutions made points of images no better."""
    return tangent_kernel(depth=1, weight_std=2.0**0.5, bias_std=0.1)


def loss(points: Array, labels: Array, rows: Array, wanted: Array, *, kernel: Kernel) -> Array:
    """Return half the mean squared error, at rows, of ridge regression on the labelled points."""
    gram = kernel(points, points)
    factor = cho_factor(gram + ridge_of(gram), lower=True)
    found = kernel(rows, points) @ cho_solve(factor, labels)
    return 0.5 * jnp.mean(jnp.sum((wanted - found) ** 2, axis=1))


def ridge_of(gram: Any) -> Any:
    """Return the matrix that is added to the kernel of points with themselves."""
    return RIDGE * jnp.mean(jnp.diag(gram)) * jnp.eye(len(gram), dtype=gram.dtype)


def optimised(task: Slice) -> Floats:
    """Return points (p, d), between 0 and 1, that predict the labels of the rows.

    They start at rows whose labels have about the shares of all rows.
    """
    rows, labels, n_points, seed = task
    by_label = np.argsort(labels.argmax(axis=1), kind="stable")
    first = by_label[np.linspace(0, len(rows) - 1, n_points).round().astype(np.int64)]
    batches = np.random.default_rng(seed).integers(len(rows), size=(_STEPS, _BATCH))
    with _one_thread():
        start = (jnp.asarray(rows[first], jnp.float64), jnp.asarray(labels[first]))
        move = _descent(jax.default_backend())
        return np.asarray(move(start, (jnp.asarray(rows), jnp.asarray(labels)), batches))


def best_labels(points: Floats, *, rows: Floats32, labels: Floats) -> Floats:
    """Return the labels (p, C) of points (p, d) whose regression predicts the rows best.

    Their quadratic loss at all rows is minimised, with ridge times the regression's norm added.
    """
    with _one_thread():
        terms, solve = _solution(jax.default_backend())
        total = [np.zeros((len(points), n)) for n in (len(points), labels.shape[1])]
        for first in range(0, len(rows), _BLOCK):
            block = slice(first, first + _BLOCK)
            parts = terms(points, jnp.asarray(rows[block], jnp.float64), labels[block])
            total = [whole + np.asarray(part) for whole, part in zip(total, parts, strict=True)]
        return np.asarray(solve(points, *total))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in float64; with several threads the last bits depend on the machine."""
    with jax.enable_x64(True), threadpool_limits(1, user_api="blas"):
        yield


@cache
def _solution(device: str) -> tuple[Callable[..., Any], Callable[..., Array]]:
    kernel = kernel_of_network()

    def terms(points: Array, rows: Array, labels: Array) -> tuple[Array, Array]:
        crossed = kernel(rows, points)
        return crossed.T @ crossed, crossed.T @ labels

    def solve(points: Array, products: Array, right: Array) -> Any:
        gram = kernel(points, points)
        ridge = ridge_of(gram)
        normal = products + ridge @ gram
        floor = _JITTER * jnp.mean(jnp.diag(normal)) * jnp.eye(len(normal))
        return (gram + ridge) @ jnp.linalg.solve(normal + floor, right)

    options = _REPEATABLE.get(device)
    return jax.jit(terms, compiler_options=options), jax.jit(solve, compiler_options=options)


@cache
def _descent(device: str) -> Any:
    kernel = kernel_of_network()

    def move(start: Any, targets: Any, batches: Array) -> Any:
        rows, labels = targets
        adam = optax.adam(optax.cosine_decay_schedule(_RATE, len(batches)))

        def step(carry: Any, batch: Array) -> tuple[Any, None]:
            labelled, moments = carry
            some, wanted = rows[batch].astype(jnp.float64), labels[batch]
            gradient = jax.grad(lambda one: loss(one[0], one[1], some, wanted, kernel=kernel))(
                labelled
            )
            updates, moments = adam.update(gradient, moments)
            points, soft = optax.apply_updates(labelled, updates)
            return ((jnp.clip(points, 0.0, 1.0), soft), moments), None

        (ended, _), _ = jax.lax.scan(step, (start, adam.init(start)), batches)
        return ended[0]

    return jax.jit(move, compiler_options=_REPEATABLE.get(device))
