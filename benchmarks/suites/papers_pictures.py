"""3A, Figures 2 and 3 as arrays in rows: toy points, and ten digits at each budget."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import make_blobs, make_circles, make_moons

from benchmarks.results import IN_PROCESS, ResultRow
from benchmarks.rivals.__main__ import site_of
from benchmarks.rivals.clustmix.algorithm import ClustMixSettings, synthesize
from benchmarks.suites.papers_clustmix import (
    MNIST_DELTA,
    NOISES,
    eq8_sigma,
    images_and_digits,
    nearest_means,
)  # fmt: skip
from benchmarks.suites.papers_dpgm import released_rows
from privacy.parameters import PrivacyParameters
from tasks.ingest.encoding import domain_of
from tasks.measurement.encoded import EncodingDomain
from tasks.methods.clustmix.clustmix_settings import ClustMixConfig
from tasks.methods.registry import build

POINTS, SHOWN, BINS = 2_000, 200, 32
TOYS: dict[str, Any] = {
    "moons": lambda: make_moons(POINTS, noise=0.1, random_state=0),
    "circles": lambda: make_circles(POINTS, noise=0.08, factor=0.5, random_state=0),
    "blobs": lambda: make_blobs(POINTS, centers=[[-1, -1], [1, 1], [-1, 1]], cluster_std=0.4,
                                random_state=0),
}  # fmt: skip
PRINTED = ClustMixSettings(sigma_max=0.1, kip_steps=20)


def picture_row(dataset: str, form: str, epsilon: float | None, settings: Any) -> ResultRow:
    """Return the row of a picture of real, printed or proven records."""
    delta = None if epsilon is None else MNIST_DELTA
    return ResultRow(
        dataset=dataset, method="real" if form == "real" else "clustmix",
        analysis={"real": "none", "printed": "published"}.get(form, form), epsilon=epsilon,
        delta=delta, seed=0, source=IN_PROCESS, settings=settings,
    )  # fmt: skip


def toy_row(name: str, form: str, epsilon: float | None) -> ResultRow:
    """Synthetic points of a toy set, at most `SHOWN`: places in [0, 1] and labels."""
    points, labels = TOYS[name]()
    points, labels = (points.clip(-2.0, 2.0) + 2.0) / 4.0, labels.astype(np.int64)
    rng, n_labels = np.random.default_rng(0), int(labels.max()) + 1
    if form == "printed":
        parameters = PrivacyParameters(epsilon=float(epsilon or 0), delta=MNIST_DELTA)
        points, labels, _ = synthesize(
            points, labels, settings=PRINTED, parameters=parameters, rng=rng
        )
    elif form == "proven":
        domain = EncodingDomain(
            column_names=("x", "y"), n_codes=(BINS, BINS), has_missing=(False, False),
            numeric=(True, True), label_levels=tuple(map(str, range(n_labels))), patients=POINTS,
        )  # fmt: skip
        codes = np.minimum(points * BINS, BINS - 1)
        made, labels = released_rows(
            build(ClustMixConfig(kind="clustmix"), domain), codes, labels,
            epsilon=float(epsilon or 0), delta=MNIST_DELTA, n_rows=SHOWN,
        )  # fmt: skip
        points = (made + rng.random(made.shape)) / BINS
    shown = rng.permutation(len(labels))[:SHOWN]
    found = {"x": points[shown, 0], "y": points[shown, 1]}
    places = {axis: np.round(values, 3).tolist() for axis, values in found.items()}
    settings = {"part": "toy", **places, "label": labels[shown].tolist()}
    return picture_row(name, form, epsilon, settings)


def digits_row(form: str, epsilon: float | None, size: int, noise: str) -> ResultRow:
    """Ten digits as a PNG in base64: real, of a release, or noisy means of `size` images."""
    images, digits = images_and_digits()
    rng, labels = np.random.default_rng(0), digits
    if form == "proven":
        method = build(ClustMixConfig(kind="clustmix"), domain_of(site_of("mnist").table_schema))
        codes, labels = released_rows(
            method, np.rint(images * 255), digits,
            epsilon=float(epsilon or 0), delta=MNIST_DELTA, n_rows=200,
        )  # fmt: skip
        images = codes / 255.0
    elif form == "printed":
        means = [nearest_means(images[digits == digit], size, 0)[:1] for digit in range(10)]
        sigma = eq8_sigma(float(epsilon or 0), size) * NOISES[noise]
        images, labels = np.concatenate(means), np.arange(10)
        images = images + rng.normal(0.0, sigma, images.shape)
    first = [int(np.flatnonzero(labels == digit)[0]) for digit in range(10)]
    strip = images[first].reshape(10, 28, 28).transpose(1, 0, 2).reshape(28, 280)
    file = BytesIO()
    Image.fromarray(np.rint(strip.clip(0, 1) * 255).astype(np.uint8)).save(file, "PNG")
    settings = {"part": "digits", "png": base64.b64encode(file.getvalue()).decode()}
    shape = {"cluster_size": size, "noise": noise} if form == "printed" else {}
    return picture_row("mnist", form, epsilon, settings | shape)
