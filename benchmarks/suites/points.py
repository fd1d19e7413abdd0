"""Inducing points of images: sampled from the released density against optimised by KIP.

Optimised ones start as sampled ones and take `STEPS` steps of Adam on the loss of kernel inducing
points (Eq. 5 of the 3A paper) over other released images with their labels, in the leading
directions of the scattering features; the whitening is then fitted to them. Nothing of that looks
at a row. The two forms of a draw share their noise, which has a seed here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from benchmarks.in_process import SeededNoise, measured, shards_of
from benchmarks.jobs import run
from benchmarks.results import IN_PROCESS, ResultRow
from benchmarks.rivals.__main__ import site_of
from benchmarks.rivals.clustmix.kip import centred_one_hot, optimise, ridge_solve
from benchmarks.tables import images_of
from privacy.calibration import release_mu
from privacy.parameters import Adjacency, PrivacyParameters
from tasks.ingest.encoding import domain_of
from tasks.methods.clustmix.images.image_clustmix import ImageClustMix
from tasks.methods.clustmix.images.scattering import feature_bound, scatter
from tasks.methods.clustmix.images.teacher import ReleasedTeacher, Whitening

DELTA = 1e-5
STEPS, RATE, RIDGE, DIRECTIONS, TARGETS = 40, 0.02, 1e-2, 600, 3_000
SIDE, LABELS, SHARD, BATCH = 28, 10, 10_000, 500


def optimised(
    points: NDArray[Any], labels: NDArray[Any], targets: NDArray[Any], answers: NDArray[Any]
) -> NDArray[np.float64]:
    """Move points (s, m) to where ridge regression on them says the labels of targets (t, m)."""

    def loss(at: Any, own: Any, others: Any, wanted: Any) -> Any:
        weights = at.T @ ridge_solve(at @ at.T, own, RIDGE)
        return 0.5 * jnp.mean(jnp.sum((wanted - others @ weights) ** 2, axis=1))

    data = (centred_one_hot(labels, LABELS), targets, centred_one_hot(answers, LABELS))
    far = np.full(points.shape[1], np.inf)
    return optimise(loss, points, data, steps=STEPS, learning_rate=RATE, lower=-far, upper=far)


class OptimisedClustMix(ImageClustMix):
    """ClustMix on images whose inducing points KIP has moved."""

    def _kip(self, curator: Any, released: Any) -> Any:
        found, settings = super()._kip(curator, released), self._rule(curator.plan.mu)
        known, rng = {**released, **found}, np.random.default_rng(1)
        n_batches = (self.points + TARGETS) // BATCH
        drawn = [self.labelled(known, BATCH, rng) for _ in range(n_batches)]
        features = np.concatenate([scatter(self._layout.pixels(codes)) for codes, _ in drawn])
        labels = np.concatenate([label for _, label in drawn])
        moved = self._moved(features.astype(np.float64), labels)
        map_of_moved = Whitening.fitted(
            moved.astype(np.float32), directions=settings.directions, flat=settings.flat,
            bound=feature_bound(1),
        )  # fmt: skip
        return {
            **found,
            "whitening_matrix": map_of_moved.matrix.astype(np.int16),
            "whitening_scales": map_of_moved.scales,
            "whitening_shift": map_of_moved.shift,
        }

    def _moved(self, features: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
        """Move the first features, in their leading directions, by what the others say."""
        n, mean = self.points, features.mean(axis=0)
        axes = np.linalg.eigh((features - mean).T @ (features - mean))[1][:, -DIRECTIONS:]
        short = (features - mean) @ axes
        scale = float(np.sqrt((short**2).sum(axis=1).mean()))
        short /= scale
        change = optimised(short[:n], labels[:n], short[n:], labels[n:]) - short[:n]
        return np.asarray(features[:n] + scale * change @ axes.T)


FORMS = {"sampled": ImageClustMix, "optimised": OptimisedClustMix}


def row_of(
    dataset: str, epsilon: float, points: Literal["sampled", "optimised"], seed: int = 0
) -> ResultRow:
    (pixels, labels), (others, answers) = images_of(dataset)
    domain = domain_of(site_of(dataset.replace("_", "-")).table_schema)
    method = FORMS[points](replace(domain, patients=len(labels)))
    parameters = PrivacyParameters(epsilon=epsilon, delta=DELTA)
    mu = release_mu(parameters, adjacency=Adjacency.ADD_REMOVE)
    shards, started = shards_of(pixels, labels, SHARD), time.process_time()
    released = measured(method, shards, mu=mu, noise=SeededNoise(seed))
    seconds = time.process_time() - started
    teacher = ReleasedTeacher.of(released, method._layout)
    tests = others.astype(np.uint16)
    found = [teacher.labels(tests[start : start + BATCH]) for start in range(0, len(tests), BATCH)]
    return ResultRow(
        dataset=dataset, method="clustmix", analysis="proven", epsilon=epsilon, delta=DELTA,
        seed=seed, source=IN_PROCESS, rows=len(labels), columns=pixels.shape[1] + 1,
        teacher_accuracy=round(float((np.concatenate(found) == answers).mean()), 5),
        cpu_seconds=round(seconds, 1), settings={"points": points},
    )  # fmt: skip


if __name__ == "__main__":
    run(row_of)
