"""The generator of DP-MERF: a network from a random code and a label to the blocks of a vector.

Numpy alone: sampling from a finished generator needs no more. Training is in
`benchmarks.rivals.generator_training`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats, Floats32
from tasks.measurement.encoded import row_slices
from tasks.measurement.vectors import Block, VectorMap


@dataclass(frozen=True, slots=True)
class Generator:
    """Fully connected ReLU network; a function of public seeds and released statistics.

    Layers have float32 weights (inputs, outputs) and biases, from code and one-hot label to logits.
    """

    weights: tuple[Floats32, ...]
    biases: tuple[Floats32, ...]

    @classmethod
    def start(cls, sizes: Sequence[int], *, seed: int) -> Self:
        """Draw the first weights for layers of these widths by He's rule (variance 2 / inputs)."""
        rng = np.random.default_rng(seed)
        weights = []
        for n_inputs, n_outputs in pairwise(sizes):
            deviation = np.sqrt(2.0 / n_inputs)
            drawn = deviation * rng.standard_normal((n_inputs, n_outputs))
            weights.append(drawn.astype(np.float32))
        return cls(tuple(weights), tuple(np.zeros(size, dtype=np.float32) for size in sizes[1:]))

    def logits(self, code: Floats, label: NDArray[np.integer[Any]]) -> Floats:
        """Logits of every coordinate, float64 of shape (n, D), for codes of shape (n, code)."""
        n_labels = len(self.weights[0]) - code.shape[1]
        values = np.concatenate([code, np.eye(n_labels)[label]], axis=1).astype(np.float32)
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = values @ weight + bias
            if layer < last:
                np.maximum(values, 0.0, out=values)
        return values.astype(np.float64)

    def sample(
        self, vector_map: VectorMap, label: Codes, *, code_dimensions: int, rng: np.random.Generator
    ) -> Codes:
        """Draw the codes (n, d) of one record for each label (n,), by the map of the training."""
        parts = [np.zeros((0, vector_map.domain.n_columns), dtype=np.uint16)]
        for part in (label[block] for block in row_slices(len(label))):
            logits = self.logits(rng.standard_normal((len(part), code_dimensions)), part)
            parts.append(vector_map.codes(draw_blocks(logits, vector_map.blocks, rng))[0])
        return np.concatenate(parts)


def draw_blocks(logits: Floats, blocks: tuple[Block, ...], rng: np.random.Generator) -> Floats:
    """Turn logits (n, D) to vectors in [0, 1]: numbers stay, zeros, ones and levels are drawn."""
    # The logistic function without overflow.
    vectors = 0.5 * (1.0 + np.tanh(0.5 * logits))
    for block in blocks:
        here = slice(block.start, block.stop)
        if block.kind == "binary":
            vectors[:, here] = rng.random((len(logits), 1)) < vectors[:, here]
        elif block.kind == "one_hot":
            # The largest of logits with Gumbel noise is a draw from their softmax.
            noisy = logits[:, here] + rng.gumbel(size=(len(logits), block.stop - block.start))
            vectors[:, here] = np.eye(block.stop - block.start)[noisy.argmax(axis=1)]
    return vectors
