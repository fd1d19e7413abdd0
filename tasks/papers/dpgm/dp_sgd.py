"""Algorithms 3 and 4 of the DPGM paper as printed: the norm bound and the descent of one batch.

Flaw G8: both read the same batch, and their costs are added up as if they did not. Flaw G7: the
sampling rate follows the exact size of the cluster.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tasks.measurement.descent import Descent
from tasks.synthesizers.dpgm.network import GenerativeNetwork
from tasks.synthesizers.dpgm.record_gradients import BatchGradients

MAX_NORM = 10.0
"""C_max of section 6.1."""

NORM_BINS = 100
"""The w of section 6.1."""

_ROOT_2 = math.sqrt(2.0)


def private_norm(
    norms: NDArray[np.float64],
    *,
    sigma_c: float,
    rng: np.random.Generator,
    max_norm: float = MAX_NORM,
    n_bins: int = NORM_BINS,
) -> float:
    """Algorithm 3: upper end of the bin with the largest noisy count.

    Norms, of shape (n,), above `max_norm` are in no bin; the settings are C_max and w.
    """
    upper = np.arange(1, n_bins + 1) * max_norm / n_bins
    # Bin j holds (C_{j-1}, C_j], so that a norm of zero is in none.
    index = np.searchsorted(upper, norms[norms > 0.0], side="left")
    counts = np.bincount(index[index < n_bins], minlength=n_bins)
    return float(upper[np.argmax(counts + rng.normal(0.0, _ROOT_2 * sigma_c, n_bins))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One cluster with its network: what a worker needs to train it.

    Its vectors (n, D) are private; Algorithm 1 picked it `n_steps` times, with an expected batch
    size L. "momentum", with momentum 0, is line 7 as printed; the paper uses Adam for the VAE. The
    seed is that of its first parameters and chains.
    """

    network: GenerativeNetwork
    vectors: NDArray[np.float64]
    n_steps: int
    batch_size: float
    sigma_c: float
    sigma_g: float
    optimiser: Literal["adam", "momentum"]
    learning_rate: float
    rng: np.random.Generator
    seed: int


def train(cluster: Cluster) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Algorithm 4, as often as the cluster was picked; parameters (P,) and chains come back.

    Privacy
    -------
    Claimed by Eq. 7; not proven (flaws G6, G7 and G8).
    """
    network, rng = cluster.network, cluster.rng
    parameters, chains = network.start(cluster.seed), network.first_chains(cluster.seed)
    descent = Descent.start(
        cluster.optimiser,
        parameters,
        learning_rate=cluster.learning_rate,
        momentum=0.9 if cluster.optimiser == "adam" else 0.0,
    )
    # Flaw G7: the rate is a function of the exact size, and is cut off at 1.
    rate = min(1.0, cluster.batch_size / max(len(cluster.vectors), 1))
    for number in range(cluster.n_steps):
        batch = cluster.vectors[rng.random(len(cluster.vectors)) < rate]
        step_seed = (cluster.seed + number) % 2**32
        gradients = network.batch_gradients(
            descent.parameters, batch, step_seed=step_seed, state=chains
        )
        descent = descent.step(noisy_mean(gradients, cluster))
        chains = network.chains(descent.parameters, chains, step_seed=step_seed)
    return descent.parameters, chains


def noisy_mean(gradients: BatchGradients, cluster: Cluster) -> NDArray[np.float64]:
    """Lines 3 to 6: clip at the private norm of this batch, add up, add noise, divide by L."""
    bound = private_norm(gradients.norms, sigma_c=cluster.sigma_c, rng=cluster.rng)
    total = gradients.weighted_sum(1.0 / np.maximum(1.0, gradients.norms / bound))
    noise = cluster.rng.normal(0.0, _ROOT_2 * cluster.sigma_g * bound, len(total))
    mean: NDArray[np.float64] = (total + noise) / cluster.batch_size
    return mean
