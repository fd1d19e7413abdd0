"""Visible units of a generative network: Bernoulli numbers and categorical blocks."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from privacy.arrays import AnyFloats, Floats, Integers
from tasks.measurement.vectors import Block

MEAN_MARGIN = 1e-4
"""A given mean is kept this far from 0 and 1: a level never seen stays possible."""

_LEAST_EXPECTED = 1e-6


@dataclass(frozen=True, slots=True)
class VisibleUnits:
    """Distribution of a vector given real scores (logits), one per coordinate.

    "binary" and "unit" coordinates are Bernoulli, a number in [0, 1] being taken as the probability
    of a 1; a "one_hot" block is one categorical unit (softmax). The blocks are those of
    `tasks.measurement.vectors.VectorMap`, which cover the coordinates in order.
    """

    blocks: tuple[Block, ...]

    @property
    def width(self) -> int:
        """Number D of coordinates."""
        return self.blocks[-1].stop

    def log_likelihood(self, scores: Array, vector: Array) -> Array:
        """Log-likelihood of one vector of shape (D,) under scores of shape (D,)."""
        normaliser = jax.nn.softplus(scores)
        if self._has_one_hot:
            # A vector holds one 1 per one-hot block, so the block's normaliser counts once.
            normaliser = jnp.where(self._one_hot, vector * self._log_total(scores), normaliser)
        return jnp.sum(vector * scores - normaliser)

    def probabilities(self, scores: Array) -> Array:
        """Return the expected vector of shape (D,) under scores of shape (D,)."""
        expected = jax.nn.sigmoid(scores)
        if self._has_one_hot:
            levels = jnp.exp(jnp.minimum(scores - self._log_total(scores), 0.0))
            expected = jnp.where(self._one_hot, levels, expected)
        return expected

    def draw(self, key: Array, scores: Array) -> Array:
        """Draw one vector of zeros and ones, shape (D,), under scores of shape (D,)."""
        drawn = jax.random.uniform(key, scores.shape, scores.dtype) < jax.nn.sigmoid(scores)
        if self._has_one_hot:
            # The largest of scores with Gumbel noise falls on a level with its probability.
            noisy = scores + jax.random.gumbel(
                jax.random.fold_in(key, 1), scores.shape, scores.dtype
            )
            position = jnp.arange(self.width)
            first = jnp.where(noisy == self._largest(noisy), position, self.width)
            chosen = position == self._spread(
                jax.ops.segment_min(first, self._block_of, len(self.blocks))
            )
            drawn = jnp.where(self._one_hot, chosen, drawn)
        return drawn.astype(scores.dtype)

    def scores_of(self, mean: AnyFloats) -> Floats:
        """Scores under which the expected vector is `mean`, float64 of shape (D,)."""
        inner = np.clip(np.asarray(mean, dtype=np.float64), MEAN_MARGIN, 1.0 - MEAN_MARGIN)
        return np.where(self._one_hot, np.log(inner), np.log(inner) - np.log1p(-inner))

    def correction(self, scores: Array, expected: Array) -> Array:
        """Step of biases (D,) from expected vectors to wanted scores; exact without weights."""
        inner = jnp.clip(expected, _LEAST_EXPECTED, 1.0 - _LEAST_EXPECTED)
        return scores - jnp.where(self._one_hot, jnp.log(inner), jnp.log(inner) - jnp.log1p(-inner))

    def rounded(
        self, rng: np.random.Generator, expected: Floats, *, keep_numbers: bool = True
    ) -> Floats:
        """Draw zeros and ones of mean `expected` (n, D), one 1 of a "one_hot" block."""
        coins = rng.random(expected.shape)
        drawn = (coins < expected).astype(np.float64)
        for block in self.blocks:
            part, width = slice(block.start, block.stop), block.stop - block.start
            if block.kind == "one_hot":
                total = np.cumsum(expected[:, part], axis=1)
                level = (coins[:, part][:, :1] * total[:, -1:] >= total).sum(axis=1)
                drawn[:, part] = np.eye(width)[np.minimum(level, width - 1)]
            elif block.kind == "unit" and keep_numbers:
                drawn[:, part] = expected[:, part]
        return drawn

    @property
    def _has_one_hot(self) -> bool:
        return any(block.kind == "one_hot" for block in self.blocks)

    @property
    def _one_hot(self) -> NDArray[np.bool_]:
        widths = [block.stop - block.start for block in self.blocks]
        return np.repeat([block.kind == "one_hot" for block in self.blocks], widths)

    @property
    def _block_of(self) -> Integers:
        widths = [block.stop - block.start for block in self.blocks]
        return np.repeat(np.arange(len(self.blocks)), widths)

    def _spread(self, of_blocks: Array) -> Array:
        return of_blocks[self._block_of]

    def _largest(self, scores: Array) -> Array:
        return self._spread(jax.ops.segment_max(scores, self._block_of, len(self.blocks)))

    def _log_total(self, scores: Array) -> Array:
        """Log of the sum of exponentials of each coordinate's block, shape (D,)."""
        largest = jax.lax.stop_gradient(self._largest(scores))
        total = jax.ops.segment_sum(jnp.exp(scores - largest), self._block_of, len(self.blocks))
        return largest + self._spread(jnp.log(total))
