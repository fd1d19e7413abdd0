"""DPGM, Figures 3, 5 and 6: clustering accuracy, and the relative error of counting queries.

Clustering: MNIST in black and white, on Fourier features and plain vectors with the same rounds and
the same proven accounting. Queries: in five sets of growing length, as in section 6.3; MNIST in
black and white, and drugs and diagnoses of Diabetes-130 stand for call records and transit, which
are not public. MWEM as its paper prints it takes 50 rounds from the uniform distribution.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.clustering_accuracy import clustering_accuracy
from benchmarks.query_sets import draw_query_sets, query_set_errors
from benchmarks.results import IN_PROCESS, ResultRow
from benchmarks.rivals.__main__ import read_records, site_of
from benchmarks.rivals.mwem import AccountedMwem, MwemSettings, PrintedMwem
from benchmarks.tables import read_images
from privacy.calibration import gdp_mu
from privacy.mechanisms import discrete_gaussian_mechanism
from privacy.parameters import Adjacency, PrivacyParameters
from privacy.randomness import OperatingSystemNoise
from storage.public_data.datasets import find
from tasks.ingest.encoding import domain_of
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import N_FOLDS, EncodedRows
from tasks.measurement.measurement_plan import plan_measurement
from tasks.measurement.method import Synthesizer, measure
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm import kernel_kmeans as kernel
from tasks.methods.dpgm.dp_kmeans import PUBLIC_SEED, round_requests
from tasks.methods.dpgm.dpgm import Dpgm
from tasks.methods.dpgm.dpgm_settings import BudgetShares, DpgmConfig
from tasks.methods.naive_bayes import NaiveBayes

CLUSTERS, FEATURES, CLUSTERING_DELTA = 10, 200, 1e-5
QUERY_DELTA, QUERY_SEED, SHORT = 1e-6, 20_190_627, 5

PAPER_MWEM = MwemSettings(rounds=50, label_share=0.0, start="uniform")
# Counts are asked: most of the budget is for the means of the clusters.
_SHARES = BudgetShares(clustering=0.05, means=0.70, training=0.25)
PROVEN: dict[str, Any] = {
    "naive_bayes": NaiveBayes,
    "dpgm_rbm": lambda domain: Dpgm(
        domain, DpgmConfig(network="rbm", shares=_SHARES, learning_rate=0.3)
    ),
    "dpgm_vae": lambda domain: Dpgm(domain, DpgmConfig(network="vae", shares=_SHARES)),
}
RIVALS: dict[str, tuple[Any, MwemSettings]] = {
    "mwem": (AccountedMwem, MwemSettings(label_share=0.0)),
    "mwem_uniform": (AccountedMwem, PAPER_MWEM),
    "mwem_published": (PrintedMwem, PAPER_MWEM),
}
METHODS = ("naive_bayes", "mwem", "dpgm")


def released_rows(
    method: Synthesizer,
    codes: NDArray[Any],
    labels: NDArray[Any],
    *,
    epsilon: float,
    delta: float,
    n_rows: int,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Measure a table in this process, with the noise of the system, and draw so many rows."""
    rows = EncodedRows(
        codes=codes.astype(np.uint16),
        label=labels.astype(np.uint16),
        weight=np.ones(len(labels)),
        fold=np.arange(len(labels), dtype=np.uint8) % N_FOLDS,
    )
    plan = method.plan(mu=gdp_mu(epsilon=epsilon, delta=delta))
    curator = Curator(plan=plan, shards=[rows], noise_source=OperatingSystemNoise())
    return method.sample(measure(method, curator), n_rows=n_rows, rng=np.random.default_rng())


def queries_row(dataset: str, variant: str, epsilon: float, *, seed: int, design: str) -> ResultRow:
    """Measure the mean relative error of each of the five sets of queries."""
    site = site_of(dataset)
    codes, labels = read_records(site, one_of_each=True)
    domain, start = domain_of(site.table_schema), time.perf_counter()
    if variant in RIVALS:
        form, settings = RIVALS[variant]
        parameters = PrivacyParameters(epsilon=epsilon, delta=QUERY_DELTA)
        made, _ = form(domain, settings, parameters).synthesize(
            codes, labels, np.random.default_rng()
        )
    else:
        made, _ = released_rows(
            PROVEN[variant](domain), codes, labels,
            epsilon=epsilon, delta=QUERY_DELTA, n_rows=len(labels),
        )  # fmt: skip
    seconds, records = time.perf_counter() - start, codes.astype(np.bool_)
    longest = SHORT if design == "short" else int(records.sum(axis=1).max())
    sets = draw_query_sets(
        n_items=records.shape[1], max_length=longest, rng=np.random.default_rng(QUERY_SEED)
    )
    errors = query_set_errors(records, made.astype(np.bool_), sets)
    published = variant == "mwem_published"
    return ResultRow(
        dataset=dataset, method=variant if variant in METHODS else variant.partition("_")[0],
        analysis="published" if published else "accounted" if variant in RIVALS else "proven",
        epsilon=epsilon, delta=0.0 if published else QUERY_DELTA, seed=seed, source=IN_PROCESS,
        settings={"variant": variant, "design": design, "longest_query": longest},
        figures={f"error_{20 * (i + 1)}": round(float(e), 6) for i, e in enumerate(errors)},
        wall_seconds=round(seconds, 1),
    )  # fmt: skip


def clusters_row(features: Any, epsilon: float, *, seed: int, rounds: int) -> ResultRow:
    """Measure the accuracy of one private clustering of binarised MNIST, by its public seed."""
    images, digits = read_images(find("mnist"))
    public_seed, began = PUBLIC_SEED + seed, time.perf_counter()
    domain = domain_of(site_of("mnist-binarised").table_schema)
    embedding = kernel.build_embedding(
        VectorMap(domain), features=features, n_features=FEATURES,
        length_scale=None, l2_clip_norm=None, public_seed=public_seed,
    )  # fmt: skip
    clustering = kernel.start_clustering(embedding, n_clusters=CLUSTERS, public_seed=public_seed)
    points = embedding.points_of_vectors((images > 127).astype(np.float64))
    share = kernel.count_share(embedding.width)
    lines = kernel.lines_of(points, np.ones(len(points)), count_share=share)
    requests = round_requests(embedding, n_clusters=CLUSTERS, rounds=rounds, share=1.0)
    plan = plan_measurement(requests, mu=gdp_mu(epsilon=epsilon, delta=CLUSTERING_DELTA))
    for index, request in enumerate(requests):
        planned = plan[request.name]
        sums = kernel.sums_by_cluster(lines, clustering.assign_points(points), CLUSTERS)
        noisy = discrete_gaussian_mechanism(
            sums.astype(np.int64), statistic=planned.name, adjacency=Adjacency.ADD_REMOVE,
            l2_sensitivity=planned.l2_sensitivity, noise_stddev=planned.noise_stddev,
            noise_source=OperatingSystemNoise(),
        )  # fmt: skip
        clustering = kernel.move_centres(
            clustering, noisy.values / planned.scale, noise_stddev=planned.unit_noise_stddev,
            public_seed=public_seed + 1_000 * (1 + index),
        )  # fmt: skip
    found = clustering_accuracy(clustering.assign_points(points), digits)
    return ResultRow(
        dataset="mnist-binarised", method="dp_kmeans", analysis="proven", epsilon=epsilon,
        delta=CLUSTERING_DELTA, seed=seed, source=IN_PROCESS, rows=len(points),
        settings={"features": features, "rounds": rounds, "n_clusters": CLUSTERS},
        figures={"clustering_accuracy": round(found, 4)},
        wall_seconds=round(time.perf_counter() - began, 2),
    )  # fmt: skip
