r"""Training of the generator of DP-MERF on released mean embeddings; all of it post-processing.

For label c with released embedding sum :math:`\tilde m_c` and count :math:`\tilde n_c` the loss is

.. math:: \sum_c \omega_c \| \tilde m_c / \tilde n_c - \mathbb{E}_z \varphi(G(z, c)) \|^2 .

The expectation over the levels that a record is drawn with, given z, is exact: its blocks are then
independent, so the expected Fourier feature is a product over blocks of characteristic functions.
The expectation over z is estimated on two independent halves of a batch, and the square is replaced
by the inner product of their two errors. That is unbiased; the square of one batch would add the
variance of the generated features to the loss, and so punish records for being different.
"""

from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from benchmarks.rivals.embedding_features import EmbeddingFeatures
from benchmarks.rivals.generator import Generator
from privacy.arrays import Floats, Indices
from privacy.errors import ConfigurationError
from tasks.measurement.vectors import Block

Layers: TypeAlias = tuple[tuple[Array, ...], tuple[Array, ...]]

MAX_EXACT_BINARY = 32
"""Largest number of 0/1 coordinates that are multiplied out; more are taken to second order.

The length scale grows with the root of the number of blocks, so the error of a coordinate, of
third order in its frequency, is small where there are many."""


def train(
    generator: Generator,
    features: EmbeddingFeatures,
    targets: Floats,
    *,
    label_weights: Floats,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> Generator:
    """Take Adam steps towards mean embeddings `targets` (C, n_features).

    Labels have weights (C,) in the loss. Weights that diverge are a ConfigurationError.
    """
    n_labels = len(targets)
    weights, biases = _take_steps(
        (tuple(map(_float32, generator.weights)), tuple(map(_float32, generator.biases))),
        jax.random.split(jax.random.key(seed), steps),
        _float32(features.frequencies),
        _float32(targets),
        _float32(label_weights),
        _float32(learning_rate),
        None if features.linear_scales is None else _float32(features.linear_scales),
        blocks=features.vector_map.blocks,
        fourier_scale=features.fourier_scale,
        code_dimensions=len(generator.weights[0]) - n_labels,
        n_per_label=max(1, batch_size // (2 * n_labels)),
    )
    trained = Generator(tuple(map(np.asarray, weights)), tuple(map(np.asarray, biases)))
    if not all(np.isfinite(array).all() for array in (*trained.weights, *trained.biases)):
        raise ConfigurationError(
            "GENERATOR_DIVERGED",
            "expected finite weights of the generator, found others after training; lower "
            "learning_rate",
        )
    return trained


def expected_features(
    logits: Array,
    frequencies: Array,
    linear_scales: Array | None,
    *,
    blocks: tuple[Block, ...],
    fourier_scale: float,
) -> Array:
    """Return the expected features (n, n_features) of what each row of logits (n, D) draws."""
    n_binary = sum(block.kind == "binary" for block in blocks)
    numbers = _coordinates(blocks, "unit")
    means = jax.nn.sigmoid(logits)
    phase = means[:, numbers] @ frequencies[:, numbers].T
    if n_binary > MAX_EXACT_BINARY:
        binary = _coordinates(blocks, "binary")
        chance, turns = means[:, binary], frequencies[:, binary].T
        phase = phase + chance @ turns
        damping = jnp.exp(-0.5 * (chance * (1.0 - chance)) @ turns**2)
    else:
        damping = jnp.ones_like(phase)
    real, imaginary = damping * jnp.cos(phase), damping * jnp.sin(phase)
    for block in blocks:
        here = slice(block.start, block.stop)
        turns = frequencies[:, here].T
        if block.kind == "one_hot":
            chance = jax.nn.softmax(logits[:, here])
            means = means.at[:, here].set(chance)
            cosine, sine = chance @ jnp.cos(turns), chance @ jnp.sin(turns)
        elif block.kind == "binary" and n_binary <= MAX_EXACT_BINARY:
            chance = means[:, here]
            cosine, sine = 1.0 - chance + chance * jnp.cos(turns), chance * jnp.sin(turns)
        else:
            continue
        real, imaginary = real * cosine - imaginary * sine, real * sine + imaginary * cosine
    parts = [real * fourier_scale, imaginary * fourier_scale]
    if linear_scales is not None:
        parts.append(means * linear_scales)
    return jnp.concatenate(parts, axis=1)


@partial(jax.jit, static_argnames=("blocks", "fourier_scale", "code_dimensions", "n_per_label"))
def _take_steps(
    start: Layers,
    keys: Array,
    frequencies: Array,
    targets: Array,
    label_weights: Array,
    learning_rate: Array,
    linear_scales: Array | None,
    *,
    blocks: tuple[Block, ...],
    fourier_scale: float,
    code_dimensions: int,
    n_per_label: int,
) -> Layers:
    n_labels = len(targets)
    one_hot = jnp.repeat(jnp.eye(n_labels, dtype=jnp.float32), n_per_label, axis=0)

    def error(layers: Layers, key: Array) -> Array:
        code = jax.random.normal(key, (len(one_hot), code_dimensions), dtype=jnp.float32)
        generated = expected_features(
            _logits(layers, jnp.concatenate([code, one_hot], axis=1)),
            frequencies,
            linear_scales,
            blocks=blocks,
            fourier_scale=fourier_scale,
        )
        return targets - generated.reshape(n_labels, n_per_label, -1).mean(axis=1)

    def loss(layers: Layers, key: Array) -> Array:
        first, second = jax.random.split(key)
        products = (error(layers, first) * error(layers, second)).sum(axis=1)
        return (label_weights * products).sum()

    adam = optax.adam(learning_rate)

    def step(state: tuple[Layers, Any], key: Array) -> tuple[tuple[Layers, Any], None]:
        layers, moments = state
        updates, moments = adam.update(jax.grad(loss)(layers, key), moments)
        return (optax.apply_updates(layers, updates), moments), None

    (layers, _), _ = jax.lax.scan(step, (start, adam.init(start)), keys)
    return layers


def _logits(layers: Layers, inputs: Array) -> Array:
    weights, biases = layers
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        inputs = jax.nn.relu(inputs @ weight + bias)
    return inputs @ weights[-1] + biases[-1]


def _coordinates(blocks: tuple[Block, ...], kind: str) -> Indices:
    chosen = [np.arange(block.start, block.stop) for block in blocks if block.kind == kind]
    return np.concatenate([np.zeros(0, dtype=np.intp), *chosen])


def _float32(values: Any) -> Array:
    return jnp.asarray(values, dtype=jnp.float32)
