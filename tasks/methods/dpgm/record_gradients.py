"""Gradients of records in compiled blocks, each record by itself."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from privacy.arrays import AnyFloats, Floats, Floats32, Integers

ROWS_AT_ONCE = 64
"""Records of one compiled call. Fewer are padded, more are split: one program for any number."""

# One thread: the last bits do not depend on the machine or on what else it does.
ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}

# A clipped gradient is shortened by this factor, so that the rounding of its norm and of the
# products cannot leave it above the clipping norm: errors of a sum of P squares in float64 stay
# below P * 2**-53, far from 2**-29 for any network that fits in memory.
_ROUNDING_MARGIN = 1.0 - 2.0**-29


class ClippedSum(NamedTuple):
    """Private sum of clipped gradients (P,), on the grid, and norms (n,); may be infinite."""

    total: Integers
    norms: Floats


class Block(NamedTuple):
    """A padded block of vectors and weights, of which `n_rows` count, with norm and scale."""

    vectors: Array
    weights: Array | Floats
    n_rows: Array | int
    l2_clip_norm: Array | float
    scale: Array | float


def sum_of_clipped(gradient: Callable[[Array], Any], block: Block) -> tuple[Array, Array]:
    """Sum over the first rows of a padded block; the traced part of a `clipped_sum`.

    The loop takes one record at a time. A product over the whole batch may round a record by where
    it lies and by how many there are; then one patient, by coming or going, would change the last
    bits of what others contribute, and no proof of sensitivity would hold. The block has always
    `ROWS_AT_ONCE` rows, because XLA may compile a block of another size differently, and the number
    of rounds is not known to the compiler: it is one program for any number of records.

    `gradient` maps a record (D,) to a tree of P float32 values. Only `n_rows` rows count. Returns
    the total (P,), of whole numbers, and the norms (rows,); see `GenerativeNetwork.clipped_sum`.
    """
    vectors, weights, n_rows, l2_clip_norm, scale = block

    def add(number: Array, carried: tuple[Any, Array]) -> tuple[Any, Array]:
        total, norms = carried
        exact = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), gradient(vectors[number]))
        norm = jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(exact)))
        finite = jnp.isfinite(norm)
        share = _ROUNDING_MARGIN * weights[number] * jnp.minimum(1.0, l2_clip_norm / norm) * scale
        total = jax.tree.map(
            lambda so_far, leaf: so_far + jnp.where(finite, jnp.trunc(leaf * share), 0.0),
            total,
            exact,
        )
        return total, norms.at[number].set(jnp.where(finite, norm, jnp.inf))

    shapes = jax.eval_shape(gradient, vectors[0])
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, dtype=jnp.float64), shapes)
    first = (zeros, jnp.zeros(len(vectors), dtype=jnp.float64))
    total, norms = jax.lax.fori_loop(0, n_rows, add, first)
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(total)]), norms


def padded_blocks(vectors: AnyFloats) -> Iterator[tuple[slice, Floats32]]:
    """Yield slices of `ROWS_AT_ONCE` vectors with these, the last ones padded with zeros."""
    for start in range(0, len(vectors), ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, len(vectors)))
        padded = np.zeros((ROWS_AT_ONCE, vectors.shape[1]), dtype=np.float32)
        padded[: rows.stop - rows.start] = vectors[rows]
        yield rows, padded
