"""Kernel inducing points: a few labelled points on which kernel ridge regression predicts well.

Flaw C5: the loss reads the raw rows at every step.

References
----------
Nguyen, Chen and Lee (2020), "Dataset meta-learning from kernel ridge-regression".
3A paper, Eq. 5, Eq. 6 and Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.scipy.linalg import cho_factor, cho_solve
from numpy.typing import ArrayLike, NDArray

from privacy.arrays import Floats

Loss: TypeAlias = Callable[..., Array]


def centred_one_hot(labels: NDArray[np.integer[Any]], n_classes: int) -> Floats:
    """Label vectors ``e_c - 1/C`` of shape (n, C), each of norm ``sqrt(1 - 1/C)``."""
    return np.eye(n_classes)[np.asarray(labels, dtype=np.int64)] - 1.0 / n_classes


def ridge_solve(gram: Array, labels: Array, ridge: float) -> Array:
    """Solve ``(gram + ridge I) x = labels`` for a positive semi-definite gram of shape (s, s)."""
    factor = cho_factor(gram + ridge * jnp.eye(gram.shape[0], dtype=gram.dtype), lower=True)
    return cho_solve(factor, labels)


def raw_loss(
    points: Array,
    labels: Array,
    start_points: Array,
    targets: Array,
    target_labels: Array,
    support_mask: Array,
    target_mask: Array,
    *,
    kernel: Callable[[Any, Any], Array],
    alpha: float,
    ridge: float,
) -> Array:
    r"""Weighted loss of Eq. 6 on raw target rows.

    .. math:: \alpha \frac{\|X - C\|^2}{\|C\|^2}
       + (1-\alpha) \tfrac12 \| Y_t - K_{ts} (K_{ss} + \lambda I)^{-1} Y_s \|^2

    The support are points X (s, d) with label vectors Y_s (s, C), held to centroids C (s, d);
    targets are raw rows (t, d) with label vectors (t, C). Masks (s,) and (t,) are 1 for a real
    entry, 0 for padding that must not count: slices of different size share one compiled program.
    The ridge lambda, above 0, is absolute; alpha in [0, 1] is the weight of staying at the
    centroids. (The paper's text has its meaning reversed; Eq. 6 is followed.)

    Privacy
    -------
    Reads raw rows at every step: neither the loss nor the optimum is differentially private.
    """
    self_kernel = kernel(points, points) * support_mask[:, None] * support_mask[None, :]
    self_kernel = self_kernel + jnp.diag(1.0 - support_mask)
    cross_kernel = kernel(targets, points) * support_mask[None, :]
    solved = ridge_solve(self_kernel, labels * support_mask[:, None], ridge)
    residual = (target_labels - cross_kernel @ solved) * target_mask[:, None]
    shift = (points - start_points) * support_mask[:, None]
    fidelity = jnp.sum(shift**2) / jnp.sum((start_points * support_mask[:, None]) ** 2)
    return alpha * fidelity + (1.0 - alpha) * 0.5 * jnp.sum(residual**2)


def optimise(
    loss: Loss,
    start: Floats,
    data: tuple[ArrayLike, ...] = (),
    *,
    steps: int,
    learning_rate: float,
    lower: ArrayLike = 0.0,
    upper: ArrayLike = 1.0,
    tolerance: float = 0.0,
) -> Floats:
    """Minimise ``loss(points, *data)`` over points (s, d) by Adam, inside a box.

    Runs in float64 on the default jax device, as one compiled program; calls with the same `loss`
    object and the same shapes reuse it. The points are projected to the box after every step. A
    step that changes the loss by no more than the share `tolerance` of its size is the last one (0
    takes them all), and so is one to a loss that is not finite. Returned are the best points met,
    the start included.
    """
    with jax.enable_x64(True):
        to_float64 = partial(jnp.asarray, dtype=jnp.float64)
        box, arrays = (to_float64(lower), to_float64(upper)), tuple(map(to_float64, data))
        best = _descend(loss, to_float64(start), arrays, box, steps, learning_rate, tolerance)
        return np.asarray(best)


class _State(NamedTuple):
    """Loop state of Adam: where it is, and the best it has met."""

    points: Array
    value: Array
    gradient: Array
    adam: Any
    previous: Array
    best: Array
    best_value: Array
    step: Array


# One thread for a product: with several, its last bits would depend on the machine and on whether a
# worker or the run itself computes it.
_ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}


@partial(jax.jit, static_argnums=0, compiler_options=_ONE_THREAD)
def _descend(
    loss: Loss,
    start: Array,
    data: tuple[Array, ...],
    box: tuple[Array, Array],
    steps: Array,
    learning_rate: Array,
    tolerance: Array,
) -> Array:
    adam = optax.adam(learning_rate)
    value_and_gradient = jax.value_and_grad(lambda points: loss(points, *data))

    def unfinished(state: _State) -> Array:
        change = jnp.abs(state.previous - state.value)
        moving = (tolerance <= 0.0) | (change > tolerance * jnp.abs(state.value))
        return (state.step < steps) & jnp.isfinite(state.value) & moving

    def advance(state: _State) -> _State:
        updates, moments = adam.update(state.gradient, state.adam, state.points)
        points = jnp.clip(optax.apply_updates(state.points, updates), *box)
        value, gradient = value_and_gradient(points)
        better = value < state.best_value
        best = jnp.where(better, points, state.best)
        best_value = jnp.where(better, value, state.best_value)
        step = state.step + 1
        return _State(points, value, gradient, moments, state.value, best, best_value, step)

    start = jnp.clip(start, *box)
    value, gradient = value_and_gradient(start)
    before, step = jnp.full_like(value, jnp.inf), jnp.zeros((), dtype=jnp.int32)
    first = _State(start, value, gradient, adam.init(start), before, start, value, step)
    best: Array = jax.lax.while_loop(unfinished, advance, first).best
    return best
