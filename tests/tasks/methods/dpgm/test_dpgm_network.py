import itertools

import jax
import numpy as np
import pytest
from single_gradients import gradient_of_each

from tasks.measurement.vectors import Block
from tasks.methods.dpgm.rbm import Rbm
from tasks.methods.dpgm.record_gradients import ROWS_AT_ONCE
from tasks.methods.dpgm.vae import Vae, key_of

MIXED = (
    Block(start=0, stop=1, kind="unit"),
    Block(start=1, stop=4, kind="one_hot"),
    Block(start=4, stop=5, kind="binary"),
    Block(start=5, stop=7, kind="one_hot"),
)
SCALE = 2**24


def records(n, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate(
        [
            rng.random((n, 1)),
            np.eye(3)[rng.integers(3, size=n)],
            rng.integers(2, size=(n, 1)),
            np.eye(2)[rng.integers(2, size=n)],
        ],
        axis=1,
    )


MEAN = records(200, seed=9).mean(axis=0)
NETWORKS = [
    Rbm(blocks=MIXED, hidden_units=5),
    Rbm(blocks=MIXED, mean=MEAN, hidden_units=5),
    Vae(blocks=MIXED, hidden_units=5, latent_dimensions=3),
    Vae(blocks=MIXED, mean=MEAN, hidden_units=5, latent_dimensions=3),
]
NAMES = ["rbm", "rbm_centred", "vae", "vae_centred"]
each_network = pytest.mark.parametrize("network", NETWORKS, ids=NAMES)


def each_gradient(network, vectors):
    return gradient_of_each(
        network, network.start(1), vectors, step_seed=4, state=network.first_chains(1)
    )


def clipped_sum(network, vectors, weights, *, clip=0.7, scale=SCALE):
    return network.clipped_sum(
        network.start(1),
        vectors,
        weights,
        l2_clip_norm=clip,
        scale=scale,
        step_seed=4,
        state=network.first_chains(1),
    )


@each_network
def test_sums_of_a_batch_are_those_of_single_gradients_in_any_order(network):
    n = ROWS_AT_ONCE + 5
    vectors, weights = records(n), np.random.default_rng(1).uniform(0.0, 1.0, n)
    exact = each_gradient(network, vectors)
    norms = np.linalg.norm(exact, axis=1)
    assert (norms > 0.7).any()
    clipped = clipped_sum(network, vectors, weights)
    expected = np.trunc(exact * (weights * np.minimum(1.0, 0.7 / norms))[:, None] * SCALE)
    np.testing.assert_allclose(clipped.norms, norms, rtol=1e-4)
    np.testing.assert_allclose(clipped.total, expected.sum(axis=0), atol=1e-4 * SCALE)
    # In another order the sum is the same to the last bit.
    order = np.random.default_rng(0).permutation(n)
    shuffled = clipped_sum(network, vectors[order], weights[order])
    assert (shuffled.total == clipped.total).all()
    assert (shuffled.norms == clipped.norms[order]).all()


@each_network
def test_one_record_moves_the_clipped_sum_by_exactly_its_own_part_and_within_the_sensitivity(
    network,
):
    vectors = records(ROWS_AT_ONCE + 2, seed=3)
    weights = np.ones(len(vectors))
    everyone = clipped_sum(network, vectors, weights, clip=0.1)
    for left_out in (0, 5, ROWS_AT_ONCE + 1):
        others = np.delete(np.arange(len(vectors)), left_out)
        without = clipped_sum(network, vectors[others], weights[others], clip=0.1)
        alone = clipped_sum(network, vectors[left_out : left_out + 1], weights[:1], clip=0.1)
        assert (everyone.total - without.total == alone.total).all()
        assert np.linalg.norm(alone.total.astype(np.float64)) <= 0.1 * SCALE
        assert np.linalg.norm(alone.total.astype(np.float64)) > 0.0999 * SCALE
        assert (np.delete(everyone.norms, left_out) == without.norms).all()


@each_network
def test_record_of_weight_zero_or_without_a_finite_gradient_adds_nothing(network):
    vectors = records(3)
    alone = clipped_sum(network, vectors[:1], np.ones(1))
    assert (clipped_sum(network, vectors, np.array([1.0, 0.0, 0.0])).total == alone.total).all()
    vectors[1] = np.inf
    vectors[2] = np.nan
    found = clipped_sum(network, vectors, np.ones(3))
    assert (found.total == alone.total).all()
    assert np.isinf(found.norms[1:]).all()


# The machine, by enumeration of all of its vectors.
PIXELS = tuple(Block(start=i, stop=i + 1, kind="binary") for i in range(6))
PIXEL_MEAN = np.array([0.1, 0.5, 0.9, 0.3, 0.4, 0.6])
OFFSETS = {
    False: {"offset": np.zeros(6), "hidden_offset": 0.0},
    True: {"offset": PIXEL_MEAN, "hidden_offset": 0.5},
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
    machine = Rbm(blocks=PIXELS, mean=PIXEL_MEAN if centred else None, hidden_units=4)
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
    machine = Rbm(blocks=PIXELS, hidden_units=4, gibbs_steps=20)
    parameters = np.random.default_rng(2).normal(0, 0.8, machine.n_parameters)
    every, weights = log_weights(parameters, **OFFSETS[False])
    share = np.exp(weights) / np.exp(weights).sum()
    state, states = machine.first_chains(1), []
    for step in range(41):
        state = machine.chains(parameters, state, step_seed=step)
        states.append(state)
    state = np.concatenate(states)
    seen = np.bincount((state @ 2 ** np.arange(5, -1, -1)).astype(int), minlength=64) / len(state)
    assert np.abs(seen - share).sum() / 2 < 0.08
    np.testing.assert_allclose(state.mean(axis=0), share @ every, atol=0.04)


# The autoencoder: its lower bound written out in numpy.
FIRST_MEAN = np.array([0.5, 0.2, 0.3, 0.5, 0.4])


def layers_of(parameters, shapes):
    stops = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])
    return [
        part.reshape(shape)
        for part, shape in zip(np.split(parameters, stops[:-1]), shapes, strict=True)
    ]


def reference_loss(parameters, record, noise, *, offset, hidden=3, latent=2):
    """Negative evidence lower bound of one record of the first three blocks."""
    sides = ((5, hidden), (hidden, 2 * latent), (latent, hidden), (hidden, 5))
    shapes = [shape for inputs, outputs in sides for shape in ((inputs, outputs), (outputs,))]
    w1, b1, w2, b2, w3, b3, w4, b4 = layers_of(parameters, shapes)
    moments = np.maximum((record - offset) @ w1 + b1, 0.0) @ w2 + b2
    centre, log_variance = moments[:latent], moments[latent:]
    z = centre + np.exp(log_variance / 2) * noise
    scores = np.maximum(z @ w3 + b3, 0.0) @ w4 + b4
    divergence = 0.5 * np.sum(centre**2 + np.exp(log_variance) - 1 - log_variance)
    chance = 1.0 / (1.0 + np.exp(-scores[[0, 4]]))
    numbers = record[[0, 4]]
    likelihood = np.sum(numbers * np.log(chance) + (1 - numbers) * np.log(1 - chance))
    level = np.exp(scores[1:4]) / np.exp(scores[1:4]).sum()
    return divergence - likelihood - np.log(level[record[1:4].argmax()])


@jax.jit
def own_noise(step_key, vector):
    return jax.random.normal(key_of(step_key, vector), (2,), dtype=vector.dtype)


def noise_of(record, step_seed):
    with jax.enable_x64(False):
        noise = own_noise(jax.random.key(step_seed), np.asarray(record, dtype=np.float32))
    return np.asarray(noise, dtype=np.float64)


@pytest.mark.parametrize("mean", [None, FIRST_MEAN], ids=["plain", "centred"])
def test_gradient_is_that_of_the_negative_lower_bound(mean):
    network = Vae(blocks=MIXED[:3], mean=mean, hidden_units=3)
    parameters = network.start(1) + np.random.default_rng(0).normal(0, 0.3, network.n_parameters)
    offset = np.zeros(5) if mean is None else mean
    records = np.array([[0.3, 0, 1, 0, 1], [0.9, 1, 0, 0, 0]])
    state = network.first_chains(0)
    found = gradient_of_each(network, parameters, records, step_seed=7, state=state)
    step = 1e-6 * np.eye(network.n_parameters)
    for record, gradient in zip(records, found, strict=True):
        noise = noise_of(record, 7)

        def loss(at, record=record, noise=noise):
            return reference_loss(at, record, noise, offset=offset)

        slopes = [(loss(parameters + s) - loss(parameters - s)) / 2e-6 for s in step]
        np.testing.assert_allclose(gradient, slopes, rtol=1e-3, atol=1e-4)
