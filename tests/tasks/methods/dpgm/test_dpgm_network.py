"""Visible units, the block loops and the sum of clipped gradients, apart from any one network."""

import numpy as np
import pytest
from single_gradients import gradient_of_each

from tasks.measurement.vectors import Block
from tasks.methods.dpgm.rbm import Rbm
from tasks.methods.dpgm.record_gradients import ROWS_AT_ONCE
from tasks.methods.dpgm.vae import Vae

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
    Rbm(blocks=MIXED, mean=MEAN, hidden_units=5, n_chains=256),
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
