"""Variational autoencoder against its lower bound, written out in numpy."""

import jax
import numpy as np
import pytest
from single_gradients import gradient_of_each

from tasks.measurement.vectors import Block
from tasks.methods.dpgm.elbo import key_of
from tasks.methods.dpgm.vae import Vae

MIXED = (
    Block(start=0, stop=1, kind="unit"),
    Block(start=1, stop=4, kind="one_hot"),
    Block(start=4, stop=5, kind="binary"),
)
MEAN = np.array([0.5, 0.2, 0.3, 0.5, 0.4])


def layers_of(parameters, shapes):
    stops = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])
    return [
        part.reshape(shape)
        for part, shape in zip(np.split(parameters, stops[:-1]), shapes, strict=True)
    ]


def reference_loss(parameters, record, noise, *, offset, hidden=3, latent=2):
    """Negative evidence lower bound of one record of kind MIXED."""
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


@pytest.mark.parametrize("mean", [None, MEAN], ids=["plain", "centred"])
def test_gradient_is_that_of_the_negative_lower_bound(mean):
    network = Vae(blocks=MIXED, mean=mean, hidden_units=3)
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
