"""Lower bound of the variational autoencoder and its derivatives, compiled.

Source: DPGM paper, section 3.2; Kingma and Welling 2014.
"""

from functools import partial
from itertools import chain
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tasks.methods.dpgm.record_gradients import ONE_THREAD, Block, sum_of_clipped
from tasks.methods.dpgm.visible_units import VisibleUnits

_HASH_SEED = 20_190_426
"""Public seed of the odd multipliers that turn the bits of a record into a number."""


class Layers(NamedTuple):
    """Weights (inputs, outputs) and biases (outputs,) of the four layers."""

    encoder: Array
    encoder_bias: Array
    latent: Array
    latent_bias: Array
    decoder: Array
    decoder_bias: Array
    output: Array
    output_bias: Array


class _Biases(NamedTuple):
    """One vector per layer: biases, derivatives by them, or what the layer was fed."""

    encoder: Array
    latent: Array
    decoder: Array
    output: Array


def decode(layers: Layers, latent: Array) -> Array:
    """Scores of the visible units, (..., D), for latent vectors of shape (..., L)."""
    hidden = jax.nn.relu(latent @ layers.decoder + layers.decoder_bias)
    return hidden @ layers.output + layers.output_bias


def key_of(key: Array, record: Array) -> Array:
    """Key of one record of shape (D,): the key of the step and a hash of the record's own bits."""
    random = np.random.default_rng(_HASH_SEED)
    multipliers = random.integers(2**32, size=record.shape[0], dtype=np.uint32) | np.uint32(1)
    bits = jax.lax.bitcast_convert_type(record, jnp.uint32)
    return jax.random.fold_in(key, jnp.sum(bits * multipliers, dtype=jnp.uint32))


def _negative_elbo(
    biases: _Biases,
    layers: Layers,
    offset: Array,
    record: Array,
    *,
    noise: Array,
    units: VisibleUnits,
) -> tuple[Array, _Biases]:
    """Negative evidence lower bound of one record, and what each layer was fed."""
    # Biases are apart: the derivative by them is that by the sums that enter the layers.
    centred = record - offset
    hidden = jax.nn.relu(centred @ layers.encoder + biases.encoder)
    centre, log_variance = jnp.split(hidden @ layers.latent + biases.latent, 2)
    stddev = jnp.exp(0.5 * log_variance)
    divergence = 0.5 * jnp.sum(centre**2 + stddev**2 - log_variance - 1.0)
    latent = centre + stddev * noise
    features = jax.nn.relu(latent @ layers.decoder + biases.decoder)
    scores = features @ layers.output + biases.output
    fed = _Biases(encoder=centred, latent=hidden, decoder=latent, output=features)
    return divergence - units.log_likelihood(scores, record), fed


def _gradient(
    layers: Layers, offset: Array, key: Array, record: Array, *, units: VisibleUnits
) -> Layers:
    """Differentiate the loss of one record."""
    latent_shape = (layers.decoder.shape[0],)
    noise = jax.random.normal(key_of(key, record), latent_shape, dtype=record.dtype)
    biases = _Biases(*layers[1::2])
    slopes, fed = jax.grad(_negative_elbo, has_aux=True)(
        biases, layers, offset, record, noise=noise, units=units
    )
    # By the chain rule the derivative by a layer's weights is an outer product. Written so, it is
    # made inside the loops that read it and is never stored.
    by_layer = ((into[:, None] * own, own) for into, own in zip(fed, slopes, strict=True))
    return Layers(*chain.from_iterable(by_layer))


@partial(jax.jit, static_argnames="units", compiler_options=ONE_THREAD)
def clipped_sum(
    layers: Layers, offset: Array, key: Array, block: Block, *, units: VisibleUnits
) -> tuple[Array, Array]:
    """Sum of clipped gradients, each record by itself.

    Privacy
    -------
    As `tasks.methods.dpgm.network.GenerativeNetwork.clipped_sum`.
    """
    return sum_of_clipped(partial(_gradient, layers, offset, key, units=units), block)
