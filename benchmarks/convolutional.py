"""The convolutional network that scores released images: Table 1 of the DP-CDA paper.

Two blocks of convolution, ReLU, batch normalisation and max pooling (32 filters of 5x5, 64 of
3x3), then two hidden layers of 100 units with dropout 0.5 and an output layer; Adam from a rate of
0.001. The paper leaves open the initialisation (here PyTorch's: uniform, one over the root of the
number of inputs), the batch size, the epochs and the schedule (here a cosine to zero).

Images are channels-last and pooling is a maximum of slices: on a processor the gradient of a
windowed maximum costs more than the rest of the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from numpy.typing import NDArray

SIDE = 28
"""Height and width of an image in pixels: the 3,136 inputs of the first hidden layer follow."""

DROPOUT = 0.5
LEARNING_RATE = 1e-3
BATCH_SIZE = 64
_BATCH_NORM_EPSILON = 1e-5
_BATCH_NORM_MOMENTUM = 0.1
_TEST_ROWS_AT_ONCE = 1_000

Parameters = dict[str, Any]
"""Arrays of the layers by name: what is trained."""

Moments = dict[str, Array]
"""Running mean and variance of each batch normalisation: used when the network is tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A trained network: its parameters and the moments of its batch normalisations."""

    parameters: Parameters
    moments: Moments


def initial(seed: int, *, n_labels: int) -> Network:
    """Draw a network: weights and biases uniform within one over the root of the inputs."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "convolution1": (5, 5, 1, 32),
        "convolution2": (3, 3, 32, 64),
        "dense1": ((SIDE // 4) ** 2 * 64, 100),
        "dense2": (100, 100),
        "output": (100, n_labels),
    }
    parameters: Parameters = {}
    for name, shape in shapes.items():
        limit = 1.0 / float(np.sqrt(np.prod(shape[:-1])))
        parameters[name] = {
            "weights": jnp.asarray(rng.uniform(-limit, limit, shape), jnp.float32),
            "biases": jnp.asarray(rng.uniform(-limit, limit, shape[-1:]), jnp.float32),
        }
    moments: Moments = {}
    for name, width in (("norm1", 32), ("norm2", 64)):
        parameters[name] = {"gain": jnp.ones(width), "shift": jnp.zeros(width)}
        moments[f"{name}_mean"] = jnp.zeros(width)
        moments[f"{name}_variance"] = jnp.ones(width)
    return Network(parameters=parameters, moments=moments)


def _convolve(images: Array, layer: dict[str, Array]) -> Array:
    convolved = lax.conv_general_dilated(
        images, layer["weights"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return convolved + layer["biases"]


def _pool(images: Array) -> Array:
    """Maximum over squares of two by two pixels."""
    n, height, width, channels = images.shape
    squares = images.reshape(n, height // 2, 2, width // 2, 2, channels)
    rows = jnp.maximum(squares[:, :, 0], squares[:, :, 1])
    return jnp.maximum(rows[:, :, :, 0], rows[:, :, :, 1])


def _normalise(images: Array, layer: dict[str, Array], mean: Array, variance: Array) -> Array:
    scale = layer["gain"] * lax.rsqrt(variance + _BATCH_NORM_EPSILON)
    return images * scale + (layer["shift"] - mean * scale)


def _drop(hidden: Array, key: Array | None) -> Array:
    if key is None:
        return hidden
    kept = jax.random.bernoulli(key, 1.0 - DROPOUT, hidden.shape)
    return jnp.where(kept, hidden / (1.0 - DROPOUT), 0.0)


def scores(
    parameters: Parameters, moments: Moments, images: Array, key: Array | None
) -> tuple[Array, Moments]:
    """Scores (n, n_labels) of images (n, 28, 28, 1), and the running moments after this batch.

    With a random key, as in training, there is dropout and normalisation by the batch's moments.
    """
    after = dict(moments)
    hidden = images
    for block in ("1", "2"):
        hidden = jax.nn.relu(_convolve(hidden, parameters[f"convolution{block}"]))
        name = f"norm{block}"
        mean, variance = moments[f"{name}_mean"], moments[f"{name}_variance"]
        if key is not None:
            mean = hidden.mean((0, 1, 2))
            variance = jnp.maximum((hidden**2).mean((0, 1, 2)) - mean**2, 0.0)
            n = hidden.size // hidden.shape[-1]
            for moment, value in (("mean", mean), ("variance", variance * n / (n - 1))):
                running = moments[f"{name}_{moment}"]
                after[f"{name}_{moment}"] = running + _BATCH_NORM_MOMENTUM * (value - running)
        hidden = _pool(_normalise(hidden, parameters[name], mean, variance))
    hidden = hidden.reshape(len(hidden), -1)
    keys = (None, None) if key is None else jax.random.split(key)
    for layer, dropout in zip(("dense1", "dense2"), keys, strict=True):
        weights = parameters[layer]
        hidden = _drop(jax.nn.relu(hidden @ weights["weights"] + weights["biases"]), dropout)
    output = parameters["output"]
    return hidden @ output["weights"] + output["biases"], after


def _optimizer(n_steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, max(n_steps, 1)))


@partial(jax.jit, donate_argnums=(1, 2))
def _add_gradients(
    parameters: Parameters,
    moments: Moments,
    sums: Parameters,
    images: Array,
    labels: Array,
    key: Array,
) -> tuple[Moments, Parameters]:
    """Moments after a ghost batch, and the sums with the gradients of its mean loss."""

    def loss(trained: Parameters) -> tuple[Array, Moments]:
        found, after = scores(trained, moments, images, key)
        return optax.softmax_cross_entropy_with_integer_labels(found, labels).mean(), after

    gradients, after = jax.grad(loss, has_aux=True)(parameters)
    return after, jax.tree.map(jnp.add, sums, gradients)


@partial(jax.jit, static_argnames=("n_steps", "n_ghosts"), donate_argnums=(0, 1))
def _step(
    parameters: Parameters, state: Any, sums: Parameters, n_steps: int, n_ghosts: int
) -> tuple[Parameters, Any, Parameters]:
    """Take one step along the mean of the gradients; the sums begin again at zero."""
    gradients = jax.tree.map(lambda total: total / n_ghosts, sums)
    updates, state = _optimizer(n_steps).update(gradients, state)
    return optax.apply_updates(parameters, updates), state, jax.tree.map(jnp.zeros_like, sums)


def fit(
    images: NDArray[np.float32],
    labels: NDArray[Any],
    *,
    n_labels: int,
    epochs: int,
    seed: int,
    batch_size: int = BATCH_SIZE,
    ghost_batch_size: int | None = None,
) -> Network:
    """Train the network on images (n, 784) or (n, 28, 28) of any scale, with labels (n,).

    The last incomplete batch of an epoch is left out. Batch normalisation takes its moments over
    ghost batches, which fit into the cache of a processor (Hoffer, Hubara and Soudry 2017).
    """
    n_batches = len(images) // batch_size
    ghost_batch_size = ghost_batch_size or batch_size
    if batch_size % ghost_batch_size:
        raise ValueError(
            f"expected a divisor of the batch size {batch_size} as the size of a ghost batch, "
            f"found {ghost_batch_size}"
        )
    if n_batches < 1 or len(labels) != len(images):
        raise ValueError(
            f"expected at least {batch_size} images with a label each, "
            f"found {len(images)} images and {len(labels)} labels"
        )
    n_ghosts = batch_size // ghost_batch_size
    network = initial(seed, n_labels=n_labels)
    parameters, moments = network.parameters, network.moments
    n_steps = epochs * n_batches
    state = _optimizer(n_steps).init(parameters)
    sums = jax.tree.map(jnp.zeros_like, parameters)
    rng = np.random.default_rng([seed, 1])
    key = jax.random.key(seed)
    pixels = np.asarray(images, dtype=np.float32).reshape(-1, SIDE, SIDE, 1)
    answers = np.asarray(labels, dtype=np.int32)
    for _ in range(epochs):
        order = rng.permutation(len(pixels))[: n_batches * batch_size]
        for batch in order.reshape(n_batches, n_ghosts, ghost_batch_size):
            for ghost in batch:
                key, dropout = jax.random.split(key)
                moments, sums = _add_gradients(
                    parameters, moments, sums, pixels[ghost], answers[ghost], dropout
                )
            parameters, state, sums = _step(parameters, state, sums, n_steps, n_ghosts)
    return Network(parameters=parameters, moments=moments)


@jax.jit
def _moments_of(parameters: Parameters, moments: Moments, images: Array) -> Moments:
    nothing = jax.tree.map(jnp.zeros_like, moments)
    # A step from nothing goes the share `_BATCH_NORM_MOMENTUM` of the way; dropout comes later.
    _, after = scores(parameters, nothing, images, jax.random.key(0))
    found: Moments = jax.tree.map(lambda moment: moment / _BATCH_NORM_MOMENTUM, after)
    return found


def adapted(network: Network, images: NDArray[np.float32]) -> Network:
    """Give batch normalisation the moments of other images, without their labels.

    Mixtures have less contrast than images, and noise has more: with the running moments of the
    training the activations of real images are out of range.
    """
    pixels = np.asarray(images[:2_000], dtype=np.float32).reshape(-1, SIDE, SIDE, 1)
    return Network(
        parameters=network.parameters,
        moments=_moments_of(network.parameters, network.moments, pixels),
    )


@jax.jit
def _best(parameters: Parameters, moments: Moments, images: Array) -> Array:
    return scores(parameters, moments, images, None)[0].argmax(axis=1)


def accuracy(network: Network, images: NDArray[np.float32], labels: NDArray[Any]) -> float:
    """Share of the images whose label the network finds; shapes as in `fit`."""
    pixels = np.asarray(images, dtype=np.float32).reshape(-1, SIDE, SIDE, 1)
    found = [
        np.asarray(
            _best(network.parameters, network.moments, pixels[start : start + _TEST_ROWS_AT_ONCE])
        )
        for start in range(0, len(pixels), _TEST_ROWS_AT_ONCE)
    ]
    return float(np.mean(np.concatenate(found) == np.asarray(labels)))
