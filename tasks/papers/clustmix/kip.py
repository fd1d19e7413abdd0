"""Kernel inducing points: a few labelled points on which kernel ridge regression predicts well.

The descent, as one program compiled by jax; `tasks.papers.clustmix.raw_kip` has the loss.

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
from jax.scipy.linalg import cho_factor, cho_solve
from numpy.typing import ArrayLike

from tasks.papers.clustmix.support_set import OptimisedSupport, SupportSet

Array: TypeAlias = jax.Array
Loss: TypeAlias = Callable[..., Array]


def ridge_solve(gram: Array, labels: Array, ridge: float) -> Array:
    """Solve ``(gram + ridge I) x = labels`` for a positive semi-definite gram of shape (s, s)."""
    factor = cho_factor(gram + ridge * jnp.eye(gram.shape[0], dtype=gram.dtype), lower=True)
    return cho_solve(factor, labels)


def optimise(
    loss: Loss,
    start: SupportSet,
    data: tuple[Any, ...] = (),
    *,
    steps: int,
    learning_rate: float,
    lower: ArrayLike,
    upper: ArrayLike,
    tolerance: float = 0.0,
    learn_labels: bool = False,
) -> OptimisedSupport:
    """Minimise a loss over the support set by Adam, inside a box.

    Runs in float64 on the default jax device, as one compiled program. Repeated calls with the
    same `loss` object and the same shapes reuse it.

    The loss is hashable; ``loss(support, *data)`` returns a scalar. At least one step is taken, of
    a size above 0 in units of the points, which are projected to their box, scalars or arrays (d,),
    after every step. It stops once the loss changes by no more than the share `tolerance` of its
    size between two steps; 0 always takes every step. Label vectors may be optimised too (Algorithm
    1 leaves it open).

    Returned is the best support set met, the start included. A step to a loss that is not finite
    ends the run, so the result is always usable.
    """
    if steps < 1:
        raise ValueError(f"expected 1 or more steps, found {steps}")
    if not learning_rate > 0.0:
        raise ValueError(f"expected a learning_rate above 0, found {learning_rate}")
    if not tolerance >= 0.0:
        raise ValueError(f"expected a tolerance of 0 or more, found {tolerance}")
    if not np.all(np.asarray(lower) <= np.asarray(upper)):
        raise ValueError("expected every lower bound of the box at or below its upper bound")
    with jax.enable_x64(True):
        to_float64 = partial(jax.tree.map, lambda leaf: jnp.asarray(leaf, dtype=jnp.float64))
        best, start_loss, best_loss, taken = _descend(
            loss,
            learn_labels,
            to_float64(SupportSet(*start)),
            to_float64(tuple(data)),
            jnp.asarray(lower, dtype=jnp.float64),
            jnp.asarray(upper, dtype=jnp.float64),
            steps,
            learning_rate,
            tolerance,
        )
        return OptimisedSupport(
            support=SupportSet(*(np.asarray(leaf) for leaf in best)),
            start_loss=float(start_loss),
            loss=float(best_loss),
            steps_taken=int(taken),
        )


class _State(NamedTuple):
    """Loop state of Adam: where it is, and the best it has met."""

    support: SupportSet
    value: Array
    gradient: SupportSet
    adam: Any
    previous: Array
    best: SupportSet
    best_value: Array
    step: Array


# One thread for a product: with several, its last bits would depend on the machine and on whether a
# worker or the run itself computes it.
_ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}


@partial(jax.jit, static_argnums=(0, 1), compiler_options=_ONE_THREAD)
def _descend(
    loss: Loss,
    learn_labels: bool,
    start: SupportSet,
    data: tuple[Array, ...],
    lower: Array,
    upper: Array,
    steps: Array,
    learning_rate: Array,
    tolerance: Array,
) -> tuple[SupportSet, Array, Array, Array]:
    adam = optax.adam(learning_rate)
    value_and_gradient = jax.value_and_grad(lambda support: loss(support, *data))

    def project(support: SupportSet) -> SupportSet:
        return support._replace(points=jnp.clip(support.points, lower, upper))

    def unfinished(state: _State) -> Array:
        change = jnp.abs(state.previous - state.value)
        moving = (tolerance <= 0.0) | (change > tolerance * jnp.abs(state.value))
        return (state.step < steps) & jnp.isfinite(state.value) & moving

    def advance(state: _State) -> _State:
        updates, adam_state = adam.update(state.gradient, state.adam, state.support)
        if not learn_labels:
            updates = updates._replace(labels=jnp.zeros_like(updates.labels))
        support = project(optax.apply_updates(state.support, updates))
        value, gradient = value_and_gradient(support)
        better = value < state.best_value
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), support, state.best)
        best_value = jnp.where(better, value, state.best_value)
        return _State(
            support, value, gradient, adam_state, state.value, best, best_value, state.step + 1
        )

    start = project(start)
    value, gradient = value_and_gradient(start)
    state = _State(
        start,
        value,
        gradient,
        adam.init(start),
        jnp.full_like(value, jnp.inf),
        start,
        value,
        jnp.zeros((), dtype=jnp.int32),
    )
    final = jax.lax.while_loop(unfinished, advance, state)
    return final.best, value, final.best_value, final.step
