"""Restricted Boltzmann machine against its definition, by enumeration where that is possible."""

import itertools

import numpy as np
import pytest
from single_gradients import gradient_of_each

from tasks.measurement.vectors import Block
from tasks.methods.dpgm.rbm import Rbm

PIXELS = tuple(Block(start=i, stop=i + 1, kind="binary") for i in range(6))
MEAN = np.array([0.1, 0.5, 0.9, 0.3, 0.4, 0.6])
OFFSETS = {
    False: {"offset": np.zeros(6), "hidden_offset": 0.0},
    True: {"offset": MEAN, "hidden_offset": 0.5},
}
"""Of units, by whether the machine is centred."""


def log_weights(parameters, *, offset, hidden_offset, hidden=4):
    """Log of the unnormalised probability of each of the 2**6 visible vectors: -free energy."""
    every = np.array(list(itertools.product([0.0, 1.0], repeat=6)))
    weights, visible_bias, hidden_bias = np.split(parameters, [6 * hidden, 6 * hidden + 6])
    units = np.array(list(itertools.product([0.0, 1.0], repeat=hidden))) - hidden_offset
    energy = -(
        (every - offset) @ weights.reshape(6, hidden) @ units.T
        + ((every - offset) @ visible_bias)[:, None]
        + units @ hidden_bias
    )
    return every, np.log(np.exp(-energy).sum(axis=1))


@pytest.mark.parametrize("centred", [False, True])
def test_gradient_descends_the_likelihood_when_chains_are_the_model_itself(centred):
    """Chains in which each vector stands by its probability give the exact gradient."""
    machine = Rbm(blocks=PIXELS, mean=MEAN if centred else None, hidden_units=4)
    parameters = np.random.default_rng(1).normal(0, 0.4, machine.n_parameters)
    every, weights = log_weights(parameters, **OFFSETS[centred])
    place = 0b101100
    record = every[place]

    def loss(at):
        _, weights = log_weights(at, **OFFSETS[centred])
        return np.log(np.exp(weights).sum()) - weights[place]

    share = np.exp(weights) / np.exp(weights).sum()
    copies = np.round(share * 40_000).astype(int)
    chains = np.repeat(every, copies, axis=0).astype(np.float32)
    found = gradient_of_each(machine, parameters, record[None, :], step_seed=0, state=chains)[0]
    step = 1e-5 * np.eye(machine.n_parameters)
    slopes = [(loss(parameters + s) - loss(parameters - s)) / 2e-5 for s in step]
    np.testing.assert_allclose(found, slopes, atol=2e-3)


def test_chains_reach_the_distribution_of_the_model():
    machine = Rbm(blocks=PIXELS, hidden_units=4, n_chains=256, gibbs_steps=20)
    parameters = np.random.default_rng(2).normal(0, 0.8, machine.n_parameters)
    every, weights = log_weights(parameters, **OFFSETS[False])
    share = np.exp(weights) / np.exp(weights).sum()
    state, states = machine.first_chains(1), []
    for step in range(16):
        state = machine.chains(parameters, state, step_seed=step)
        states.append(state)
    state = np.concatenate(states)
    seen = np.bincount((state @ 2 ** np.arange(5, -1, -1)).astype(int), minlength=64) / len(state)
    assert np.abs(seen - share).sum() / 2 < 0.08
    np.testing.assert_allclose(state.mean(axis=0), share @ every, atol=0.04)
