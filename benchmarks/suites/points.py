"""Inducing points of images: sampled from the released density against optimised by KIP.

Sampled points are images of the density. Optimised ones start there and take `STEPS` steps of Adam
on the loss of kernel inducing points (Eq. 5 of the 3A paper) over other released images with their
labels, in the leading directions of the scattering features; the whitening is then fitted to them.
Nothing of that looks at a row. The two forms of a draw share their noise, which has a seed here;
what counts is the accuracy of the teacher on the test images.

``python -m benchmarks.suites.points --dataset NAME --epsilon E --points FORM --draw N``
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from benchmarks.jobs import Job
from benchmarks.results import IN_PROCESS, ResultRow, print_row
from benchmarks.rivals.__main__ import site_of
from benchmarks.rivals.clustmix.kip import centred_one_hot, optimise, ridge_solve
from benchmarks.seeded_noise import SeededNoise
from benchmarks.tables import read_images
from privacy.calibration import release_mu
from privacy.parameters import Adjacency, PrivacyParameters
from storage.public_data.datasets import find
from tasks.ingest.encoding import domain_of
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import N_FOLDS, EncodedRows
from tasks.measurement.method import measure
from tasks.methods.clustmix.images.image_clustmix import ImageClustMix
from tasks.methods.clustmix.images.scattering import feature_bound, scatter
from tasks.methods.clustmix.images.teacher import ReleasedTeacher, Whitening

DATASETS, EPSILONS, DRAWS, DELTA = ("mnist", "fashion_mnist"), (0.2, 1.0, 10.0), (0, 1), 1e-5
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
            moved.astype(np.float32),
            directions=settings.directions,
            flat=settings.flat,
            bound=feature_bound(1),
        )
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


def measured(name: str, epsilon: float, run: int, form: str) -> ResultRow:
    """Measure images once, and score the teacher by the test images."""
    (pixels, labels), (others, answers) = (
        tuple(part.astype(np.uint16) for part in read_images(find(name + end)))
        for end in ("", "_test")
    )
    domain = domain_of(site_of(name.replace("_", "-")).table_schema)
    method = FORMS[form](replace(domain, patients=len(labels)))
    mu = release_mu(PrivacyParameters(epsilon=epsilon, delta=DELTA), adjacency=Adjacency.ADD_REMOVE)
    shards = [
        EncodedRows(
            codes=pixels[start : start + SHARD],
            label=labels[start : start + SHARD],
            weight=np.ones(len(labels[start : start + SHARD])),
            fold=np.arange(len(labels[start : start + SHARD]), dtype=np.uint8) % N_FOLDS,
        )
        for start in range(0, len(labels), SHARD)
    ]
    curator = Curator(plan=method.plan(mu=mu), shards=shards, noise_source=SeededNoise(run))
    started = time.process_time()
    released = measure(method, curator)
    seconds = time.process_time() - started
    teacher = ReleasedTeacher.of(released, method._layout)
    found = np.concatenate([
        teacher.labels(others[start : start + BATCH]) for start in range(0, len(others), BATCH)
    ])  # fmt: skip
    return ResultRow(
        dataset=name,
        method="clustmix",
        analysis="proven",
        epsilon=epsilon,
        delta=DELTA,
        seed=run,
        source=IN_PROCESS,
        rows=len(labels),
        columns=pixels.shape[1] + 1,
        teacher_accuracy=round(float((found == answers).mean()), 5),
        cpu_seconds=round(seconds, 1),
        settings={"points": form},
    )


def jobs() -> list[Job]:
    """Return the jobs; two draws at an epsilon of one, and one at the others."""
    words = [
        ("--dataset", name, "--epsilon", f"{epsilon:g}", "--points", form, "--draw", str(draw))
        for draw in DRAWS
        for epsilon in EPSILONS
        for name in DATASETS
        for form in FORMS
        if draw == 0 or epsilon == EPSILONS[0]
    ]
    return [Job(suite="points", command=("benchmarks.suites.points", *one)) for one in words]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.suites.points", description=__doc__)
    parser.add_argument("--dataset", choices=DATASETS, required=True)
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--points", choices=FORMS, required=True)
    parser.add_argument("--draw", type=int, default=0)
    options = parser.parse_args(arguments)
    return print_row(measured(options.dataset, options.epsilon, options.draw, options.points))


if __name__ == "__main__":
    sys.exit(main())
