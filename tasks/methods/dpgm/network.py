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

from privacy.arrays import AnyFloats, Floats, Floats32
from tasks.measurement.vectors import Block
from tasks.methods.dpgm.record_gradients import ROWS_AT_ONCE, ClippedSum, padded_blocks
from tasks.methods.dpgm.record_gradients import Block as RecordBlock
from tasks.methods.dpgm.visible_units import VisibleUnits

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
        """Which of the P parameters are the biases of the visible units."""

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

        Only the biases of the visible units move. A network without a mean returns what it was
        given.

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
