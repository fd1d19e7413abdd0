"""Visible units, the block loops and the sum of clipped gradients, apart from any one network."""

import numpy as np
import pytest
from single_gradients import gradient_of_each

from tasks.measurement.vectors import Block
from tasks.synthesizers.dpgm.rbm import Rbm
from tasks.synthesizers.dpgm.record_gradients import ROWS_AT_ONCE
from tasks.synthesizers.dpgm.vae import Vae

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
    Rbm(blocks=MIXED, hidden_units=5, n_chains=256),
    Rbm(blocks=MIXED, mean=MEAN, hidden_units=5, n_chains=256, weight_stddev=0.3),
    Vae(blocks=MIXED, hidden_units=5, latent_dimensions=3),
    Vae(blocks=MIXED, mean=MEAN, hidden_units=5, latent_dimensions=3),
]
NAMES = ["rbm", "rbm_centred", "vae", "vae_centred"]
each_network = pytest.mark.parametrize("network", NETWORKS, ids=NAMES)


def batch(network, vectors, **changed):
    arguments = {"parameters": network.start(1), "state": network.first_chains(1), **changed}
    return network.batch_gradients(vectors=vectors, step_seed=4, **arguments)


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
def test_sum_does_not_depend_on_the_order_of_the_records_to_the_last_bit(network):
    vectors = records(ROWS_AT_ONCE + 9)
    weights = np.random.default_rng(1).uniform(0.0, 1.0, len(vectors))
    together = clipped_sum(network, vectors, weights)
    order = np.random.default_rng(0).permutation(len(vectors))
    shuffled = clipped_sum(network, vectors[order], weights[order])
    assert (shuffled.total == together.total).all()
    assert (shuffled.norms == together.norms[order]).all()


@each_network
def test_norms_and_weighted_sum_of_a_batch_are_those_of_single_gradients(network):
    n = ROWS_AT_ONCE + 3
    vectors, factors = records(n), np.random.default_rng(2).uniform(0.0, 1.0, n)
    found = batch(network, vectors)
    single = each_gradient(network, vectors)
    np.testing.assert_allclose(found.norms, np.linalg.norm(single, axis=1), rtol=1e-4)
    np.testing.assert_allclose(found.weighted_sum(factors), factors @ single, rtol=1e-4, atol=1e-4)


@each_network
def test_clipped_sum_is_the_sum_of_single_clipped_gradients_on_the_grid(network):
    n = ROWS_AT_ONCE + 5
    vectors, weights = records(n), np.random.default_rng(1).uniform(0.0, 1.0, n)
    found = clipped_sum(network, vectors, weights)
    exact = each_gradient(network, vectors)
    norms = np.linalg.norm(exact, axis=1)
    assert (norms > 0.7).any()
    expected = np.trunc(exact * (weights * np.minimum(1.0, 0.7 / norms))[:, None] * SCALE)
    np.testing.assert_allclose(found.norms, norms, rtol=1e-4)
    # Two programs may round a float32 gradient in two ways.
    np.testing.assert_allclose(found.total, expected.sum(axis=0), atol=1e-4 * SCALE)


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
