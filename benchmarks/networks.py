"""Convolutional networks that learn from released images and are judged on real ones.

**The small network**, for images of any size and colour: convolutions of stride two (24 filters of
5x5, 48 of 3x3) and 64 hidden units, with ReLU; weights by He et al. (2015), but for an output layer
that begins small; 2,500 steps of Adam with 96 images, along half a cosine from 0.002 to zero.

**The papers' network**: Table 1 of DP-CDA. Two blocks of convolution, ReLU, batch normalisation and
max pooling (32 filters of 5x5, 64 of 3x3), two layers of 100 units with dropout 0.5 and an output
layer; Adam from 0.001. The paper leaves open the initialisation (here PyTorch's: uniform, one over
the root of the number of inputs), batch size, epochs and schedule (here a cosine to zero).

Images are channels-last and pooling is a maximum of slices: on a processor the gradient of a
windowed maximum costs more than the rest of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from numpy.typing import NDArray

STEPS, BATCH_SIZE, RATE = 2_500, 96, 2e-3
_FILTERS, _HIDDEN = ((5, 24), (3, 48)), 64
SIDE, DROPOUT, PAPER_BATCH, PAPER_RATE = 28, 0.5, 64, 1e-3
_NORM_EPSILON, _NORM_MOMENTUM = 1e-5, 0.1
_AT_ONCE = 1_000

Images = NDArray[np.float32]
Layers = list[tuple[Array, Array]]
"""Weights and biases, layer by layer."""


def _convolved(images: Array, weights: Array, biases: Array, stride: int) -> Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    strides = (stride, stride)
    found = lax.conv_general_dilated(images, weights, strides, "SAME", dimension_numbers=numbers)
    return found + biases


def _adam(rate: float, steps: int, n_batches: int = 1) -> Any:
    """Take each step along the mean of the gradients of so many batches."""
    adam = optax.adam(optax.cosine_decay_schedule(rate, steps))
    return adam if n_batches == 1 else optax.MultiSteps(adam, n_batches)


def _loss(scores: Array, labels: Array) -> Array:
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def _share_found(best: Callable[[Any], Array], images: Images, labels: NDArray[Any]) -> float:
    parts = [best(images[start : start + _AT_ONCE]) for start in range(0, len(images), _AT_ONCE)]
    return float(np.mean(np.concatenate(parts) == np.asarray(labels)))


def _small_layers(shape: tuple[int, int, int], n_labels: int, seed: int) -> Layers:
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


def _small_scores(layers: Layers, images: Array) -> Array:
    hidden = images
    for weights, biases in layers[:2]:
        hidden = jax.nn.relu(_convolved(hidden, weights, biases, 2))
    hidden = hidden.reshape(len(hidden), -1)
    (weights, biases), (last, bias) = layers[2:]
    return jax.nn.relu(hidden @ weights + biases) @ last + bias


@partial(jax.jit, static_argnames="steps", donate_argnums=(0, 1))
def _small_step(
    layers: Layers, state: Any, images: Array, labels: Array, steps: int
) -> tuple[Layers, Any]:
    gradients = jax.grad(lambda trained: _loss(_small_scores(trained, images), labels))(layers)
    updates, state = _adam(RATE, steps).update(gradients, state)
    return optax.apply_updates(layers, updates), state


def fit_small(images: Images, labels: NDArray[Any], *, n_labels: int, steps: int = STEPS) -> Layers:
    """Train the small network on images (n, height, width, channels) in [0, 1], labels (n,)."""
    layers = _small_layers(images.shape[1:], n_labels, 0)
    state = _adam(RATE, steps).init(layers)
    rng = np.random.default_rng([0, 1])
    passes = -(-steps * BATCH_SIZE // len(images))
    order = np.concatenate([rng.permutation(len(images)) for _ in range(passes)])
    answers = np.asarray(labels, dtype=np.int32)
    for batch in order[: steps * BATCH_SIZE].reshape(steps, BATCH_SIZE):
        layers, state = _small_step(layers, state, images[batch], answers[batch], steps)
    return layers


def small_accuracy(layers: Layers, images: Images, labels: NDArray[Any]) -> float:
    best = jax.jit(lambda part: _small_scores(layers, part).argmax(axis=1))
    return _share_found(best, images, labels)


class Network(NamedTuple):
    """Trained weights and biases, or gain and shift, by name; running moments to be tested by."""

    layers: dict[str, tuple[Array, Array]]
    moments: dict[str, tuple[Array, Array]]


def _paper_network(seed: int, n_labels: int) -> Network:
    """Draw the papers' network: weights and biases uniform within one over the root of inputs."""
    rng = np.random.default_rng(seed)
    shapes = {"convolution1": (5, 5, 1, 32), "convolution2": (3, 3, 32, 64),
              "dense1": ((SIDE // 4) ** 2 * 64, 100), "dense2": (100, 100),
              "output": (100, n_labels)}  # fmt: skip
    layers = {}
    for name, shape in shapes.items():
        limit = 1.0 / float(np.sqrt(np.prod(shape[:-1])))
        weights, biases = (rng.uniform(-limit, limit, form) for form in (shape, shape[-1:]))
        layers[name] = (jnp.asarray(weights, jnp.float32), jnp.asarray(biases, jnp.float32))
    norms = {"norm1": 32, "norm2": 64}
    layers |= {name: (jnp.ones(width), jnp.zeros(width)) for name, width in norms.items()}
    return Network(layers, {name: (jnp.zeros(w), jnp.ones(w)) for name, w in norms.items()})


def _pool(images: Array) -> Array:
    """Maximum over squares of two by two pixels."""
    rows = jnp.maximum(images[:, ::2], images[:, 1::2])
    return jnp.maximum(rows[:, :, ::2], rows[:, :, 1::2])


def _drop(hidden: Array, key: Array | None) -> Array:
    if key is None:
        return hidden
    kept = jax.random.bernoulli(key, 1.0 - DROPOUT, hidden.shape)
    return jnp.where(kept, hidden / (1.0 - DROPOUT), 0.0)


def _paper_scores(network: Network, images: Array, key: Array | None) -> tuple[Array, Any]:
    """Scores (n, n_labels) of images (n, 28, 28, 1), and the running moments after this batch.

    With a random key, as in training, there is dropout and normalisation by the batch's moments.
    """
    layers, after, hidden = network.layers, dict(network.moments), images
    for block in ("1", "2"):
        hidden = jax.nn.relu(_convolved(hidden, *layers[f"convolution{block}"], 1))
        gain, shift = layers[f"norm{block}"]
        moments = network.moments[f"norm{block}"]
        if key is not None:
            running, n = moments, hidden.size // hidden.shape[-1]
            mean = hidden.mean((0, 1, 2))
            moments = (mean, jnp.maximum((hidden**2).mean((0, 1, 2)) - mean**2, 0.0))
            new = (mean, moments[1] * n / (n - 1))
            after[f"norm{block}"] = jax.tree.map(
                lambda old, now: old + _NORM_MOMENTUM * (now - old), running, new
            )
        scale = gain * lax.rsqrt(moments[1] + _NORM_EPSILON)
        hidden = _pool(hidden * scale + (shift - moments[0] * scale))
    hidden = hidden.reshape(len(hidden), -1)
    keys = (None, None) if key is None else jax.random.split(key)
    for name, dropout in zip(("dense1", "dense2"), keys, strict=True):
        weights, biases = layers[name]
        hidden = _drop(jax.nn.relu(hidden @ weights + biases), dropout)
    weights, biases = layers["output"]
    return hidden @ weights + biases, after


@partial(jax.jit, static_argnames=("steps", "n_ghosts"), donate_argnums=(0, 1))
def _paper_step(
    network: Network, state: Any, batch: tuple[Any, Any], key: Array, steps: int, n_ghosts: int
) -> tuple[Network, Any]:
    def loss(layers: Any) -> tuple[Array, Any]:
        scores, after = _paper_scores(network._replace(layers=layers), batch[0], key)
        return _loss(scores, batch[1]), after

    gradients, after = jax.grad(loss, has_aux=True)(network.layers)
    updates, state = _adam(PAPER_RATE, steps, n_ghosts).update(gradients, state, network.layers)
    return Network(optax.apply_updates(network.layers, updates), after), state


def _pixels(images: Images) -> Images:
    return np.asarray(images, dtype=np.float32).reshape(-1, SIDE, SIDE, 1)


def fit_paper(
    images: Images, labels: NDArray[Any], *, n_labels: int, epochs: int, seed: int,
    batch_size: int = PAPER_BATCH, n_ghosts: int = 1,
) -> Network:  # fmt: skip
    """Train the papers' network on images (n, 784) of any scale, with labels (n,).

    The last incomplete batch of an epoch is left out. Batch normalisation takes its moments over
    ghost batches, which fit into the cache of a processor (Hoffer, Hubara and Soudry 2017).
    """
    n_batches = len(images) // batch_size
    if n_batches < 1:
        raise ValueError(f"expected at least {batch_size} images, found {len(images)}")
    network, steps = _paper_network(seed, n_labels), epochs * n_batches
    state = _adam(PAPER_RATE, steps, n_ghosts).init(network.layers)
    rng, key = np.random.default_rng([seed, 1]), jax.random.key(seed)
    pixels, answers = _pixels(images), np.asarray(labels, dtype=np.int32)
    for _ in range(epochs):
        order = rng.permutation(len(pixels))[: n_batches * batch_size]
        for ghost in order.reshape(n_batches * n_ghosts, -1):
            key, dropout = jax.random.split(key)
            batch = (pixels[ghost], answers[ghost])
            network, state = _paper_step(network, state, batch, dropout, steps, n_ghosts)
    return network


def adapted(network: Network, images: Images) -> Network:
    """Give batch normalisation the moments of other images, without their labels.

    Mixtures have less contrast than images, and noise has more: with the running moments of the
    training the activations of real images are out of range.
    """
    # A step from nothing goes the share `_NORM_MOMENTUM` of the way; dropout comes later.
    nothing = network._replace(moments=jax.tree.map(jnp.zeros_like, network.moments))
    after = jax.jit(_paper_scores)(nothing, _pixels(images[:2_000]), jax.random.key(0))[1]
    return network._replace(moments=jax.tree.map(lambda one: one / _NORM_MOMENTUM, after))


def paper_accuracy(network: Network, images: Images, labels: NDArray[Any]) -> float:
    best = jax.jit(lambda part: _paper_scores(network, part, None)[0].argmax(axis=1))
    return _share_found(best, _pixels(images), labels)
