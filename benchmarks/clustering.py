"""Clustering accuracy of private k-means on MNIST: Fourier features against plain vectors.

All 60,000 training images, binarised. Both forms have the same rounds, the same proven accounting
and the same post-processing; the first centres and the frequencies come from public seeds. A run
has its own public seed; the noise comes from the operating system.

Source of the comparison: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), Fig. 3.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from benchmarks.clustering_accuracy import clustering_accuracy
from benchmarks.results import (
    IN_PROCESS,
    RESULTS,
    Requirement,
    ResultRow,
    figure,
    requirement_table,
    table,
    write_rows,
)
from benchmarks.tables import read_images
from privacy.calibration import gdp_mu
from privacy.mechanisms import discrete_gaussian_mechanism
from privacy.parameters import Adjacency
from privacy.randomness import OperatingSystemNoise
from storage.public_data.datasets import find
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.measurement_plan import plan_measurement
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm.dp_kmeans import PUBLIC_SEED, round_requests
from tasks.methods.dpgm.dpgm_settings import FeatureKind
from tasks.methods.dpgm.kernel_kmeans import (
    build_embedding,
    count_share,
    lines_of,
    move_centres,
    start_clustering,
    sums_by_cluster,
)

EPSILONS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0)
DELTA = 1e-5
N_CLUSTERS = 10
ROUNDS = 20
N_FEATURES = 200
RUNS = 10
FORMS: tuple[FeatureKind, ...] = ("fourier", "plain")
BELOW = 0.5
RESULT_FILE = RESULTS / "clustering.json"

_PIXELS = 784
_BLACK = 127


def row_of(
    features: str, epsilon: float, number: int, accuracy: float, seconds: float, rounds: int
) -> ResultRow:
    """Return the row of one run; an ablation, with the pictures held in this process."""
    return ResultRow(
        dataset="mnist-binarised",
        method="dp_kmeans",
        analysis="proven",
        epsilon=epsilon,
        delta=DELTA,
        seed=number,
        source=IN_PROCESS,
        settings={"features": features, "rounds": rounds, "n_clusters": N_CLUSTERS},
        figures={"clustering_accuracy": round(accuracy, 4)},
        wall_seconds=round(seconds, 2),
    )


def accuracies(rows: Sequence[ResultRow], features: str, epsilon: float) -> list[float]:
    """Clustering accuracy of every run of one form at one epsilon."""
    return [
        row.figures["clustering_accuracy"]
        for row in rows
        if (row.settings["features"], row.epsilon) == (features, epsilon)
    ]


def binarised_mnist() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Training images of zeros and ones, shape (60000, 784), and their digits."""
    images, labels = read_images(find("mnist"))
    return (images > _BLACK).astype(np.float64), labels


def pixel_domain() -> EncodingDomain:
    """Domain of a binarised image; the digit is not a part of a point."""
    return EncodingDomain(
        column_names=tuple(f"pixel_{index:03d}" for index in range(_PIXELS)),
        n_codes=(2,) * _PIXELS,
        has_missing=(False,) * _PIXELS,
        numeric=(False,) * _PIXELS,
        label_levels=tuple(str(digit) for digit in range(10)),
    )


def one_run(
    images: NDArray[np.float64],
    labels: NDArray[np.int64],
    *,
    features: FeatureKind,
    epsilons: Sequence[float],
    rounds: int,
    public_seed: int,
) -> list[tuple[float, float]]:
    """Accuracy and seconds at each epsilon, for one public seed of features and first centres."""
    embedding = build_embedding(
        VectorMap(pixel_domain()),
        features=features,
        n_features=N_FEATURES,
        length_scale=None,
        l2_clip_norm=None,
        public_seed=public_seed,
    )
    start = start_clustering(embedding, n_clusters=N_CLUSTERS, public_seed=public_seed)
    points = embedding.points_of_vectors(images)
    lines = lines_of(points, np.ones(len(images)), count_share=count_share(embedding.width))
    if features == "plain":
        # Four pixels of five are black. Whole numbers: the products are the same to the last bit.
        points, lines = csr_array(points), csr_array(lines)
    requests = round_requests(embedding, n_clusters=N_CLUSTERS, rounds=rounds, share=1.0)
    found = []
    for epsilon in epsilons:
        began = time.perf_counter()
        plan = plan_measurement(requests, mu=gdp_mu(epsilon=epsilon, delta=DELTA))
        clustering = start
        for index, request in enumerate(requests):
            planned = plan[request.name]
            sums = sums_by_cluster(lines, clustering.assign_points(points), N_CLUSTERS)
            noisy = discrete_gaussian_mechanism(
                sums.astype(np.int64),
                statistic=planned.name,
                l2_sensitivity=planned.l2_sensitivity,
                noise_stddev=planned.noise_stddev,
                adjacency=Adjacency.ADD_REMOVE,
                noise_source=OperatingSystemNoise(),
            )
            clustering = move_centres(
                clustering,
                noisy.values / planned.scale,
                noise_stddev=planned.unit_noise_stddev,
                public_seed=public_seed + 1_000 * (1 + index),
            )
        accuracy = clustering_accuracy(clustering.assign_points(points), labels)
        found.append((accuracy, time.perf_counter() - began))
    return found


def run(
    *,
    runs: int = RUNS,
    rounds: int = ROUNDS,
    epsilons: Sequence[float] = EPSILONS,
    show: Callable[[str], None] = print,
) -> list[ResultRow]:
    """Measure both forms at every epsilon."""
    images, labels = binarised_mnist()
    rows = []
    for features in FORMS:
        for number in range(runs):
            measured = one_run(
                images,
                labels,
                features=features,
                epsilons=epsilons,
                rounds=rounds,
                public_seed=PUBLIC_SEED + number,
            )
            rows += [
                row_of(features, epsilon, number, *found, rounds)
                for epsilon, found in zip(epsilons, measured, strict=True)
            ]
            show(f"{features} {number + 1}/{runs}: {[round(found, 3) for found, _ in measured]}")
    return rows


def requirements(rows: Sequence[ResultRow]) -> list[Requirement]:
    """Compare the forms at every epsilon below `BELOW`."""
    found = []
    for epsilon in epsilons_of(rows):
        plain, fourier = (accuracies(rows, form, epsilon) for form in ("plain", "fourier"))
        if epsilon >= BELOW:
            continue
        found.append(
            Requirement(
                text=f"clustering accuracy of MNIST, epsilon {epsilon}, {len(plain)} runs",
                asked=f"> {figure(plain)}, plain k-means",
                measured=f"{figure(fourier)}, kernel k-means",
                met=mean(fourier) > mean(plain),
            )
        )
    return found


def epsilons_of(rows: Sequence[ResultRow]) -> list[float]:
    """All epsilons, increasing."""
    return sorted({row.epsilon for row in rows if row.epsilon is not None})


def accuracy_table(rows: Sequence[ResultRow]) -> str:
    """Lay out the accuracy of both forms by epsilon."""
    return table(
        ("epsilon", *FORMS),
        [
            (str(epsilon), *(figure(accuracies(rows, form, epsilon)) for form in FORMS))
            for epsilon in epsilons_of(rows)
        ],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.clustering", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)

    def show(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    rows = run(runs=options.runs, rounds=options.rounds, show=show)
    write_rows(RESULT_FILE, rows)
    print(accuracy_table(rows))
    print()
    print(requirement_table(requirements(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
