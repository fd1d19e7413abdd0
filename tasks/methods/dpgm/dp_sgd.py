"""Private stochastic gradient descent of one network per cluster, all in one draw.

A step reads every patient. A record trains the network of its cluster, which is a public function
of the record; so a record touches one network, and one Gaussian of sensitivity 1 pays for the step
of all networks (parallel composition, also for a patient whose records are in several clusters).

The paper chooses the clipping norm by a noisy histogram of the same batch and adds up the two costs
by its Theorem 3, which is false. Here the histogram and the gradients are one vector of one draw,
and a step clips at the norm that the histogram of the step before chose.

Source: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), Algorithms 3 and 4;
Abadi et al. 2016 for the descent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from privacy.arrays import Floats, Floats32, Integers
from tasks.measurement.encoded import EncodedRows, row_slices
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm.kernel_kmeans import Clustering

if TYPE_CHECKING:  # jax takes seconds to load, and a plan does not need it.
    from tasks.methods.dpgm.network import GenerativeNetwork

_SECOND_DECAY, _FLOOR = 0.999, 1e-8
"""Adam's usual constants."""

_CLEAR = 3.0
"""A count is believed from this many standard deviations of its noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormHistogram:
    """Rule for the clipping norm: w bins up to C_max, and their share; without bins it stays."""

    max_norm: float
    n_bins: int
    share: float

    def counts(self, norms: Floats, weights: Floats) -> Integers:
        """Weighted counts (n_bins,) of bins ``(C_{j-1}, C_j]``, int64; above is in the last."""
        amount = np.trunc(weights * (math.sqrt(self.share) * SUM_SCALE))
        position = np.ceil(np.minimum(norms, self.max_norm) / self.max_norm * self.n_bins) - 1.0
        index = np.clip(position, 0, self.n_bins - 1).astype(np.int64)
        return np.bincount(index, weights=amount, minlength=self.n_bins).astype(np.int64)

    def next_norm(self, noisy: Floats, current: float, *, noise_stddev: float) -> float:
        """Upper end of the fullest bin; the current norm where noise may have filled it."""
        if self.n_bins == 0 or noisy.max() < _CLEAR * noise_stddev:
            return current
        return self.max_norm * (int(noisy.argmax()) + 1) / self.n_bins


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """Everything public that a step needs: released values and settings.

    The k networks have parameters (k, P) and persistent chains (k, n_chains, D), where n_chains may
    be 0; `histogram` finds the next `l2_clip_norm`.
    """

    clustering: Clustering
    vector_map: VectorMap
    networks: Sequence[GenerativeNetwork]
    parameters: Floats
    chains: Floats32
    histogram: NormHistogram
    l2_clip_norm: float
    seed: int

    @property
    def gradient_scale(self) -> int:
        """Grid points per unit of a gradient: a clipped one has its part of the sensitivity."""
        return int(math.sqrt(1.0 - self.histogram.share) * SUM_SCALE / self.l2_clip_norm)


def gradient_sums(rows: EncodedRows, *, step: TrainingStep) -> Integers:
    """Histogram of gradient norms and clipped gradients of all networks.

    Of shape (n_bins + k * P,), in units of ``1 / SUM_SCALE``: the histogram times ``sqrt(s)``, s
    its share; then, by cluster, the sum of clipped gradients over the clipping norm, times
    ``sqrt(1 - s)``.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds
    ``weight * (sqrt(s) e_j, sqrt(1 - s) g / C)`` with a unit vector ``e_j`` and ``|g| <= C`` to the
    histogram and to one cluster: norm at most its weight. The weights of a patient sum to at most
    one, so the Euclidean sensitivity of the whole vector is 1 (``SUM_SCALE`` grid points), whatever
    C is: it was chosen from earlier releases. Event: one discrete Gaussian; histogram and gradients
    are one vector, so no composition of dependent mechanisms is needed.
    """
    n_bins, n_parameters = step.histogram.n_bins, step.parameters.shape[1]
    total = np.zeros(n_bins + step.parameters.size, dtype=np.int64)
    gradients = total[n_bins:].reshape(step.clustering.n_clusters, n_parameters)
    for block in row_slices(len(rows)):
        codes, label, weight = rows.codes[block], rows.label[block], rows.weight[block]
        vectors = step.vector_map.vectors(codes, label if step.vector_map.with_label else None)
        cluster = step.clustering.assign(codes, label)
        for index in np.unique(cluster):
            of_cluster = cluster == index
            clipped = step.networks[index].clipped_sum(
                step.parameters[index],
                vectors[of_cluster],
                weight[of_cluster],
                l2_clip_norm=step.l2_clip_norm,
                scale=step.gradient_scale,
                step_seed=step.seed,
                state=step.chains[index],
            )
            gradients[index] += clipped.total
            if n_bins:
                total[:n_bins] += step.histogram.counts(clipped.norms, weight[of_cluster])
    return total


def split_draw(noisy: Floats, step: TrainingStep) -> tuple[Floats, Floats]:
    """Noisy histogram in patients, and noisy sums of clipped gradients (k, P); post-processing."""
    n_bins = step.histogram.n_bins
    histogram = noisy[:n_bins] / (math.sqrt(step.histogram.share) if n_bins else 1.0)
    gradients = noisy[n_bins:].reshape(step.parameters.shape) * (SUM_SCALE / step.gradient_scale)
    return histogram, gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """State of a descent: parameters, means of gradients and, of Adam, of their squares.

    In numpy and float64: the same bits on every machine, without loading or compiling anything.

    Source: Kingma and Ba 2015 for Adam; Polyak 1964 for the heavy ball.
    """

    kind: Literal["adam", "momentum"]
    learning_rate: float
    momentum: float
    parameters: Floats
    first: Floats
    second: Floats
    n_steps: int

    def step(self, gradients: Floats) -> Self:
        """Descend along gradients of the shape of the parameters."""
        n_steps = self.n_steps + 1
        if self.kind == "momentum":
            first = self.momentum * self.first + gradients
            parameters = self.parameters - self.learning_rate * first
            return replace(self, parameters=parameters, first=first, n_steps=n_steps)
        first = self.momentum * self.first + (1.0 - self.momentum) * gradients
        second = _SECOND_DECAY * self.second + (1.0 - _SECOND_DECAY) * np.square(gradients)
        direction = first / (1.0 - self.momentum**n_steps)
        spread = np.sqrt(second / (1.0 - _SECOND_DECAY**n_steps)) + _FLOOR
        return replace(
            self,
            parameters=self.parameters - self.learning_rate * direction / spread,
            first=first,
            second=second,
            n_steps=n_steps,
        )
