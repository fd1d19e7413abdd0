"""Stage 3, KIP on released moments: candidates, and the free choice between them.

The loss of Eq. 6 depends on the rows only through A = sum phi phi^T and B = sum phi y^T, because
``sum |y - W^T phi|^2 = const - 2 tr(W^T B) + tr(W^T A W)``. Once a noisy (A, B) is released, any
number of Adam steps, restarts and settings is post-processing. A second pair (A, B) from other
patients, which no candidate was fitted to, scores the candidates; it costs nothing more, because
a patient is in one of the two pairs only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tasks.measurement.features import FeatureMap
from tasks.measurement.random_ntk import RandomNtkFeatures
from tasks.synthesizers.clustmix.earlier.moment_kip import MomentLoss, descend
from tasks.synthesizers.clustmix.earlier.support_set import (
    OptimisedSupport,
    SupportSet,
    psd_projection,
)

LEARNING_RATE = 0.01
"""Adam step size in units of raw features, whose rows have norm at most one."""

COMPILED_FROM = 1e11
"""Multiplications from which a candidate is worth the seconds that jax takes to load and compile,
and a GPU the way to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """A released pair of moments, divided by the noisy number of patients behind it.

    The second (m, m) is positive semi-definite, with the ridge added; the cross moment (m, C) is
    against one-hot labels less the released label frequencies.
    """

    second: NDArray[np.float64]
    cross: NDArray[np.float64]

    def loss(self, weights: NDArray[np.float64]) -> float:
        """Squared error of ``phi @ weights`` less its constant, per patient."""
        fit = np.sum(weights * (self.second @ weights)) - 2.0 * np.sum(weights * self.cross)
        return float(fit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One KIP run: what it starts from, its public settings, and the moments it fits."""

    feature_map: FeatureMap
    start: NDArray[np.float64]
    start_labels: NDArray[np.float64]
    training: Moments
    alpha: float
    ridge: float
    steps: int
    box: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedSupport:
    """A support set adapted by KIP and the weights of its kernel ridge regression."""

    points: NDArray[np.float64]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]


def centre_moments(
    second: NDArray[np.float64],
    cross: NDArray[np.float64],
    *,
    prior: NDArray[np.float64],
    size: float,
    ridge: float,
) -> Moments:
    """Turn a noisy (A, B), of shapes (m, m) and (m, C), with one-hot labels into usable moments.

    The second moment may be indefinite: unbounded losses come of that, so it is projected. The
    prior (C,) are released label frequencies, the size is a noisy number of patients, above 0, and
    the ridge, added to the diagonal, is about the spectral norm of the noise.
    """
    centred = cross - cross.sum(axis=1, keepdims=True) * prior
    return Moments(second=psd_projection(second, ridge) / size, cross=centred / size)


def adapt(candidate: Candidate) -> AdaptedSupport:
    """Run KIP (Algorithm 1 on Eq. 6) for one candidate. Runs on a worker, GPU or CPU.

    Privacy
    -------
    Post-processing of released moments and released centres.
    """
    is_large = _multiplications(candidate) >= COMPILED_FROM
    support = (_compiled(candidate) if is_large else _direct(candidate)).support
    features = candidate.feature_map.hidden(np.asarray(support.points))
    # Weights of kernel ridge regression on the support set, as in `kip.krr_weights`, in float64.
    gram = features @ features.T + candidate.ridge * np.eye(len(features))
    weights = features.T @ np.linalg.solve(gram, np.asarray(support.labels))
    return AdaptedSupport(
        points=np.asarray(support.points),
        labels=np.asarray(support.labels),
        weights=weights,
    )


def _multiplications(candidate: Candidate) -> float:
    """Count the multiplications of all steps: the kernel, the second moment and the features."""
    n_points, n_raw = candidate.start.shape
    n_features, n_labels = candidate.training.cross.shape
    per_step = n_points**2 * n_features + n_features**2 * n_labels
    per_step += n_points * n_raw * n_features
    return 3.0 * candidate.steps * float(per_step)


def _direct(candidate: Candidate) -> OptimisedSupport:
    """Descend in numpy, by one thread: several would round as the machine has processors."""
    loss = MomentLoss(
        features=candidate.feature_map.hidden,
        start=candidate.start,
        second=candidate.training.second,
        cross=candidate.training.cross,
        alpha=candidate.alpha,
        ridge=candidate.ridge,
    )
    with threadpool_limits(1, user_api="blas"):
        return descend(
            loss,
            SupportSet(candidate.start, candidate.start_labels),
            steps=candidate.steps,
            learning_rate=LEARNING_RATE,
            box=candidate.box,
        )


def _compiled(candidate: Candidate) -> OptimisedSupport:
    """Descend as one compiled program, on the GPU of the process where it has one."""
    # Imported here: jax takes seconds to load.
    from tasks.synthesizers.clustmix.earlier.kip import optimise

    return optimise(
        _loss(*_recipe(candidate.feature_map.hidden)),
        SupportSet(candidate.start, candidate.start_labels),
        (
            candidate.start,
            candidate.training.second,
            candidate.training.cross,
            candidate.alpha,
            candidate.ridge,
        ),
        steps=candidate.steps,
        learning_rate=LEARNING_RATE,
        lower=-candidate.box,
        upper=candidate.box,
        learn_labels=True,
    )


def choose(supports: list[AdaptedSupport], validation: Moments) -> AdaptedSupport:
    """Return the support set with the lowest loss on the validation moments."""
    return min(supports, key=lambda support: validation.loss(support.weights))


def _recipe(features: RandomNtkFeatures) -> tuple[int, int, float, int]:
    n_random = features.n_features - features.n_inputs
    return features.n_inputs, n_random, features.skip_weight, features.public_seed


@lru_cache(maxsize=4)
def _loss(n_inputs: int, n_random: int, skip_weight: float, public_seed: int) -> Callable[..., Any]:
    """One loss object per feature map in each process, so that jax compiles it there once."""
    from tasks.synthesizers.clustmix.earlier.kip import moment_loss

    features = RandomNtkFeatures.draw(
        n_inputs=n_inputs, n_random=n_random, skip_weight=skip_weight, public_seed=public_seed
    )

    def loss(
        support: SupportSet, start: Any, second: Any, cross: Any, alpha: Any, ridge: Any
    ) -> Any:
        return moment_loss(
            support, start, second, cross, features=features, alpha=alpha, ridge=ridge
        )

    return loss


def support_starts(
    marginals: NDArray[np.float64],
    sizes: NDArray[np.float64],
    feature_map: FeatureMap,
    *,
    prior: NDArray[np.float64],
    support_per_label: int,
    public_seed: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Support points at released centres, spread by a public jitter; never at real rows.

    Of released marginals (n_labels, n_cells, one_hot_width), sizes (n_labels, n_cells), 0 for cells
    that are not used, and label frequencies (n_labels,). There are ``n_labels * support_per_label``
    points, each with its raw features and its one-hot label less the label frequencies.
    """
    generator = np.random.default_rng(public_seed)
    centres = feature_map.raw_of_marginals(marginals)
    jitter = 0.5 / np.sqrt(feature_map.n_raw)
    points = []
    for label in range(len(marginals)):
        weight = np.maximum(sizes[label], 0.0) + 1e-9
        cell = generator.choice(len(weight), size=support_per_label, p=weight / weight.sum())
        noise = generator.standard_normal((support_per_label, feature_map.n_raw)) * jitter
        points.append(centres[label, cell] + noise)
    labels = np.repeat(np.eye(len(marginals)) - prior, support_per_label, axis=0)
    return np.concatenate(points), labels
