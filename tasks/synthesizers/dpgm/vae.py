"""Variational autoencoder with one hidden layer on either side.

No batch normalisation: the loss of a record must be a function of that record alone. The noise of
the reparametrisation is taken from a public seed and the record's own bits, not from its place in
the batch, so that a patient who comes or goes does not give other patients other noise.

Source: DPGM paper, section 3.2 and 6.1; Kingma and Welling 2014.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tasks.measurement.vectors import Block
from tasks.synthesizers.dpgm.elbo import Layers, batch_norms, batch_sum, clipped_sum, decode
from tasks.synthesizers.dpgm.network import (
    BatchGradients,
    ClippedSum,
    checked_parameters,
    checked_seed,
    expect_at_least_one,
)
from tasks.synthesizers.dpgm.record_gradients import (
    ONE_THREAD,
    Array,
    in_blocks,
    in_one_batch,
    sum_in_blocks,
)
from tasks.synthesizers.dpgm.visible_units import VisibleUnits

_FIRST_OUTPUT_STDDEV = 0.01
"""Standard deviation of the first output weights: the decoder starts at the output biases."""

_FIRST_FEATURE_NORM = 4.5
"""Root mean square norm of the decoder's first hidden layer: what a step of the output weights
moves the scores by."""

_FITTING_SEED = 20_190_628
_FITTING_POINTS = 1_024
_FITTING_STEPS = 50
"""Latent points and steps with which the output biases are fitted to a mean."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Vae:
    """Variational autoencoder with Bernoulli and categorical outputs.

    Parameters
    ----------
    blocks
        Kinds of the coordinates, as `tasks.measurement.vectors.VectorMap.blocks`.
    mean : (D,), optional
        Released mean of the records: the encoder sees the distance from it, and the output biases
        start there. Its noise does no harm.
    hidden_units
        Number H of ReLU units in the encoder, and in the decoder, at least 1.
    latent_dimensions
        Number L of latent dimensions, at least 1.

    Raises
    ------
    ValueError
        If a setting is outside its range.
    """

    blocks: tuple[Block, ...]
    mean: NDArray[np.floating] | None = field(default=None, repr=False)
    hidden_units: int = 200
    latent_dimensions: int = 2

    def __post_init__(self) -> None:
        units = self._units
        expect_at_least_one(
            hidden_units=self.hidden_units, latent_dimensions=self.latent_dimensions
        )
        units.expect_mean(self.mean)

    @property
    def width(self) -> int:
        """Number D of visible coordinates."""
        return self._units.width

    @property
    def n_parameters(self) -> int:
        """Number P of weights and biases of all layers."""
        return sum(int(np.prod(shape)) for shape in self._shapes)

    def start(self, public_seed: int) -> NDArray[np.float64]:
        """First parameters: normal weights scaled to each layer, output biases at the mean."""
        rng = np.random.default_rng(checked_seed(public_seed))
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
            for name, shape in zip(Layers._fields, self._shapes, strict=True)
        ]
        if self.mean is not None:
            layers[-1] = self._units.scores_of(self.mean)
        return np.concatenate([layer.ravel() for layer in layers])

    def first_chains(self, public_seed: int) -> NDArray[np.float32]:
        """No chains: an array of shape (0, D)."""
        checked_seed(public_seed)
        return np.zeros((0, self.width), dtype=np.float32)

    def chains(
        self, parameters: NDArray[np.floating], state: NDArray[np.float32], *, step_seed: int
    ) -> NDArray[np.float32]:
        """Return `state` as it is."""
        del parameters, step_seed
        return state

    def clipped_sum(
        self,
        parameters: NDArray[np.floating],
        vectors: NDArray[np.floating],
        weights: NDArray[np.float64],
        *,
        l2_clip_norm: float,
        scale: int,
        step_seed: int,
        state: NDArray[np.float32],
    ) -> ClippedSum:
        """Sum of clipped gradients; see `GenerativeNetwork.clipped_sum`."""
        del state
        with jax.enable_x64(True):
            key = jax.random.key(checked_seed(step_seed))
            layers, offset = self._layers(parameters), self._offset()
            return sum_in_blocks(
                partial(clipped_sum, layers, offset, key, units=self._units),
                vectors,
                weights,
                width=self.width,
                n_parameters=self.n_parameters,
                l2_clip_norm=l2_clip_norm,
                scale=scale,
            )

    def batch_gradients(
        self,
        parameters: NDArray[np.floating],
        vectors: NDArray[np.floating],
        *,
        step_seed: int,
        state: NDArray[np.float32],
    ) -> BatchGradients:
        """Gradients of the negative evidence lower bound; see `GenerativeNetwork.batch_gradients`.

        One draw of the latent vector per record and step.
        """
        del state
        with jax.enable_x64(False):
            key = jax.random.key(checked_seed(step_seed))
            layers, offset = self._layers(parameters), self._offset()
            return in_one_batch(
                partial(batch_norms, layers, offset, key, units=self._units),
                partial(batch_sum, layers, offset, key, units=self._units),
                vectors,
                width=self.width,
            )

    def fitted_to_mean(
        self, parameters: NDArray[np.floating], *, state: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """Fit the output biases on latent points; see `GenerativeNetwork.fitted_to_mean`."""
        del state
        flat = np.array(
            checked_parameters(parameters, n_parameters=self.n_parameters), dtype=np.float64
        )
        if self.mean is None:
            return flat
        rng = np.random.default_rng(_FITTING_SEED)
        latent = rng.standard_normal((_FITTING_POINTS, self.latent_dimensions))
        with jax.enable_x64(False):
            scores = jnp.asarray(self._units.scores_of(self.mean), dtype=jnp.float32)
            points = jnp.asarray(latent, dtype=jnp.float32)
            flat[-self.width :] = _fitted(self._layers(flat), points, scores, units=self._units)
        return flat

    def sample(
        self,
        parameters: NDArray[np.floating],
        n_rows: int,
        rng: np.random.Generator,
        *,
        state: NDArray[np.float32],
    ) -> NDArray[np.float64]:
        """Decode standard normal latent vectors; see `GenerativeNetwork.sample`."""
        del state
        latent = rng.standard_normal((n_rows, self.latent_dimensions))
        with jax.enable_x64(False):
            compute = partial(_expected, self._layers(parameters), units=self._units)
            expected = in_blocks(
                compute, latent, width=self.latent_dimensions, n_outputs=self.width
            )
        return self._units.rounded(rng, expected.astype(np.float64))

    @property
    def _units(self) -> VisibleUnits:
        return VisibleUnits(self.blocks)

    @property
    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        width, hidden, latent = self.width, self.hidden_units, self.latent_dimensions
        shapes: list[tuple[int, ...]] = []
        for inputs, outputs in ((width, hidden), (hidden, 2 * latent), (latent, hidden)):
            shapes += [(inputs, outputs), (outputs,)]
        return (*shapes, (hidden, width), (width,))

    def _layers(self, parameters: NDArray[np.floating]) -> Layers:
        flat = checked_parameters(parameters, n_parameters=self.n_parameters)
        stops = np.cumsum([int(np.prod(shape)) for shape in self._shapes])
        parts = np.split(flat, stops[:-1])
        return Layers(
            *(
                jnp.asarray(part.reshape(shape), dtype=jnp.float32)
                for part, shape in zip(parts, self._shapes, strict=True)
            )
        )

    def _offset(self) -> Array:
        offset = np.zeros(self.width) if self.mean is None else np.clip(self.mean, 0.0, 1.0)
        return jnp.asarray(offset, dtype=jnp.float32)


@partial(jax.jit, static_argnames="units", compiler_options=ONE_THREAD)
def _expected(layers: Layers, latent: Array, *, units: VisibleUnits) -> Array:
    return jax.vmap(lambda one: units.probabilities(decode(layers, one)))(latent)


@partial(jax.jit, static_argnames="units", compiler_options=ONE_THREAD)
def _fitted(layers: Layers, latent: Array, wanted: Array, *, units: VisibleUnits) -> Array:
    """Output biases under which the latent points have the mean of the wanted scores."""
    scores = decode(layers, latent) - layers.output_bias

    def step(_: Array, bias: Array) -> Array:
        expected = jax.vmap(units.probabilities)(scores + bias).mean(axis=0)
        return bias + units.correction(wanted, expected)

    fitted: Array = jax.lax.fori_loop(0, _FITTING_STEPS, step, layers.output_bias)
    return fitted
