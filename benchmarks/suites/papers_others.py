"""DP-CDA, Tables 2 and 3, and DPGM, Figures 3, 5 and 6.

Mixtures of images as printed, and the accuracy of three classifiers. The network is that of the
paper's Table 1 (`benchmarks.networks`). Open in the paper: here 180,000 images (60,000 without
noise), a norm of 1 after the z-score (10), a quarter of the loss in the labels, delta 1e-5, two
epochs of batches of 512 (one of 64), a cosine to zero; mixtures and test images are brought to a
variance of one. Batch normalisation takes its moments from test images, or from training
(`cnn_by_training_moments`), as the paper's network will have. The nearest class mean and least
squares stand beside it: they learn from noise in which a network gets lost.

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
from benchmarks.networks import accuracy, adapted, fit_paper
from benchmarks.results import IN_PROCESS, ResultRow
from benchmarks.rivals.__main__ import read_records, site_of
from benchmarks.rivals.dp_cda import ZScore, class_pools, mix_classes, theorem_1_noise
from benchmarks.rivals.dp_mix import DPMixSettings, PrintedDPMix
from benchmarks.rivals.mwem import AccountedMwem, MwemSettings, PrintedMwem
from benchmarks.rivals.noise import clip_rows
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

DELTA, N_LABELS, LABEL_SHARE = 1e-5, 10, 0.25
Images = NDArray[np.float32]
Made = tuple[Images, NDArray[Any], NDArray[Any], Images]
"""Released images, their labels, the released shares of labels, and test images on their scale."""

CLUSTERS, FEATURES, ROUNDS = 10, 200, 20
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


def released(
    dataset: str, form: str, order: int, epsilon: float | None, *, n_images: int, seed: int
) -> Made:
    (pixels, labels), (test, _) = images_of(dataset)
    parameters = None if epsilon is None else PrivacyParameters(epsilon=epsilon, delta=DELTA)
    rng = np.random.default_rng(seed)
    if form == "dp_mix":
        if parameters is None:
            raise ValueError("expected an epsilon of DPMix, found none")
        settings = DPMixSettings(order_of_mixture=order, n_mixtures=n_images)
        rival = PrintedDPMix(domain_of(site_of(dataset).table_schema), settings, parameters)
        made = list(rival.mixtures(pixels.astype(np.uint16), labels.astype(np.uint16), rng))
        mixtures, shares = (np.concatenate(part) for part in zip(*made, strict=True))
        found = mixtures.astype(np.float32)
        return found, shares.argmax(axis=1), shares, test.astype(np.float32) / 255
    clip = 10.0 if parameters is None else 1.0
    train, other = (part.astype(np.float32) / 255 for part in (pixels, test))
    z_score = ZScore.of(train)
    scaled, other = (clip_rows(z_score.apply(part), l2_clip_norm=clip) for part in (train, other))
    noise = None if parameters is None else theorem_1_noise(
        parameters, order=order, n_records=len(scaled), n_outputs=n_images,
        l2_clip_norm=clip, label_share=LABEL_SHARE,
    )  # fmt: skip
    pools = class_pools(
        scaled, labels, n_labels=N_LABELS, order=order, mixtures_per_class=n_images // N_LABELS
    )
    found, digits = mix_classes(pools, noise=noise, rng=rng)
    return found.astype(np.float32), digits, np.eye(N_LABELS)[digits], other.astype(np.float32)


def linear_accuracies(made: Made, answers: NDArray[Any]) -> dict[str, float]:
    """Accuracy of the nearest mean of a label, and of least squares on shares of labels."""
    images, labels, shares, test = made
    centre = images.mean(axis=0)
    means = np.stack([images[labels == k].mean(axis=0) for k in np.unique(labels)])
    nearest = np.unique(labels)[(test @ means.T - (means**2).sum(axis=1) / 2).argmax(axis=1)]
    moved = images - centre
    covariance = moved.T @ moved / len(moved) + 1e-6 * np.eye(moved.shape[1])
    weights = np.linalg.solve(covariance, moved.T @ (shares - shares.mean(axis=0)) / len(moved))
    least = ((test - centre) @ weights).argmax(axis=1)
    named = {"nearest_mean": nearest, "least_squares_on_shares": least}
    return {name: round(float((one == answers).mean()), 4) for name, one in named.items()}


def mixtures_row(
    order: int = 4, dataset: str = "mnist", form: Literal["dp_cda", "dp_mix"] = "dp_cda",
    epsilon: float | None = None, seed: int = 0, images: int | None = None,
    epochs: int | None = None,
) -> ResultRow:  # fmt: skip
    """Measure one cell of Table 2 or 3; without epochs (0) no network is trained.

    With another number of images than the table's, the network's accuracy is a figure beside it.
    """
    noisy, aside = epsilon is not None, images is not None
    n_images = images or (180_000 if noisy else 60_000)
    epochs = (2 if noisy else 1) if epochs is None else epochs
    wall, cpu = time.perf_counter(), time.process_time()
    made = released(dataset, form, order, epsilon, n_images=n_images, seed=seed)
    answers = images_of(dataset)[1][1]
    pixels, labels, _, test = made
    figures, best = linear_accuracies(made, answers), None
    if epochs:
        pixels, test = ((part / part.std()).reshape(-1, 28, 28, 1) for part in (pixels, test))
        network = fit_paper(
            pixels, labels, n_labels=N_LABELS, epochs=epochs, seed=seed,
            batch_size=512 if noisy else 64, n_ghosts=16 if noisy else 1,
        )  # fmt: skip
        best = round(accuracy(adapted(network, test), test, answers), 4)
        figures["cnn_by_test_moments"] = best
        figures["cnn_by_training_moments"] = round(accuracy(network, test, answers), 4)
    return ResultRow(
        dataset=dataset, method=form, analysis="published" if noisy else "none", epsilon=epsilon,
        delta=DELTA if noisy else None, seed=seed, source=IN_PROCESS, rows_out=len(pixels),
        cnn_accuracy=None if aside else best, figures=figures,
        settings={"part": "mixtures", "order_of_mixture": order, "epochs": epochs},
        wall_seconds=round(time.perf_counter() - wall, 1),
        cpu_seconds=round(time.process_time() - cpu, 1),
    )  # fmt: skip


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
    plan = plan_measurement(requests, mu=gdp_mu(epsilon=epsilon, delta=DELTA))
    [rows] = shards_of(images > 127, digits)
    curator = Curator(plan=plan, shards=[rows], noise_source=OperatingSystemNoise())
    clusters = run_rounds(curator, start, rounds=ROUNDS).assign(rows.codes, rows.label)
    return ResultRow(
        dataset="mnist-binarised", method="dp_kmeans", analysis="proven", epsilon=epsilon,
        delta=DELTA, seed=seed, source=IN_PROCESS, rows=len(images),
        settings={"features": features, "rounds": ROUNDS, "n_clusters": CLUSTERS},
        figures={"clustering_accuracy": round(clustering_accuracy(clusters, digits), 4)},
        wall_seconds=round(time.perf_counter() - began, 2),
    )  # fmt: skip
