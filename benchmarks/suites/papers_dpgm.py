"""DPGM, Figures 3, 5 and 6: clustering accuracy, and the relative error of counting queries.

Clustering: MNIST in black and white, on Fourier features and plain vectors with the same rounds and
the same proven accounting. Queries: in five sets of growing length, as in section 6.3; MNIST in
black and white, and drugs and diagnoses of Diabetes-130 stand for call records and transit, which
are not public. MWEM as its paper prints it takes 50 rounds from the uniform distribution.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import confusion_matrix

from benchmarks.in_process import released_rows, shards_of
from benchmarks.marginal_distance import draw_query_sets, query_set_errors
from benchmarks.results import IN_PROCESS, ResultRow
from benchmarks.rivals.__main__ import read_records, site_of
from benchmarks.rivals.mwem import AccountedMwem, MwemSettings, PrintedMwem
from benchmarks.tables import images_of
from privacy.calibration import gdp_mu
from privacy.parameters import PrivacyParameters
from privacy.randomness import OperatingSystemNoise
from tasks.ingest.encoding import domain_of
from tasks.measurement.curator import Curator
from tasks.measurement.measurement_plan import plan_measurement
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm import kernel_kmeans as kernel
from tasks.methods.dpgm.dp_kmeans import PUBLIC_SEED, round_requests, run_rounds
from tasks.methods.dpgm.dpgm import Dpgm
from tasks.methods.dpgm.dpgm_settings import BudgetShares, DpgmConfig
from tasks.methods.naive_bayes import NaiveBayes

CLUSTERS, FEATURES, ROUNDS, CLUSTERING_DELTA = 10, 200, 20, 1e-5
QUERY_DELTA, QUERY_SEED, SHORT = 1e-6, 20_190_627, 5

PAPER_MWEM = MwemSettings(rounds=50, label_share=0.0, start="uniform")
# Counts are asked: most of the budget is for the means of the clusters.
_SHARES = BudgetShares(clustering=0.05, means=0.70, training=0.25)
PROVEN: dict[str, Any] = {
    "naive_bayes": NaiveBayes,
    "dpgm_rbm": partial(Dpgm, config=DpgmConfig(network="rbm", shares=_SHARES, learning_rate=0.3)),
    "dpgm_vae": partial(Dpgm, config=DpgmConfig(network="vae", shares=_SHARES)),
}
RIVALS: dict[str, tuple[Any, MwemSettings]] = {
    "mwem": (AccountedMwem, MwemSettings(label_share=0.0)),
    "mwem_uniform": (AccountedMwem, PAPER_MWEM),
    "mwem_published": (PrintedMwem, PAPER_MWEM),
}
METHODS = ("naive_bayes", "mwem", "dpgm")


def queries_row(
    dataset: str, variant: str, epsilon: float, seed: int = 0,
    design: Literal["paper", "short"] = "short",
) -> ResultRow:  # fmt: skip
    site = site_of(dataset)
    codes, labels = read_records(site, one_of_each=True)
    domain, start = domain_of(site.table_schema), time.perf_counter()
    if variant in RIVALS:
        form, settings = RIVALS[variant]
        parameters = PrivacyParameters(epsilon=epsilon, delta=QUERY_DELTA)
        rival = form(domain, settings, parameters)
        made, _ = rival.synthesize(codes, labels, np.random.default_rng())
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


def clustering_accuracy(clusters: NDArray[Any], labels: NDArray[Any]) -> float:
    """Share of records whose cluster is matched with their label, under the best match (6.2)."""
    counts = confusion_matrix(labels, clusters)
    return float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(labels))


def clusters_row(features: Literal["fourier", "plain"], epsilon: float, seed: int = 0) -> ResultRow:
    images, digits = images_of("mnist")[0]
    public_seed, began = PUBLIC_SEED + seed, time.perf_counter()
    domain = domain_of(site_of("mnist-binarised").table_schema)
    embedding = kernel.build_embedding(
        VectorMap(domain), features=features, n_features=FEATURES,
        length_scale=None, l2_clip_norm=None, public_seed=public_seed,
    )  # fmt: skip
    start = kernel.start_clustering(embedding, n_clusters=CLUSTERS, public_seed=public_seed)
    requests = round_requests(embedding, n_clusters=CLUSTERS, rounds=ROUNDS, share=1.0)
    plan = plan_measurement(requests, mu=gdp_mu(epsilon=epsilon, delta=CLUSTERING_DELTA))
    [rows] = shards_of(images > 127, digits)
    curator = Curator(plan=plan, shards=[rows], noise_source=OperatingSystemNoise())
    clusters = run_rounds(curator, start, rounds=ROUNDS).assign(rows.codes, rows.label)
    return ResultRow(
        dataset="mnist-binarised", method="dp_kmeans", analysis="proven", epsilon=epsilon,
        delta=CLUSTERING_DELTA, seed=seed, source=IN_PROCESS, rows=len(images),
        settings={"features": features, "rounds": ROUNDS, "n_clusters": CLUSTERS},
        figures={"clustering_accuracy": round(clustering_accuracy(clusters, digits), 4)},
        wall_seconds=round(time.perf_counter() - began, 2),
    )  # fmt: skip
