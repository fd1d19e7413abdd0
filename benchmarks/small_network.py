"""The small convolutional network that judges released images, of any size and colour.

Two convolutions of stride two (24 filters of 5x5, 48 of 3x3) and a hidden layer of 64 units, all
with ReLU; weights by He et al. (2015), but for an output layer that begins small; 2,500 steps of
Adam with 96 images each, at a rate that falls from 0.002 to zero along half a cosine.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from numpy.typing import NDArray

STEPS, BATCH_SIZE, LEARNING_RATE = 2_500, 96, 2e-3
_FILTERS, _HIDDEN = ((5, 24), (3, 48)), 64
_AT_ONCE = 1_000

Layers = list[tuple[Array, Array]]
"""Weights and biases, layer by layer."""


def initial(shape: tuple[int, int, int], n_labels: int, seed: int) -> Layers:
    """Draw the layers of a network for images of (height, width, channels)."""
    rng = np.random.default_rng(seed)
    height, width, channels = shape
    shapes: list[tuple[int, ...]] = []
    for side, filters in _FILTERS:
        shapes.append((side, side, channels, filters))
        height, width, channels = -(-height // 2), -(-width // 2), filters
    shapes += [(height * width * channels, _HIDDEN), (_HIDDEN, n_labels)]
    layers = []
    for number, form in enumerate(shapes):
        inputs = np.prod(form[:-1]) * (4 if number == len(shapes) - 1 else 1)
        weights = rng.standard_normal(form) * np.sqrt(2.0 / inputs)
        layers.append((jnp.asarray(weights, jnp.float32), jnp.zeros(form[-1])))
    return layers


def scores(layers: Layers, images: Array) -> Array:
    """Scores (n, n_labels) of images (n, height, width, channels)."""
    hidden = images
    for weights, biases in layers[:2]:
        hidden = lax.conv_general_dilated(
            hidden, weights, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        hidden = jax.nn.relu(hidden + biases)
    hidden = hidden.reshape(len(hidden), -1)
    (weights, biases), (last, bias) = layers[2:]
    return jax.nn.relu(hidden @ weights + biases) @ last + bias


@partial(jax.jit, static_argnames="steps", donate_argnums=(0, 1))
def _step(
    layers: Layers, state: Any, images: Array, labels: Array, steps: int
) -> tuple[Layers, Any]:
    def loss(trained: Layers) -> Array:
        found = scores(trained, images)
        return optax.softmax_cross_entropy_with_integer_labels(found, labels).mean()

    updates, state = _optimizer(steps).update(jax.grad(loss)(layers), state)
    return optax.apply_updates(layers, updates), state


def _optimizer(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, steps))


def fit(
    images: NDArray[np.float32],
    labels: NDArray[Any],
    *,
    n_labels: int,
    seed: int = 0,
    steps: int = STEPS,
) -> Layers:
    """Train the network on images (n, height, width, channels) in [0, 1] with labels (n,)."""
    layers = initial(images.shape[1:], n_labels, seed)
    state = _optimizer(steps).init(layers)
    rng = np.random.default_rng([seed, 1])
    passes = -(-steps * BATCH_SIZE // len(images))
    order = np.concatenate([rng.permutation(len(images)) for _ in range(passes)])
    answers = np.asarray(labels, dtype=np.int32)
    for batch in order[: steps * BATCH_SIZE].reshape(steps, BATCH_SIZE):
        layers, state = _step(layers, state, images[batch], answers[batch], steps)
    return layers


def accuracy(layers: Layers, images: NDArray[np.float32], labels: NDArray[Any]) -> float:
    """Share of the images whose label the network finds; shapes as in `fit`."""
    best = jax.jit(lambda part: scores(layers, part).argmax(axis=1))
    parts = [images[start : start + _AT_ONCE] for start in range(0, len(images), _AT_ONCE)]
    return float(np.mean(np.concatenate([best(part) for part in parts]) == np.asarray(labels)))
