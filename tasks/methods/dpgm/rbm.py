"""Restricted Boltzmann machine trained by persistent contrastive divergence.

With a released mean of the records the machine is centred: units enter as their distance from an
offset, and the biases start where the mean is. It is the same family of distributions with other
names for the biases (Montavon and Mueller 2012), but the gradient of a record is several times
shorter, so that clipping keeps more of it under the same noise. Without a mean it is the machine of
the paper, to the letter.

Source: DPGM paper, section 3.1 and 6.1; Tieleman 2008 for the persistent chains.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from privacy.arrays import AnyFloats, Floats, Floats32
from tasks.methods.dpgm.network import GenerativeNetwork, Programs, checked_seed
from tasks.methods.dpgm.record_gradients import ONE_THREAD, Block, sum_of_clipped
from tasks.methods.dpgm.visible_units import VisibleUnits

_HIDDEN_CENTRE = 0.5
"""Offset of the hidden units of a centred machine: their mean where the weights are small."""

_DRAWING_CHAINS = 256
"""Chains run side by side when records are drawn."""

_FITTING_SEED = 20_190_628
_FITTING_SWEEPS = 300
_FULL_STEPS = 20
_STEP_POWER = 0.6
"""Biases are fitted to a mean by Robbins and Monro: after some full steps, steps fall by a power
of their number, and the biases of the later half are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rbm(GenerativeNetwork):
    """Restricted Boltzmann machine with Bernoulli and softmax visible units.

    Persistent chains are public: many cost time alone. There are 1 or more sweeps per step of
    training, before the first record is drawn, and between two records of one chain.
    """

    weight_stddev: float = 0.01
    n_chains: int = 100
    gibbs_steps: int = 30
    burn_in_sweeps: int = 200
    sweeps_between_rows: int = 20

    def __post_init__(self) -> None:
        GenerativeNetwork.__post_init__(self)
        if not self.weight_stddev > 0.0:
            raise ValueError(f"expected a weight_stddev above 0, found {self.weight_stddev}")

    @property
    def counts(self) -> dict[str, int]:
        """Settings that are at least 1, by name."""
        return {
            "hidden_units": self.hidden_units,
            "n_chains": self.n_chains,
            "gibbs_steps": self.gibbs_steps,
            "burn_in_sweeps": self.burn_in_sweeps,
            "sweeps_between_rows": self.sweeps_between_rows,
        }

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Weights (D, H), visible biases (D,), hidden biases (H,)."""
        return (self.width, self.hidden_units), (self.width,), (self.hidden_units,)

    @property
    def visible_biases(self) -> slice:
        """Which of the P parameters are the biases of the visible units."""
        n_weights = self.width * self.hidden_units
        return slice(n_weights, n_weights + self.width)

    def start(self, public_seed: int) -> Floats:
        """First parameters: small normal weights, hidden biases 0, visible biases at the mean."""
        rng = np.random.default_rng(checked_seed(public_seed))
        weights = rng.normal(0.0, self.weight_stddev, self.width * self.hidden_units)
        visible = np.zeros(self.width) if self.mean is None else self.units.scores_of(self.mean)
        return np.concatenate([weights, visible, np.zeros(self.hidden_units)])

    def first_chains(self, public_seed: int) -> Floats32:
        """First state of the chains, (n_chains, D): draws of the visible units by themselves."""
        rng = np.random.default_rng(checked_seed(public_seed))
        alone = self.units.middle if self.mean is None else self.offset
        expected = np.tile(alone, (self.n_chains, 1))
        return self.units.rounded(rng, expected, keep_numbers=False).astype(np.float32)

    def chains(self, parameters: AnyFloats, state: Floats32, *, step_seed: int) -> Floats32:
        """Run the chains for `gibbs_steps` sweeps; see `GenerativeNetwork.chains`."""
        with jax.enable_x64(False):
            moved, _ = self._sweep(parameters, state, step_seed, self.gibbs_steps)
            return np.asarray(moved)

    def programs(self, parameters: AnyFloats, step_seed: int, state: Floats32) -> Programs:
        """Negative phase, the mean over the chains and the same for all, less positive phase."""
        machine = self._machine(parameters)
        negative = _negative_phase(machine, jnp.asarray(self._checked_state(state)))
        return Programs(
            partial(_clipped_sum, machine, negative),
            partial(_batch_norms, machine, negative),
            partial(_batch_sum, machine, negative),
        )

    def biases_at_mean(self, parameters: AnyFloats, scores: Array, state: Floats32) -> Array:
        """Fit the visible biases while chains run."""
        state = self._checked_state(state)
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
        state = self._checked_state(state)
        state = state[rng.integers(len(state), size=_DRAWING_CHAINS)]
        n_sweeps = self.burn_in_sweeps
        with jax.enable_x64(False):
            for start in range(0, n_rows, _DRAWING_CHAINS):
                seed = int(rng.integers(2**32))
                moved, of_visible = self._sweep(parameters, state, seed, n_sweeps)
                state, n_sweeps = np.asarray(moved), self.sweeps_between_rows
                part = expected[start : start + _DRAWING_CHAINS]
                part[:] = np.asarray(of_visible)[: len(part)]
        return self.units.rounded(rng, expected)

    def _machine(self, parameters: AnyFloats) -> dict[str, Array]:
        """Weights, biases and offsets as float32 arrays of jax."""
        weights, visible_bias, hidden_bias = self.arrays(parameters)
        hidden_offset = 0.0 if self.mean is None else _HIDDEN_CENTRE
        return {
            "weights": weights,
            "visible_bias": visible_bias,
            "hidden_bias": hidden_bias,
            "visible_offset": jnp.asarray(self.offset, dtype=jnp.float32),
            "hidden_offset": jnp.asarray(hidden_offset, dtype=jnp.float32),
        }

    def _checked_state(self, state: Floats32) -> Floats32:
        if state.ndim != 2 or state.shape[1] != self.width or not len(state):
            raise ValueError(
                f"expected chains of shape (1 or more, {self.width}), found {state.shape}"
            )
        return np.asarray(state, dtype=np.float32)

    def _sweep(
        self, parameters: AnyFloats, state: Floats32, seed: int, n_sweeps: int
    ) -> tuple[Array, Array]:
        key = jax.random.key(checked_seed(seed))
        chains = jnp.asarray(self._checked_state(state))
        machine = self._machine(parameters)
        moved, expected = _sweeps(machine, chains, key, n_sweeps, units=self.units)
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
def _batch_norms(machine: dict[str, Array], negative: tuple[Array, ...], vectors: Array) -> Array:
    """Norms of `_gradient`: ``|N - v h^T|**2 = |N|**2 - 2 v^T N h + |v|**2 |h|**2``."""
    visible, hidden = _phase(machine, vectors)
    of_weights, of_visible, of_hidden = negative
    crossed = jnp.sum((visible @ of_weights) * hidden, axis=1)
    sizes = jnp.sum(visible**2, axis=1) * jnp.sum(hidden**2, axis=1)
    squared = jnp.sum(of_weights**2) - 2.0 * crossed + sizes
    squared += jnp.sum((of_visible - visible) ** 2, axis=1)
    squared += jnp.sum((of_hidden - hidden) ** 2, axis=1)
    return jnp.sqrt(jnp.maximum(squared, 0.0))


@partial(jax.jit, compiler_options=ONE_THREAD)
def _batch_sum(
    machine: dict[str, Array], negative: tuple[Array, ...], vectors: Array, factors: Array
) -> Array:
    visible, hidden = _phase(machine, vectors)
    total = jnp.sum(factors)
    own = visible.T @ (hidden * factors[:, None]), factors @ visible, factors @ hidden
    summed = [total * public - part for public, part in zip(negative, own, strict=True)]
    return jnp.concatenate([leaf.ravel() for leaf in summed])


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
