"""Algorithms 3 and 4 of the DPGM paper as printed: the norm bound and the descent of one batch.

Flaw G8: both read the same batch, and their costs are added up as if they did not. Flaw G7: the
sampling rate follows the exact size of the cluster. The epsilon of the settings is computed as
section 5 of the paper does; it is no guarantee (flaws G1, G6, G8 and G9).

Source: Acs, Melis, Castelluccia and De Cristofaro 2019, Lemma 1, Eq. 4, Eq. 7 and Theorem 4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np
from scipy.special import logsumexp

from benchmarks.rivals.noise import least_noise
from privacy.arrays import Floats, Floats32
from tasks.methods.dpgm.dp_sgd import Descent
from tasks.methods.dpgm.network import GenerativeNetwork
from tasks.methods.dpgm.record_gradients import ClippedSum

MAX_ORDER = 32
"""Moments of orders 1 to 32 are computed (section 6.1)."""

J_VALUES = tuple(index / 11 for index in range(1, 11))
"""The 10 values of j_1 in Eq. 7. The paper does not say which; a finer grid moves epsilon by 0.003
at its settings for MNIST."""

_GRID_POINTS = 8_001


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSettings:
    """What epsilon depends on: noise scales, T_K rounds, T_S steps and q.

    The noise is ``sqrt(2)`` times as much in units of one record.
    """

    sigma_c: float
    sigma_k: float
    sigma_g: float
    clustering_rounds: int
    sampling_probability: float
    n_steps: int
    delta: float


def steps_of(*, epochs: int, sampling_probability: float) -> int:
    """Return the iterations of some epochs of ``ceil(1 / q)`` each (section 6.2)."""
    return epochs * math.ceil(1.0 / sampling_probability)


def paper_epsilon(settings: NoiseSettings) -> float:
    """Epsilon of Theorem 4, the least over orders, as printed; it proves nothing."""
    best = math.inf
    for order in range(1, MAX_ORDER + 1):
        # Lemma 1 with 1/4, once for the counts and once for the sums (flaw G1).
        gaussian = (order**2 + order) / (4.0 * settings.sigma_k**2)
        clustering = settings.clustering_rounds * 2.0 * gaussian
        training = settings.n_steps * _step_moment(
            order, settings.sampling_probability, settings.sigma_c, settings.sigma_g
        )
        best = min(best, (clustering + training - math.log(settings.delta)) / order)
    return best


def paper_sigma_g(settings: NoiseSettings, *, epsilon: float) -> float:
    """Noise scale that gives `epsilon` by Theorem 4 (ConfigurationError if none does)."""
    return least_noise(
        lambda sigma_g: paper_epsilon(replace(settings, sigma_g=sigma_g)) <= epsilon,
        otherwise="expected an epsilon that leaves something for the gradients, found "
        f"{epsilon!r}; choose a larger epsilon, a larger sigma_k or sigma_c, or fewer epochs",
        start=0.25,
    )


@lru_cache(maxsize=4096)
def _step_moment(order: int, probability: float, sigma_c: float, sigma_g: float) -> float:
    """Bound of Eq. 7 for one iteration, minimised over `J_VALUES` (flaw G8)."""
    return min(
        j * _sampled_moment(order / j, probability, sigma_c)
        + (1.0 - j) * _sampled_moment(order / (1.0 - j), probability, sigma_g)
        for j in J_VALUES
    )


@lru_cache(maxsize=16384)
def _sampled_moment(order: float, probability: float, sigma: float) -> float:
    """``log max(E_1, E_2)`` of section 5; the trapezoid rule is exact to rounding here."""
    reach = order + 2.0 + 12.0 * sigma
    n_points = max(_GRID_POINTS, 2 * math.ceil(4.0 * reach / sigma) + 1)
    x = np.linspace(-reach, reach, n_points)
    normaliser = 0.5 * math.log(2.0 * math.pi * sigma**2)
    without = -np.square(x) / (2.0 * sigma**2) - normaliser
    shifted = -np.square(x - 1.0) / (2.0 * sigma**2) - normaliser
    if probability < 1.0:
        mixed = np.logaddexp(math.log1p(-probability) + without, math.log(probability) + shifted)
    else:
        mixed = shifted
    log_step = math.log(x[1] - x[0])
    first = logsumexp(without + order * (without - mixed)) + log_step
    second = logsumexp(mixed + order * (mixed - without)) + log_step
    return float(max(first, second))


MAX_NORM = 10.0
"""C_max of section 6.1."""

NORM_BINS = 100
"""The w of section 6.1."""

_ROOT_2 = math.sqrt(2.0)

_GRID = 2**24
"""Grid points per unit of a gradient: rounding that no result shows."""


def private_norm(norms: Floats, *, sigma_c: float, rng: np.random.Generator) -> float:
    """Algorithm 3: upper end of the bin, of w up to C_max, that has most norms (n,) with noise."""
    upper = np.arange(1, NORM_BINS + 1) * MAX_NORM / NORM_BINS
    # Bin j holds (C_{j-1}, C_j], so that a norm of zero is in none.
    index = np.searchsorted(upper, norms[norms > 0.0], side="left")
    counts = np.bincount(index[index < NORM_BINS], minlength=NORM_BINS)
    return float(upper[np.argmax(counts + rng.normal(0.0, _ROOT_2 * sigma_c, NORM_BINS))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One cluster with its network: what a worker needs to train it.

    Its vectors (n, D) are private; the expected batch size is L. "momentum", with momentum 0, is
    line 7 as printed; the paper uses Adam for the VAE.
    """

    network: GenerativeNetwork
    vectors: Floats
    n_steps: int
    batch_size: float
    sigma_c: float
    sigma_g: float
    optimiser: Literal["adam", "momentum"]
    learning_rate: float
    rng: np.random.Generator
    seed: int


def train(cluster: Cluster) -> tuple[Floats, Floats32]:
    """Algorithm 4, as often as the cluster was picked; parameters (P,) and chains come back.

    Privacy
    -------
    Claimed by Eq. 7; not proven (flaws G6, G7 and G8).
    """
    network, rng = cluster.network, cluster.rng
    parameters, chains = network.start(cluster.seed), network.first_chains(cluster.seed)
    descent = Descent(
        kind=cluster.optimiser,
        learning_rate=cluster.learning_rate,
        momentum=0.9 if cluster.optimiser == "adam" else 0.0,
        parameters=parameters,
        first=np.zeros_like(parameters),
        second=np.zeros_like(parameters),
        n_steps=0,
    )
    # Flaw G7: the rate is a function of the exact size, and is cut off at 1.
    rate = min(1.0, cluster.batch_size / max(len(cluster.vectors), 1))
    for number in range(cluster.n_steps):
        batch = cluster.vectors[rng.random(len(cluster.vectors)) < rate]
        step_seed = (cluster.seed + number) % 2**32
        clipped = partial(
            network.clipped_sum,
            *(descent.parameters, batch, np.ones(len(batch))),
            scale=_GRID,
            step_seed=step_seed,
            state=chains,
        )
        descent = descent.step(noisy_mean(clipped, cluster))
        chains = network.chains(descent.parameters, chains, step_seed=step_seed)
    return descent.parameters, chains


def noisy_mean(clipped: Callable[..., ClippedSum], cluster: Cluster) -> Floats:
    """Lines 3 to 6: clip at the private norm of this batch, add up, add noise, divide by L."""
    norms = clipped(l2_clip_norm=MAX_NORM).norms
    bound = private_norm(norms, sigma_c=cluster.sigma_c, rng=cluster.rng)
    total = clipped(l2_clip_norm=bound).total / _GRID
    noise = cluster.rng.normal(0.0, _ROOT_2 * cluster.sigma_g * bound, len(total))
    mean: Floats = (total + noise) / cluster.batch_size
    return mean
