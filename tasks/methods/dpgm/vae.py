"""Variational autoencoder with one hidden layer on either side.

No batch normalisation: the loss of a record must be a function of that record alone. The noise of
the reparametrisation is taken from a public seed and the record's own bits, not from its place in
the batch, so that a patient who comes or goes does not give other patients other noise.

Source: DPGM paper, section 3.2 and 6.1; Kingma and Welling 2014.
"""

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from privacy.arrays import AnyFloats, Floats, Floats32
from tasks.methods.dpgm.network import GenerativeNetwork, SumOfBlock, VisibleUnits
from tasks.methods.dpgm.record_gradients import ONE_THREAD, Block, padded_blocks, sum_of_clipped

_FIRST_OUTPUT_STDDEV = 0.01
"""Standard deviation of the first output weights: the decoder starts at the output biases."""

_FIRST_FEATURE_NORM = 4.5
"""Root mean square norm of the decoder's first hidden layer, which scales the effect on the scores
of a step of the output weights."""

_FITTING_SEED = 20_190_628
_FITTING_POINTS = 1_024
_FITTING_STEPS = 50
"""Latent points and steps with which the output biases are fitted to a mean."""

_HASH_SEED = 20_190_426
"""Public seed of the odd multipliers that turn the bits of a record into a number."""


class _Layers(NamedTuple):
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
    """One vector per layer: its biases, their derivatives, or its input."""

    encoder: Array
    latent: Array
    decoder: Array
    output: Array


def _decode(layers: _Layers, latent: Array) -> Array:
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
    layers: _Layers,
    offset: Array,
    record: Array,
    *,
    noise: Array,
    units: VisibleUnits,
) -> tuple[Array, _Biases]:
    """Negative evidence lower bound of one record, and the input of each layer."""
    # Biases are separate arguments: their gradients are those of the pre-activations.
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
    layers: _Layers, offset: Array, key: Array, record: Array, *, units: VisibleUnits
) -> _Layers:
    latent_shape = (layers.decoder.shape[0],)
    noise = jax.random.normal(key_of(key, record), latent_shape, dtype=record.dtype)
    biases = _Biases(*layers[1::2])
    slopes, fed = jax.grad(_negative_elbo, has_aux=True)(
        biases, layers, offset, record, noise=noise, units=units
    )
    # By the chain rule the derivative by a layer's weights is an outer product. Written so, it is
    # made inside the loops that read it and is never stored.
    by_layer = ((into[:, None] * own, own) for into, own in zip(fed, slopes, strict=True))
    return _Layers(*chain.from_iterable(by_layer))


@partial(jax.jit, static_argnames="units", compiler_options=ONE_THREAD)
def _clipped_sum(
    layers: _Layers, offset: Array, key: Array, block: Block, *, units: VisibleUnits
) -> tuple[Array, Array]:
    """Sum of clipped gradients, each record by itself; see `GenerativeNetwork.clipped_sum`."""
    return sum_of_clipped(partial(_gradient, layers, offset, key, units=units), block)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vae(GenerativeNetwork):
    """Variational autoencoder with Bernoulli and categorical outputs, and L latent dimensions."""

    latent_dimensions: int = 2

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Weights and biases of the layers, in the order of `_Layers`."""
        width, hidden, latent = self.width, self.hidden_units, self.latent_dimensions
        sides = ((width, hidden), (hidden, 2 * latent), (latent, hidden), (hidden, width))
        return tuple(shape for side in sides for shape in (side, side[1:]))

    @property
    def visible_biases(self) -> slice:
        """Slice of the P parameters that holds the biases of the visible units."""
        return slice(-self.width, None)

    def start(self, public_seed: int) -> Floats:
        """First parameters: normal weights scaled to each layer, output biases at the mean."""
        rng = np.random.default_rng(public_seed)
        width, hidden, latent = self.width, self.hidden_units, self.latent_dimensions
        # Half of the square of a centred number survives a ReLU; a fifth of the spread is bias.
        feature_variance = 2.0 * _FIRST_FEATURE_NORM**2 / hidden
        stddevs = {
            "encoder": np.sqrt(2.0 / width),
            "encoder_bias": 0.0,
            "latent": np.sqrt(1.0 / hidden),
            "latent_bias": 0.0,
            "decoder": np.sqrt(0.8 * feature_variance / latent),
            "decoder_bias": np.sqrt(0.2 * feature_variance),
            "output": _FIRST_OUTPUT_STDDEV,
            "output_bias": 0.0,
        }
        layers = [
            rng.normal(0.0, stddevs[name], shape)
            for name, shape in zip(_Layers._fields, self.shapes, strict=True)
        ]
        if self.mean is not None:
            layers[-1] = self.units.scores_of(self.mean)
        return np.concatenate([layer.ravel() for layer in layers])

    def sum_of_block(self, parameters: AnyFloats, step_seed: int, state: Floats32) -> SumOfBlock:
        """Gradients of the negative evidence lower bound, one draw of the latent vector each."""
        key, layers = jax.random.key(step_seed), _Layers(*self.arrays(parameters))
        offset = jnp.asarray(self.offset, dtype=jnp.float32)
        return partial(_clipped_sum, layers, offset, key, units=self.units)

    def biases_at_mean(self, parameters: AnyFloats, scores: Array, state: Floats32) -> Array:
        """Fit the output biases on latent points."""
        rng = np.random.default_rng(_FITTING_SEED)
        latent = rng.standard_normal((_FITTING_POINTS, self.latent_dimensions))
        points, layers = jnp.asarray(latent, dtype=jnp.float32), _Layers(*self.arrays(parameters))
        fitted: Array = _fitted(layers, points, scores, units=self.units)
        return fitted

    def sample(
        self, parameters: AnyFloats, n_rows: int, rng: np.random.Generator, *, state: Floats32
    ) -> Floats:
        """Decode standard normal latent vectors; see `GenerativeNetwork.sample`."""
        latent = rng.standard_normal((n_rows, self.latent_dimensions))
        with jax.enable_x64(False):
            layers, expected = _Layers(*self.arrays(parameters)), np.empty((n_rows, self.width))
            for rows, padded in padded_blocks(latent):
                found = _expected(layers, jnp.asarray(padded), units=self.units)
                expected[rows] = np.asarray(found)[: rows.stop - rows.start]
        return self.units.rounded(rng, expected)


@partial(jax.jit, static_argnames="units", compiler_options=ONE_THREAD)
def _expected(layers: _Layers, latent: Array, *, units: VisibleUnits) -> Array:
    return jax.vmap(lambda one: units.probabilities(_decode(layers, one)))(latent)


@partial(jax.jit, static_argnames="units", compiler_options=ONE_THREAD)
def _fitted(layers: _Layers, latent: Array, wanted: Array, *, units: VisibleUnits) -> Array:
    """Output biases under which the latent points have the mean of the wanted scores."""
    scores = _decode(layers, latent) - layers.output_bias

    def step(_: Array, bias: Array) -> Array:
        expected = jax.vmap(units.probabilities)(scores + bias).mean(axis=0)
        return bias + units.correction(wanted, expected)

    fitted: Array = jax.lax.fori_loop(0, _FITTING_STEPS, step, layers.output_bias)
    return fitted
