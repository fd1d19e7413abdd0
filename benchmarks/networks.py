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
from jax.example_libraries import stax
from numpy.typing import NDArray

STEPS, BATCH_SIZE, RATE = 2_500, 96, 2e-3
SIDE, DROPOUT, PAPER_BATCH, PAPER_RATE = 28, 0.5, 64, 1e-3
_NORM_EPSILON, _NORM_MOMENTUM = 1e-5, 0.1
_AT_ONCE = 1_000
_CONVOLVED, _JOINED = stax.Conv(1, (1, 1), padding="SAME")[1], stax.Dense(1)[1]
"""Apply weights and biases of any size."""
_DROPPED = stax.Dropout(1.0 - DROPOUT)[1]

Images = NDArray[np.float32]


class Network(NamedTuple):
    """Scores of images, by layers, moments, images and a key in training, and what it has learned.

    Scores (n, n_labels) come with the next moments of batch normalisation.
    """

    scores: Callable[..., tuple[Array, Any]]
    layers: Any
    moments: Any = ()


def accuracy(network: Network, images: Images, labels: NDArray[Any]) -> float:
    """Share of the images whose label the network finds."""
    scores, layers, moments = network
    best = jax.jit(lambda part: scores(layers, moments, part, None)[0].argmax(axis=1))
    parts = [best(images[start : start + _AT_ONCE]) for start in range(0, len(images), _AT_ONCE)]
    return float(np.mean(np.concatenate(parts) == np.asarray(labels)))


def _trained(
    network: Network, images: Images, labels: NDArray[Any], batches: Any, adam: Any, seed: int
) -> Network:
    """Take a step for each batch of places."""

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(layers: Any, moments: Any, state: Any, batch: Any, key: Array) -> Any:
        def loss(trained: Any) -> tuple[Array, Any]:
            found, after = network.scores(trained, moments, batch[0], key)
            entropy = optax.softmax_cross_entropy_with_integer_labels(found, batch[1])
            return entropy.mean(), after

        gradients, after = jax.grad(loss, has_aux=True)(layers)
        updates, state = adam.update(gradients, state, layers)
        return optax.apply_updates(layers, updates), after, state

    _, layers, moments = network
    state, key, answers = adam.init(layers), jax.random.key(seed), np.asarray(labels, np.int32)
    for batch in batches:
        key, dropout = jax.random.split(key)
        ours = (images[batch], answers[batch])
        layers, moments, state = step(layers, moments, state, ours, dropout)
    return network._replace(layers=layers, moments=moments)


def fit_small(
    images: Images, labels: NDArray[Any], *, n_labels: int, steps: int = STEPS
) -> Network:
    """Train the small network on images (n, height, width, channels) in [0, 1], labels (n,)."""
    rng = np.random.default_rng(0)

    def weights(_: Any, form: tuple[int, ...], share: float = 1.0) -> Array:
        drawn = rng.standard_normal(form) * np.sqrt(2.0 * share / np.prod(form[:-1]))
        return jnp.asarray(drawn, jnp.float32)

    biases = jax.nn.initializers.zeros
    begin, scores = stax.serial(
        stax.Conv(24, (5, 5), (2, 2), "SAME", weights, biases), stax.Relu,
        stax.Conv(48, (3, 3), (2, 2), "SAME", weights, biases), stax.Relu, stax.Flatten,
        stax.Dense(64, weights, biases), stax.Relu,
        stax.Dense(n_labels, partial(weights, share=0.25), biases),
    )  # fmt: skip
    _, layers = begin(jax.random.key(0), (-1, *images.shape[1:]))
    network = Network(lambda layers, _, images, key: (scores(layers, images), ()), layers)
    order, passes = np.random.default_rng([0, 1]), -(-steps * BATCH_SIZE // len(images))
    places = np.concatenate([order.permutation(len(images)) for _ in range(passes)])
    batches = places[: steps * BATCH_SIZE].reshape(steps, BATCH_SIZE)
    adam = optax.adam(optax.cosine_decay_schedule(RATE, steps))
    return _trained(network, images, labels, batches, adam, 0)


def _pool(images: Array) -> Array:
    rows = jnp.maximum(images[:, ::2], images[:, 1::2])
    return jnp.maximum(rows[:, :, ::2], rows[:, :, 1::2])


def _paper_scores(layers: Any, moments: Any, images: Array, key: Array | None) -> tuple[Array, Any]:
    """Scores of the papers' network; a key, in training, asks for dropout and batch moments."""
    after, hidden = dict(moments), images
    for block in ("1", "2"):
        hidden = jax.nn.relu(_CONVOLVED(layers[f"convolution{block}"], hidden))
        gain, shift = layers[f"norm{block}"]
        mean, variance = moments[f"norm{block}"]
        if key is not None:
            running, n = (mean, variance), hidden.size // hidden.shape[-1]
            mean = hidden.mean((0, 1, 2))
            variance = jnp.maximum((hidden**2).mean((0, 1, 2)) - mean**2, 0.0)
            after[f"norm{block}"] = jax.tree.map(
                lambda old, now: old + _NORM_MOMENTUM * (now - old),
                running, (mean, variance * n / (n - 1)),
            )  # fmt: skip
        scale = gain * lax.rsqrt(variance + _NORM_EPSILON)
        hidden = _pool(hidden * scale + (shift - mean * scale))
    hidden = hidden.reshape(len(hidden), -1)
    keys = (None, None) if key is None else jax.random.split(key)
    for name, dropout in zip(("dense1", "dense2"), keys, strict=True):
        hidden = jax.nn.relu(_JOINED(layers[name], hidden))
        hidden = hidden if dropout is None else _DROPPED((), hidden, rng=dropout)
    return _JOINED(layers["output"], hidden), after


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
    moments = {name: (jnp.zeros(width), jnp.ones(width)) for name, width in norms.items()}
    return Network(_paper_scores, layers, moments)


def fit_paper(
    images: Images, labels: NDArray[Any], *, n_labels: int, epochs: int, seed: int,
    batch_size: int = PAPER_BATCH, n_ghosts: int = 1,
) -> Network:  # fmt: skip
    """Train the papers' network on images (n, 28, 28, 1) of any scale, with labels (n,).

    The last incomplete batch of an epoch is left out. Batch normalisation takes its moments over
    ghost batches, which fit into the cache of a processor (Hoffer, Hubara and Soudry 2017).
    """
    n_batches, rng = len(images) // batch_size, np.random.default_rng([seed, 1])
    if n_batches < 1:
        raise ValueError(f"expected at least {batch_size} images, found {len(images)}")
    orders = [rng.permutation(len(images))[: n_batches * batch_size] for _ in range(epochs)]
    ghosts = np.concatenate(orders).reshape(epochs * n_batches * n_ghosts, -1)
    adam: Any = optax.adam(optax.cosine_decay_schedule(PAPER_RATE, epochs * n_batches))
    adam = adam if n_ghosts == 1 else optax.MultiSteps(adam, n_ghosts)  # their mean gradient
    return _trained(_paper_network(seed, n_labels), images, labels, ghosts, adam, seed)


def adapted(network: Network, images: Images) -> Network:
    """Give batch normalisation the moments of other images, without their labels.

    Mixtures have less contrast than images, and noise has more: with the running moments of the
    training the activations of real images are out of range.
    """
    # A step from nothing goes the share `_NORM_MOMENTUM` of the way; dropout comes later.
    nothing = jax.tree.map(jnp.zeros_like, network.moments)
    scores = jax.jit(network.scores)
    after = scores(network.layers, nothing, images[:2_000], jax.random.key(0))[1]
    return network._replace(moments=jax.tree.map(lambda one: one / _NORM_MOMENTUM, after))
