"""Restricted Boltzmann machine trained by persistent contrastive divergence.

With a released mean of the records the machine is centred: units enter as their distance from an
offset, and the biases start where the mean is. It is the same family of distributions with renamed
biases (Montavon and Mueller 2012), but the gradient of a record is several times shorter, so that
clipping keeps more of it under the same noise. Without a mean it is the paper's machine.

Source: DPGM paper, section 3.1 and 6.1; Tieleman 2008 for the persistent chains.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from privacy.arrays import AnyFloats, Floats, Floats32
from tasks.measurement.vectors import middle_of
from tasks.methods.dpgm.network import GenerativeNetwork, SumOfBlock, VisibleUnits
from tasks.methods.dpgm.record_gradients import ONE_THREAD, Block, sum_of_clipped

_HIDDEN_CENTRE = 0.5
"""Offset of the hidden units of a centred machine: their mean where the weights are small."""

_FIRST_WEIGHT_STDDEV = 0.01

_CHAINS = 100
"""Persistent chains: more of them would cost time alone."""

_DRAWING_CHAINS = 256
"""Chains run side by side when records are drawn."""

_BURN_IN_SWEEPS, _SWEEPS_BETWEEN_ROWS = 200, 20
"""Sweeps before the first record is drawn, and between two records of one chain."""

_FITTING_SEED = 20_190_628
_FITTING_SWEEPS = 300
_FULL_STEPS = 20
_STEP_POWER = 0.6
"""Biases are fitted to a mean by Robbins and Monro: after some full steps, steps fall by a power
of their number, and the biases of the later half are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rbm(GenerativeNetwork):
    """Restricted Boltzmann machine with Bernoulli and softmax visible units.

    The persistent chains are public; `gibbs_steps` sweeps of them follow every training step.
    """

    gibbs_steps: int = 30

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Weights (D, H), visible biases (D,), hidden biases (H,)."""
        return (self.width, self.hidden_units), (self.width,), (self.hidden_units,)

    @property
    def visible_biases(self) -> slice:
        """Slice of the P parameters that holds the biases of the visible units."""
        n_weights = self.width * self.hidden_units
        return slice(n_weights, n_weights + self.width)

    def start(self, public_seed: int) -> Floats:
        """First parameters: small normal weights, hidden biases 0, visible biases at the mean."""
        rng = np.random.default_rng(public_seed)
        weights = rng.normal(0.0, _FIRST_WEIGHT_STDDEV, self.width * self.hidden_units)
        visible = np.zeros(self.width) if self.mean is None else self.units.scores_of(self.mean)
        return np.concatenate([weights, visible, np.zeros(self.hidden_units)])

    def first_chains(self, public_seed: int) -> Floats32:
        """First state of the chains, (n_chains, D): draws of the visible units by themselves."""
        rng = np.random.default_rng(public_seed)
        alone = middle_of(self.blocks) if self.mean is None else self.offset
        expected = np.tile(alone, (_CHAINS, 1))
        return self.units.rounded(rng, expected, keep_numbers=False).astype(np.float32)

    def chains(self, parameters: AnyFloats, state: Floats32, *, step_seed: int) -> Floats32:
        """Run the chains for `gibbs_steps` sweeps; see `GenerativeNetwork.chains`."""
        with jax.enable_x64(False):
            moved, _ = self._sweep(parameters, state, step_seed, self.gibbs_steps)
            return np.asarray(moved)

    def sum_of_block(self, parameters: AnyFloats, step_seed: int, state: Floats32) -> SumOfBlock:
        """Negative phase, the mean over the chains and the same for all, less positive phase."""
        machine = self._machine(parameters)
        return partial(_clipped_sum, machine, _negative_phase(machine, jnp.asarray(state)))

    def biases_at_mean(self, parameters: AnyFloats, scores: Array, state: Floats32) -> Array:
        """Fit the visible biases while chains run."""
        rng = np.random.default_rng(_FITTING_SEED)
        chains = jnp.asarray(state[rng.integers(len(state), size=_DRAWING_CHAINS)])
        key = jax.random.key(_FITTING_SEED)
        fitted: Array = _fitted(self._machine(parameters), chains, key, scores, units=self.units)
        return fitted

    def sample(
        self, parameters: AnyFloats, n_rows: int, rng: np.random.Generator, *, state: Floats32
    ) -> Floats:
        """Draw records by running chains on from `state`; see `GenerativeNetwork.sample`."""
        expected = np.empty((n_rows, self.width))
        state = state[rng.integers(len(state), size=_DRAWING_CHAINS)]
        n_sweeps = _BURN_IN_SWEEPS
        with jax.enable_x64(False):
            for start in range(0, n_rows, _DRAWING_CHAINS):
                seed = int(rng.integers(2**32))
                moved, of_visible = self._sweep(parameters, state, seed, n_sweeps)
                state, n_sweeps = np.asarray(moved), _SWEEPS_BETWEEN_ROWS
                part = expected[start : start + _DRAWING_CHAINS]
                part[:] = np.asarray(of_visible)[: len(part)]
        return self.units.rounded(rng, expected)

    def _machine(self, parameters: AnyFloats) -> dict[str, Array]:
        weights, visible_bias, hidden_bias = self.arrays(parameters)
        hidden_offset = 0.0 if self.mean is None else _HIDDEN_CENTRE
        return {
            "weights": weights,
            "visible_bias": visible_bias,
            "hidden_bias": hidden_bias,
            "visible_offset": jnp.asarray(self.offset, dtype=jnp.float32),
            "hidden_offset": jnp.asarray(hidden_offset, dtype=jnp.float32),
        }

    def _sweep(
        self, parameters: AnyFloats, state: Floats32, seed: int, n_sweeps: int
    ) -> tuple[Array, Array]:
        key, machine = jax.random.key(seed), self._machine(parameters)
        moved, expected = _sweeps(machine, jnp.asarray(state), key, n_sweeps, units=self.units)
        return moved, expected


def _hidden_scores(machine: dict[str, Array], visible: Array) -> Array:
    centred = visible - machine["visible_offset"]
    return centred @ machine["weights"] + machine["hidden_bias"]


def _phase(machine: dict[str, Array], visible: Array) -> tuple[Array, Array]:
    """Centred visible and expected hidden units: their outer product is a phase."""
    hidden = jax.nn.sigmoid(_hidden_scores(machine, visible))
    return visible - machine["visible_offset"], hidden - machine["hidden_offset"]


@partial(jax.jit, compiler_options=ONE_THREAD)
def _negative_phase(machine: dict[str, Array], chains: Array) -> tuple[Array, ...]:
    visible, hidden = _phase(machine, chains)
    return visible.T @ hidden / len(chains), visible.mean(axis=0), hidden.mean(axis=0)


def _gradient(
    machine: dict[str, Array], negative: tuple[Array, ...], record: Array
) -> tuple[Array, ...]:
    visible, hidden = _phase(machine, record)
    positive = (visible[:, None] * hidden[None, :], visible, hidden)
    return tuple(public - own for public, own in zip(negative, positive, strict=True))


@partial(jax.jit, compiler_options=ONE_THREAD)
def _clipped_sum(
    machine: dict[str, Array], negative: tuple[Array, ...], block: Block
) -> tuple[Array, Array]:
    return sum_of_clipped(partial(_gradient, machine, negative), block)


def _draw(key: Array, scores: Array, *, units: VisibleUnits) -> Array:
    return jax.vmap(units.draw)(jax.random.split(key, len(scores)), scores)


def _from_hidden(machine: dict[str, Array], visible: Array, key: Array) -> Array:
    """Scores of the visible units without their biases, after a draw of the hidden units."""
    chance = jax.nn.sigmoid(_hidden_scores(machine, visible))
    hidden = jax.random.uniform(key, chance.shape, chance.dtype) < chance
    centred = hidden.astype(chance.dtype) - machine["hidden_offset"]
    return centred @ machine["weights"].T


@partial(jax.jit, static_argnames="units", compiler_options=ONE_THREAD)
def _fitted(
    machine: dict[str, Array], chains: Array, key: Array, wanted: Array, *, units: VisibleUnits
) -> Array:
    """Visible biases under which the chains have the mean of the wanted scores."""

    def sweep(number: Array, carried: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        chains, bias, average = carried
        of_hidden, of_visible = jax.random.split(jax.random.fold_in(key, number))
        scores = _from_hidden(machine, chains, of_hidden) + bias
        expected = jax.vmap(units.probabilities)(scores).mean(axis=0)
        rate = (1.0 + number / _FULL_STEPS) ** -_STEP_POWER
        bias = bias + rate * units.correction(wanted, expected)
        late = number - _FITTING_SWEEPS // 2
        average = jnp.where(late > 0, average + (bias - average) / jnp.maximum(late, 1), bias)
        return _draw(of_visible, scores, units=units), bias, average

    first = (chains, machine["visible_bias"], machine["visible_bias"])
    fitted: Array = jax.lax.fori_loop(0, _FITTING_SWEEPS, sweep, first)[2]
    return fitted


@partial(jax.jit, static_argnames="units", compiler_options=ONE_THREAD)
def _sweeps(
    machine: dict[str, Array], chains: Array, key: Array, n_sweeps: Array, *, units: VisibleUnits
) -> tuple[Array, Array]:
    """Chains after some Gibbs sweeps, and the expected visible units of the last sweep."""

    def sweep(number: Array, carried: tuple[Array, Array]) -> tuple[Array, Array]:
        of_hidden, of_visible = jax.random.split(jax.random.fold_in(key, number))
        scores = _from_hidden(machine, carried[0], of_hidden) + machine["visible_bias"]
        return _draw(of_visible, scores, units=units), scores

    first = (chains, jnp.zeros_like(chains))
    state, scores = jax.lax.fori_loop(0, n_sweeps, sweep, first)
    return state, jax.vmap(units.probabilities)(scores)
