"""Clustering accuracy of private k-means on MNIST: Fourier features against plain vectors.

All 60,000 training images, binarised. Both forms have the same rounds, the same proven accounting
and the same post-processing; the first centres and the frequencies come from public seeds. A run
has its own public seed; the noise comes from the operating system.

Source of the comparison: DPGM paper (Acs, Melis, Castelluccia and De Cristofaro 2019), Fig. 3.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from benchmarks.results import RESULTS, Requirement, figure, requirement_table, table
from privacy.calibration import gdp_mu
from privacy.mechanisms import discrete_gaussian_mechanism
from privacy.parameters import Adjacency
from privacy.randomness import OperatingSystemNoise
from storage.idx_files import read_idx
from storage.image_datasets import find_images
from tasks.metrics.clustering_accuracy import clustering_accuracy
from tasks.synthesizers.dp_kmeans import PUBLIC_SEED, round_requests
from tasks.synthesizers.dpgm.embedding import FeatureKind, build_embedding
from tasks.synthesizers.dpgm.kernel_kmeans import (
    lines_of,
    move_centres,
    start_clustering,
    sums_by_cluster,
)
from tasks.synthesizers.encoded import EncodingDomain
from tasks.synthesizers.plan import plan_measurement
from tasks.synthesizers.vectors import VectorMap

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringRow:
    """Accuracy of one form at one epsilon, run by run.

    Parameters
    ----------
    features
        "fourier" or "plain".
    epsilon, delta
        Proven, under add or remove of one patient.
    rounds, n_clusters, width
        Noisy rounds, clusters, and coordinates of a point.
    accuracy
        Clustering accuracy of each run.
    seconds
        Mean wall time of a run, the features of the images not counted.
    """

    features: str
    epsilon: float
    delta: float
    rounds: int
    n_clusters: int
    width: int
    accuracy: tuple[float, ...]
    seconds: float


def binarised_mnist() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Training images of zeros and ones, shape (60000, 784), and their digits."""
    image_file, label_file = find_images("mnist", "train")
    images = read_idx(image_file).reshape(-1, _PIXELS)
    return (images > _BLACK).astype(np.float64), read_idx(label_file).astype(np.int64)


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
    lines = lines_of(points, np.ones(len(images)), count_share=start.count_share)
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
) -> list[ClusteringRow]:
    """Measure both forms at every epsilon."""
    images, labels = binarised_mnist()
    domain_width = {"fourier": N_FEATURES, "plain": _PIXELS}
    rows = []
    for features in FORMS:
        measured = []
        for index in range(runs):
            measured.append(
                one_run(
                    images,
                    labels,
                    features=features,
                    epsilons=epsilons,
                    rounds=rounds,
                    public_seed=PUBLIC_SEED + index,
                )
            )
            show(f"{features} {index + 1}/{runs}: {[round(a, 3) for a, _ in measured[-1]]}")
        for position, epsilon in enumerate(epsilons):
            rows.append(
                ClusteringRow(
                    features=features,
                    epsilon=epsilon,
                    delta=DELTA,
                    rounds=rounds,
                    n_clusters=N_CLUSTERS,
                    width=domain_width[features],
                    accuracy=tuple(round(one[position][0], 4) for one in measured),
                    seconds=round(mean(one[position][1] for one in measured), 2),
                )
            )
    return rows


def requirements(rows: Sequence[ClusteringRow]) -> list[Requirement]:
    """Compare the forms at every epsilon below `BELOW`."""
    found = []
    for epsilon in sorted({row.epsilon for row in rows if row.epsilon < BELOW}):
        of = {row.features: row.accuracy for row in rows if row.epsilon == epsilon}
        found.append(
            Requirement(
                text=f"clustering accuracy of MNIST, epsilon {epsilon}, {len(of['plain'])} runs",
                asked=f"> {figure(of['plain'])}, plain k-means",
                measured=f"{figure(of['fourier'])}, kernel k-means",
                met=mean(of["fourier"]) > mean(of["plain"]),
            )
        )
    return found


def accuracy_table(rows: Sequence[ClusteringRow]) -> str:
    """Lay out the accuracy of both forms by epsilon."""
    cells = {(row.features, row.epsilon): figure(row.accuracy) for row in rows}
    return table(
        ("epsilon", *FORMS),
        [
            (str(epsilon), *(cells[features, epsilon] for features in FORMS))
            for epsilon in sorted({row.epsilon for row in rows})
        ],
    )


def write_rows(path: Path, rows: Sequence[ClusteringRow]) -> None:
    """Write rows as a JSON list, replacing the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(row) for row in rows], indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


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
