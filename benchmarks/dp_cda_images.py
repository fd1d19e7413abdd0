"""DP-CDA on images: Table 2 of its paper, and the proven forms at the same budgets.

Released images train the network of the paper's Table 1 (`benchmarks.convolutional`), which is then
scored on the test images as they are, unmixed and without noise. The published form uses a seeded
generator and its epsilon is claimed, not proven; the noise of the proven forms comes from the
operating system, and their seed picks the network alone.

The paper leaves open T, c, the ratio of the two noises, delta, the batch, the epochs and the
schedule. `NOISELESS_RECIPE` and `PRIVATE_RECIPE` say what is taken here; they were searched on
seed 0. Test images are scaled and clipped as the training images, and batch normalisation takes
its moments from them (`benchmarks.convolutional.adapted`).
Every result is written at once, and a run goes on where an earlier one stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.convolutional import accuracy, adapted, fit
from benchmarks.results import (
    CLAIMED,
    NO_GUARANTEE,
    PROVEN,
    RESULTS,
    Requirement,
    figure,
    requirement_table,
    table,
)
from privacy.calibration import gdp_mu
from privacy.parameters import PrivacyParameters
from privacy.randomness import OperatingSystemNoise
from storage.idx_files import read_idx
from storage.image_datasets import find_images
from tasks.synthesizers.base import measure
from tasks.synthesizers.curator import Curator, InProcessCompute
from tasks.synthesizers.dp_cda.best_order import best_order
from tasks.synthesizers.dp_cda.config import DpCdaConfig
from tasks.synthesizers.dp_cda.mixing import class_pools
from tasks.synthesizers.dp_cda.published import ZScore, clipped, mix_classes, theorem_1_noise
from tasks.synthesizers.dp_cda.synthesizer import DpCda
from tasks.synthesizers.encoded import EncodedRows, EncodingDomain

DATASETS = ("mnist", "fashion_mnist")
ORDERS = (1, 2, 4, 8, 16, 64)
SEEDS = (0, 1, 2)
DELTA = 1e-5
N_LABELS = 10
N_LEVELS = 256
RESULT_FILE = RESULTS / "dp_cda_images.json"

PAPER: dict[tuple[str, float | None], tuple[float, ...]] = {
    ("mnist", None): (0.9885, 0.9746, 0.9462, 0.9045, 0.8607, 0.7962),
    ("mnist", 10.0): (0.1081, 0.7076, 0.7808, 0.7673, 0.7585, 0.6319),
    ("fashion_mnist", None): (0.9064, 0.8851, 0.8454, 0.7881, 0.7370, 0.6579),
    ("fashion_mnist", 10.0): (0.3619, 0.6655, 0.6748, 0.6703, 0.6653, 0.6498),
}
"""Table 2 of the paper at `ORDERS`: test accuracy at epsilon = infinity (None) and 10."""

ASKED_NOISELESS, ASKED_PRIVATE = 0.02, 0.03
"""Largest distances from the paper that were asked for: without noise, and at l = 4, epsilon 10."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What the paper leaves open.

    Parameters
    ----------
    n_outputs
        Number T of released images.
    l2_clip_norm
        c, after the z-score.
    label_share
        Share of the privacy loss in the labels: fixes sigma_x : sigma_y.
    epochs, batch_size
        Of the network.
    """

    n_outputs: int
    l2_clip_norm: float
    label_share: float
    epochs: int
    batch_size: int


NOISELESS_RECIPE = Recipe(
    n_outputs=60_000, l2_clip_norm=1.0, label_share=0.25, epochs=1, batch_size=64
)
"""Without noise: c = 1 was better than 10 and than no clipping at l = 16 and 64."""

PRIVATE_RECIPE = Recipe(
    n_outputs=180_000, l2_clip_norm=1.0, label_share=0.25, epochs=1, batch_size=256
)
"""With noise: more images cost next to no noise, and the same noise again is learnt by heart."""

PROVEN_STEPS = 600
"""Batches that a network is trained on mixtures of a proven form, however many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training; the form is published, groups or poisson."""

    dataset: str
    form: str
    order: int
    epsilon: float | None
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageResult:
    """One measured training on ``images`` released images; ``epsilon`` is None without noise."""

    dataset: str
    form: str
    guarantee: str
    order: int
    epsilon: float | None
    delta: float | None
    seed: int
    images: int
    accuracy: float
    wall_seconds: float
    cpu_seconds: float

    @property
    def case(self) -> Case:
        """What was measured."""
        return Case(
            dataset=self.dataset,
            form=self.form,
            order=self.order,
            epsilon=self.epsilon,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Pixels as uint8 of shape (n, 784) and labels, for training and for the test."""

    train: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


@lru_cache(maxsize=1)
def load(dataset: str) -> Images:
    """Read a public dataset of images."""
    train, train_labels = _read(dataset, "train")
    test, test_labels = _read(dataset, "test")
    return Images(train=train, train_labels=train_labels, test=test, test_labels=test_labels)


def _read(dataset: str, split: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    images, labels = find_images(dataset, split)
    pixels = read_idx(images)
    return pixels.reshape(len(pixels), -1), read_idx(labels).astype(np.int64)


def unit_pixels(pixels: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.float32]:
    """Pixels in [0, 1]."""
    scaled: NDArray[np.float32] = pixels.astype(np.float32) / np.float32(N_LEVELS - 1)
    return scaled


@lru_cache(maxsize=1)
def preprocessed(
    dataset: str, l2_clip_norm: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Training and test images after steps 2 to 6, the test images by the training moments."""
    images = load(dataset)
    train, test = unit_pixels(images.train), unit_pixels(images.test)
    z_score = ZScore.of(train)
    scaled = [clipped(z_score.apply(part), l2_clip_norm) for part in (train, test)]
    return scaled[0].astype(np.float32), scaled[1].astype(np.float32)


def measure_published(case: Case, recipe: Recipe) -> tuple[float, int]:
    """Accuracy after Algorithm 1, without noise where the case has no epsilon."""
    images = load(case.dataset)
    train, test = preprocessed(case.dataset, recipe.l2_clip_norm)
    noise = None
    if case.epsilon is not None:
        noise = theorem_1_noise(
            PrivacyParameters(epsilon=case.epsilon, delta=DELTA),
            order=case.order,
            n_records=len(train),
            n_outputs=recipe.n_outputs,
            l2_clip_norm=recipe.l2_clip_norm,
            label_share=recipe.label_share,
        )
    pools = class_pools(
        train,
        images.train_labels,
        n_labels=N_LABELS,
        order=case.order,
        mixtures_per_class=recipe.n_outputs // N_LABELS,
    )
    released, labels = mix_classes(pools, noise=noise, rng=np.random.default_rng(case.seed))
    network = fit(
        released,
        labels,
        n_labels=N_LABELS,
        epochs=recipe.epochs,
        seed=case.seed,
        batch_size=recipe.batch_size,
    )
    return accuracy(adapted(network, test), test, images.test_labels), len(released)


def image_domain() -> EncodingDomain:
    """784 pixels of 256 levels and ten labels."""
    names = tuple(f"pixel{number}" for number in range(784))
    return EncodingDomain(
        column_names=names,
        n_codes=(N_LEVELS,) * len(names),
        has_missing=(False,) * len(names),
        numeric=(True,) * len(names),
        label_levels=tuple(map(str, range(N_LABELS))),
    )


PROVEN_SETTINGS: dict[str, Any] = {
    "patients": 60_000,
    "l2_clip_norm": 9.0,
    "mixtures_per_class": 200,
}


def measure_proven(case: Case) -> tuple[float, int]:
    """Accuracy after a proven release of as many records as it has mixtures."""
    images = load(case.dataset)
    n = len(images.train)
    rows = EncodedRows(
        codes=images.train.astype(np.uint16),
        label=images.train_labels.astype(np.uint16),
        weight=np.ones(n),
        fold=np.zeros(n, dtype=np.uint8),
        patient=np.arange(n, dtype=np.uint32),
    )
    config = DpCdaConfig(order_of_mixture=case.order, sampling=case.form, **PROVEN_SETTINGS)
    method = DpCda(image_domain(), config)
    mu = gdp_mu(epsilon=float(case.epsilon or 0.0), delta=DELTA)
    curator = Curator(
        plan=method.plan(mu=mu),
        compute=InProcessCompute([rows]),
        noise_source=OperatingSystemNoise(),
    )
    released = measure(method, curator, mu=mu)
    n_rows = method.n_mixtures * N_LABELS
    codes, labels = method.sample(released, n_rows=n_rows, rng=np.random.default_rng(case.seed))
    batch_size = min(64, n_rows)
    network = fit(
        unit_pixels(codes),
        labels,
        n_labels=N_LABELS,
        epochs=max(PROVEN_STEPS * batch_size // n_rows, 1),
        seed=case.seed,
        batch_size=batch_size,
    )
    test = unit_pixels(images.test)
    return accuracy(adapted(network, test), test, images.test_labels), n_rows


def run_case(case: Case) -> ImageResult:
    """Measure one case."""
    wall, cpu = time.perf_counter(), time.process_time()
    if case.form == "published":
        recipe = NOISELESS_RECIPE if case.epsilon is None else PRIVATE_RECIPE
        found, n_images = measure_published(case, recipe)
    else:
        found, n_images = measure_proven(case)
    guarantee = CLAIMED if case.form == "published" else PROVEN
    return ImageResult(
        dataset=case.dataset,
        form=case.form,
        guarantee=NO_GUARANTEE if case.epsilon is None else guarantee,
        order=case.order,
        epsilon=case.epsilon,
        delta=None if case.epsilon is None else DELTA,
        seed=case.seed,
        images=n_images,
        accuracy=round(found, 4),
        wall_seconds=round(time.perf_counter() - wall, 1),
        cpu_seconds=round(time.process_time() - cpu, 1),
    )


def read_results(path: Path) -> list[ImageResult]:
    """Read the results of earlier runs; none if there were none."""
    if not path.is_file():
        return []
    return [ImageResult(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def write_results(path: Path, results: Iterable[ImageResult]) -> None:
    """Replace the file of results, so that a run that is stopped leaves a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(result) for result in results], indent=1, allow_nan=False)
    beside = path.with_suffix(".part")
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(path)


def run(
    cases: Sequence[Case],
    *,
    path: Path,
    show: Callable[[str], None],
    measured: Callable[[Case], ImageResult] = run_case,
) -> list[ImageResult]:
    """Measure the cases that `path` does not hold yet, one after the other.

    Returns
    -------
    list of ImageResult
        All that `path` holds at the end.
    """
    for case in cases:
        if case in {result.case for result in read_results(path)}:
            continue
        result = measured(case)
        # Read again: another run may have written beside this one.
        write_results(path, [*read_results(path), result])
        show(
            f"{result.dataset} {result.form} l={result.order} epsilon={_epsilon(result.epsilon)} "
            f"seed {result.seed}: accuracy {result.accuracy:.4f}, {result.cpu_seconds:.0f} s"
        )
    return read_results(path)


def published_cases(datasets: Sequence[str] = DATASETS) -> list[Case]:
    """Table 2: what was asked for first, then the rest seed by seed."""
    grid = [
        Case(dataset=dataset, form="published", order=order, epsilon=epsilon, seed=seed)
        for seed in SEEDS
        for dataset in datasets
        for epsilon in (10.0, None)
        for order in ORDERS
    ]
    return sorted(grid, key=lambda case: (case.order != 4 or case.epsilon is None, case.seed))


PROVEN_CASES = tuple(
    Case(dataset="mnist", form=form, order=order, epsilon=epsilon, seed=0)
    for epsilon, order in ((10.0, 16), (1.0, 32), (1.0, 128))
    for form in ("groups", "poisson")
)
"""The proven forms at the budgets of the published one, and at a usual one."""

PUBLISHED_BESIDE = tuple(
    Case(dataset="mnist", form="published", order=order, epsilon=1.0, seed=0)
    for order in (4, 16, 64)
)
"""The published form at the budget of the proven ones that Table 2 has not."""


def _epsilon(epsilon: float | None) -> str:
    return "inf" if epsilon is None else f"{epsilon:g}"


def order_curve(results: Iterable[ImageResult], *, dataset: str, epsilon: float) -> int:
    """Best order of mixture of the published form on a public dataset, as in Figure 2."""
    scores: dict[int, list[float]] = {}
    for result in results:
        if (result.dataset, result.form, result.epsilon) == (dataset, "published", epsilon):
            scores.setdefault(result.order, []).append(result.accuracy)
    return best_order(lambda order: mean(scores[order]), list(scores)).best


def result_table(results: Iterable[ImageResult]) -> str:
    """Lay out mean accuracies over the seeds, beside those of the paper."""
    groups: dict[tuple[str, str, float | None, int], list[ImageResult]] = {}
    for result in results:
        key = (result.dataset, result.form, result.epsilon, result.order)
        groups.setdefault(key, []).append(result)
    lines = []
    for (dataset, form, epsilon, order), group in sorted(
        groups.items(), key=lambda item: (*item[0][:2], item[0][2] or 0.0, item[0][3])
    ):
        paper = PAPER.get((dataset, epsilon)) if form == "published" else None
        known = paper is not None and order in ORDERS
        lines.append(
            (
                dataset,
                f"{form} ({group[0].guarantee})",
                _epsilon(epsilon),
                str(order),
                f"{mean(result.images for result in group):.0f}",
                figure([result.accuracy for result in group], 4),
                f"{paper[ORDERS.index(order)]:.4f}" if known and paper is not None else "-",
                f"{mean(result.cpu_seconds for result in group):.0f}",
            )
        )
    header = ("dataset", "form", "epsilon", "l", "images", "accuracy", "paper", "cpu s")
    return table(header, lines, n_left=2)


def requirements(results: Sequence[ImageResult]) -> list[Requirement]:
    """Compare the published form with Table 2 of the paper."""
    found = []
    for dataset in DATASETS:
        for epsilon, orders, asked in (
            (None, ORDERS, ASKED_NOISELESS),
            (10.0, (4,), ASKED_PRIVATE),
        ):
            paper = dict(zip(ORDERS, PAPER[dataset, epsilon], strict=True))
            own = {
                order: [
                    result.accuracy
                    for result in results
                    if result.case
                    == Case(
                        dataset=dataset,
                        form="published",
                        order=order,
                        epsilon=epsilon,
                        seed=result.seed,
                    )
                ]
                for order in orders
            }
            measured = {order: mean(values) for order, values in own.items() if values}
            far = [order for order in measured if abs(measured[order] - paper[order]) > asked]
            found.append(
                Requirement(
                    text=f"{dataset}: accuracy of dp_cda as published, epsilon "
                    f"{_epsilon(epsilon)}, l = {', '.join(map(str, orders))}",
                    asked=f"within {asked:g} of the paper",
                    measured=", ".join(
                        f"l={order}: {value:.4f} (paper {paper[order]:.4f})"
                        for order, value in measured.items()
                    )
                    or "not measured",
                    met=len(measured) == len(orders) and not far,
                )
            )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.dp_cda_images", description=__doc__)
    parser.add_argument("--dataset", action="append", choices=DATASETS, help="Table 2 of one alone")
    parser.add_argument("--proven", action="store_true", help="the proven forms alone")
    options = parser.parse_args(arguments)
    cases: list[Case] = []
    if options.proven or not options.dataset:
        cases += [*PROVEN_CASES, *PUBLISHED_BESIDE]
    if not options.proven:
        # Of Table 2, the figures that were asked for by themselves come before all else.
        table_2 = published_cases(options.dataset or DATASETS)
        cases = [*table_2[:2], *cases, *table_2[2:]]
    results = run(
        cases, path=RESULT_FILE, show=lambda text: print(text, file=sys.stderr, flush=True)
    )
    print(result_table(results))
    print()
    print(requirement_table(requirements(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
