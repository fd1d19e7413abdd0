"""DP-CDA on images: Table 2 of its paper, and the proven form at the same budgets.

Released images train the network of the paper's Table 1 (`benchmarks.convolutional`), which is then
scored on the test images as they are, unmixed and without noise. The published form uses a seeded
generator and its epsilon is claimed, not proven; the noise of the proven forms comes from the
operating system, and their seed picks the network alone.

The paper leaves open T, c, the ratio of the two noises, delta, the batch, the epochs and the
schedule. `NOISELESS_RECIPE` and `PRIVATE_RECIPE` say what is taken here; they were searched on
seeds 0 and 1. Test images are scaled and clipped as the training images. For the published form
both are then brought to a variance of one; for every form batch normalisation takes its moments
from the test images (`benchmarks.convolutional.adapted`): mixtures have less contrast than images,
and noise more.
Every result is written at once, and a run goes on where an earlier one stopped. Most of the time
goes into fresh pages of memory: with ``GLIBC_TUNABLES=glibc.malloc.hugetlb=1``,
``MALLOC_MMAP_MAX_=0`` and ``MALLOC_TRIM_THRESHOLD_`` and ``MALLOC_TOP_PAD_`` of a gigabyte it
takes half as long.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.convolutional import accuracy, adapted, fit
from benchmarks.dp_cda_table import (
    DATASETS,
    DELTA,
    ORDERS,
    Case,
    case_of,
    epsilon_text,
    requirements,
    result_table,
    row_of,
)
from benchmarks.results import RESULTS, ResultRow, keep_rows, read_rows, requirement_table
from benchmarks.rivals.dp_cda import ZScore, class_pools, mix_classes, theorem_1_noise
from benchmarks.rivals.noise import clip_rows
from benchmarks.tables import read_images
from privacy.calibration import gdp_mu
from privacy.parameters import PrivacyParameters
from privacy.randomness import OperatingSystemNoise
from storage.public_data.datasets import find
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.method import measure
from tasks.methods.dp_cda.dp_cda import DpCda
from tasks.methods.dp_cda.dp_cda_settings import DpCdaConfig

SEEDS = (0, 1, 2)
N_LABELS = 10
N_LEVELS = 256
RESULT_FILE = RESULTS / "dp_cda_images.json"


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
    epochs, batch_size, ghost_batch_size
        Of the network.
    """

    n_outputs: int
    l2_clip_norm: float
    label_share: float
    epochs: int
    batch_size: int
    ghost_batch_size: int


NOISELESS_RECIPE = Recipe(
    n_outputs=60_000,
    l2_clip_norm=10.0,
    label_share=0.2,
    epochs=1,
    batch_size=64,
    ghost_batch_size=64,
)
"""Without noise: a second epoch is no better."""

PRIVATE_RECIPE = Recipe(
    n_outputs=180_000,
    l2_clip_norm=1.0,
    label_share=0.25,
    epochs=2,
    batch_size=512,
    ghost_batch_size=32,
)
"""With noise: more images cost next to no noise, and large batches and two passes let the network
see through it. A quarter of the loss in the labels leaves 19 of 20 right at l = 4."""

PROVEN_STEPS = 600
"""Batches that a network is trained on mixtures of a proven form, however many there are."""


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
    train, train_labels = read_images(find(dataset))
    test, test_labels = read_images(find(f"{dataset}_test"))
    return Images(train=train, train_labels=train_labels, test=test, test_labels=test_labels)


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
    scaled = [clip_rows(z_score.apply(part), l2_clip_norm=l2_clip_norm) for part in (train, test)]
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
        released / released.std(),
        labels,
        n_labels=N_LABELS,
        epochs=recipe.epochs,
        seed=case.seed,
        batch_size=recipe.batch_size,
        ghost_batch_size=recipe.ghost_batch_size,
    )
    test = test / test.std()
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
    "declared_patients": 60_000,
    "l2_clip_norm": 9.0,
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
    )
    config = DpCdaConfig(order_of_mixture=case.order, **PROVEN_SETTINGS)
    method = DpCda(image_domain(), config)
    mu = gdp_mu(epsilon=float(case.epsilon or 0.0), delta=DELTA)
    curator = Curator(
        plan=method.plan(mu=mu),
        shards=[rows],
        noise_source=OperatingSystemNoise(),
    )
    released = measure(method, curator)
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


def run_case(case: Case) -> ResultRow:
    """Measure one case."""
    wall, cpu = time.perf_counter(), time.process_time()
    if case.form == "published":
        recipe = NOISELESS_RECIPE if case.epsilon is None else PRIVATE_RECIPE
        found, n_images = measure_published(case, recipe)
    else:
        found, n_images = measure_proven(case)
    return row_of(
        case,
        images=n_images,
        accuracy=found,
        wall=time.perf_counter() - wall,
        cpu=time.process_time() - cpu,
    )


def run(
    cases: Sequence[Case],
    *,
    path: Path,
    show: Callable[[str], None],
    measured: Callable[[Case], ResultRow] = run_case,
) -> list[ResultRow]:
    """Measure the cases that `path` does not hold yet, one after the other.

    Returns
    -------
    list of ResultRow
        All that `path` holds at the end.
    """
    for case in cases:
        if case in {case_of(row) for row in read_rows(path)}:
            continue
        row = measured(case)
        # Read again: another run may have written beside this one.
        keep_rows(path, [row])
        show(
            f"{row.dataset} {case.form} l={case.order} "
            f"epsilon={epsilon_text(row.epsilon)} seed {row.seed}: "
            f"accuracy {row.cnn_accuracy:.4f}, {row.cpu_seconds:.0f} s"
        )
    return read_rows(path)


def published_cases(datasets: Sequence[str] = DATASETS) -> list[Case]:
    """Table 2: what was asked for by itself, then what is cheap, without noise, then the rest."""
    grid = [
        Case(dataset=dataset, form="published", order=order, epsilon=epsilon, seed=seed)
        for seed in SEEDS
        for dataset in datasets
        for epsilon in (10.0, None)
        for order in ORDERS
    ]
    return sorted(
        grid,
        key=lambda case: (case.order != 4 or case.epsilon is None, case.epsilon or 0.0, case.seed),
    )


PROVEN_CASES = tuple(
    Case(dataset="mnist", form="groups", order=order, epsilon=epsilon, seed=0)
    for epsilon, order in ((10.0, 16), (1.0, 32), (1.0, 128))
)
"""The proven form at the budget of the published one, and at a usual one."""

PUBLISHED_BESIDE = tuple(
    Case(dataset="mnist", form="published", order=order, epsilon=1.0, seed=0)
    for order in (4, 16, 64)
)
"""The published form at the budget of the proven ones that Table 2 has not."""


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
