"""Generative networks: what the training of one needs, and what all of them have in common.

A network is a public object: its settings and, for a persistent chain, a state that is a function
of released parameters and public seeds. Private are only the vectors handed to `clipped_sum`.

Source: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), sections 3.1 and 3.2.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from privacy.arrays import AnyFloats, Floats, Floats32, Integers
from tasks.measurement.vectors import Block
from tasks.methods.dpgm.record_gradients import ROWS_AT_ONCE, ClippedSum, padded_blocks
from tasks.methods.dpgm.record_gradients import Block as RecordBlock

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


SumOfBlock = Callable[[RecordBlock], tuple[Array, Array]]
"""Compiled sum of the clipped gradients of a block of records, and their norms."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerativeNetwork(ABC):
    """A network that is trained by gradients of records and draws new ones.

    Arrays that enter and leave are those of numpy; D is the width of a vector, P the number of
    parameters. Records enter as their distance from a released mean (D,), if there is one, at which
    the biases of the visible units start.
    """

    blocks: tuple[Block, ...]
    mean: AnyFloats | None = field(default=None, repr=False)
    hidden_units: int = 200

    @property
    def units(self) -> VisibleUnits:
        """Distribution of the visible coordinates."""
        return VisibleUnits(self.blocks)

    @property
    def width(self) -> int:
        """Number D of visible coordinates."""
        return self.units.width

    @property
    def offset(self) -> Floats:
        """Offset that is subtracted from a vector, shape (D,): the mean, or zero without one."""
        if self.mean is None:
            return np.zeros(self.width)
        return np.asarray(np.clip(self.mean, 0.0, 1.0), dtype=np.float64)

    @property
    def n_parameters(self) -> int:
        """Number P of trained parameters."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    @property
    @abstractmethod
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the trained arrays, in the order in which the P parameters hold them."""

    @property
    @abstractmethod
    def visible_biases(self) -> slice:
        """Slice of the P parameters that holds the biases of the visible units."""

    @abstractmethod
    def start(self, public_seed: int) -> Floats:
        """Return the first parameters, shape (P,), from public settings alone."""

    def first_chains(self, public_seed: int) -> Floats32:
        """Return the first state of the persistent chains, (n_chains, D); here there are none."""
        return np.zeros((0, self.width), dtype=np.float32)

    def chains(self, parameters: AnyFloats, state: Floats32, *, step_seed: int) -> Floats32:
        """Move the chains on under released parameters; same shape as `state`.

        Privacy
        -------
        A function of released parameters and public seeds: nothing to account for.
        """
        return state

    @abstractmethod
    def sample(
        self, parameters: AnyFloats, n_rows: int, rng: np.random.Generator, *, state: Floats32
    ) -> Floats:
        """Draw vectors (n_rows, D): expected numbers, zeros and ones, one 1 of a block."""

    @abstractmethod
    def sum_of_block(self, parameters: AnyFloats, step_seed: int, state: Floats32) -> SumOfBlock:
        """Return the program of a step, in the precision that jax is set to."""

    @abstractmethod
    def biases_at_mean(self, parameters: AnyFloats, scores: Array, state: Floats32) -> Array:
        """Biases (D,) under which records have the mean of the wanted scores (D,)."""

    def clipped_sum(
        self,
        parameters: AnyFloats,
        vectors: AnyFloats,
        weights: Floats,
        *,
        l2_clip_norm: float,
        scale: int,
        step_seed: int,
        state: Floats32,
    ) -> ClippedSum:
        """Sum of clipped gradients of the loss on an integer grid, without holding them all.

        Record i adds ``trunc(weight_i * min(1, l2_clip_norm / |g_i|) * g_i * scale)``, computed in
        float64 from the float32 gradient; one whose gradient is not finite adds nothing. The
        private vectors have shape (n, D) and values in [0, 1], their weights (n,) and values in [0,
        1], the parameters (P,) and the state of the chains (n_chains, D). The clipping norm is
        above 0, `scale` 1 or more grid points per unit (ValueError), the seed of the step public.

        Privacy
        -------
        Adjacency: add or remove one patient. A record is computed by itself, to the last bit (see
        `tasks.methods.dpgm.record_gradients.sum_of_clipped`), and adds a vector of Euclidean
        norm at most ``weight * l2_clip_norm * scale``; where the weights of a patient sum to at
        most 1, the sensitivity of `ClippedSum.total` is ``l2_clip_norm * scale``.
        """
        if scale < 1 or l2_clip_norm * scale * ROWS_AT_ONCE >= 2**53:
            # A block is added up in float64, where whole numbers below 2**53 are exact.
            raise ValueError(f"expected a scale of 1 or more whose sums are exact, found {scale}")
        total, norms = np.zeros(self.n_parameters, dtype=np.int64), np.zeros(len(vectors))
        with jax.enable_x64(True):
            compute = self.sum_of_block(parameters, step_seed, state)
            for rows, padded in padded_blocks(vectors):
                n_rows = rows.stop - rows.start
                of_rows = np.zeros(ROWS_AT_ONCE)
                of_rows[:n_rows] = weights[rows]
                block = RecordBlock(
                    jnp.asarray(padded), of_rows, n_rows, float(l2_clip_norm), float(scale)
                )
                part, of_part = compute(block)
                total += np.asarray(part).astype(np.int64)
                norms[rows] = np.asarray(of_part)[:n_rows]
        return ClippedSum(total=total, norms=norms)

    def fitted_to_mean(self, parameters: AnyFloats, *, state: Floats32) -> Floats:
        """Parameters whose records have the network's released mean; post-processing.

        Only biases of visible units move. A network without a mean returns what it was given.

        Privacy
        -------
        A function of released values and a public seed: nothing to account for.
        """
        flat = np.array(parameters, dtype=np.float64)
        if self.mean is not None:
            with jax.enable_x64(False):
                scores = jnp.asarray(self.units.scores_of(self.mean), dtype=jnp.float32)
                flat[self.visible_biases] = self.biases_at_mean(flat, scores, state)
        return flat

    def arrays(self, parameters: AnyFloats) -> list[Array]:
        """Trained arrays of `shapes`, as float32 of jax, out of parameters of shape (P,)."""
        stops = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        parts = np.split(parameters, stops[:-1])
        return [
            jnp.asarray(part.reshape(shape), dtype=jnp.float32)
            for part, shape in zip(parts, self.shapes, strict=True)
        ]
