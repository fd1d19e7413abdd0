"""Private k-means by itself: released clusters, then a mixture of product densities.

A few noisy rounds place the centres; one Gaussian release of the (label, cluster) histograms
follows, and records are sampled column by column given the label and the cluster. With Fourier
features it is the clustering of DPGM, with plain vectors the method that DPGM is compared with.

Source: Blum, Dwork, McSherry and Nissim 2005 (plain); DPGM paper (Acs, Melis, Castelluccia and De
Cristofaro 2019), Algorithm 2 (Fourier features). The histograms are of this software.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privacy.arrays import Floats, Records
from tasks.measurement.centred import centred_norm, count_factor, counts_of, label_counts
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodedRows, EncodingDomain, row_slices
from tasks.measurement.marginals import build_mixture, draw_codes, draw_columns
from tasks.measurement.measurement_plan import MeasurementPlan, SumRequest, plan_measurement
from tasks.measurement.method import Released, Stage
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm.dpgm_settings import DpKMeansConfig
from tasks.methods.dpgm.kernel_kmeans import (
    POINT_SCALE,
    Clustering,
    Embedding,
    build_embedding,
    cluster_sums,
    count_share,
    lines_of,
    move_centres,
    start_clustering,
    sums_by_cluster,
)

TOTAL_SHARE = 0.5
"""Part of the squared sensitivity of the draw that the line of all records has."""

_ROUNDS = 3


def cluster_means(rows: EncodedRows, *, clustering: Clustering, vector_map: VectorMap) -> Any:
    """Weighted counts and sums of centred vectors, in each cluster and in all together.

    The middle of the domain is subtracted from each vector: a black and white image then has half
    the norm at most, and its mean half the noise.

    Of shape (k + 1, 1 + D), in units of ``1 / SUM_SCALE``: a line per cluster, times
    ``sqrt(1 - t)``, and a line of all records, times ``sqrt(t)``, with t of `TOTAL_SHARE`. A line
    has the count times ``sqrt(s)``, then the sum of the centred vectors, divided by their largest
    norm, times ``sqrt(1 - s)``, with s of `tasks.methods.dpgm.kernel_kmeans.count_share`.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds a vector of norm at most
    ``weight * sqrt(1 - t)`` to the line of one cluster, and one of norm at most
    ``weight * sqrt(t)`` to the last line: together at most its weight. The weights of a patient
    sum to at most one, so the Euclidean sensitivity is 1 (``SUM_SCALE`` grid points), also when
    the patient's records fall into different clusters. Event: one discrete Gaussian.
    """
    share, middle = count_share(vector_map.width), vector_map.middle
    radius = vector_map.radius(middle)
    total = np.zeros((clustering.n_clusters + 1, 1 + vector_map.width))
    for block in row_slices(len(rows)):
        codes, label, weight = rows.codes[block], rows.label[block], rows.weight[block]
        vectors = vector_map.vectors(codes, label if vector_map.with_label else None) - middle
        vectors *= POINT_SCALE / (radius * (1.0 + 2.0**-44))
        own = lines_of(vectors, weight * math.sqrt(1.0 - TOTAL_SHARE), count_share=share)
        every = lines_of(vectors, weight * math.sqrt(TOTAL_SHARE), count_share=share)
        total[:-1] += sums_by_cluster(own, clustering.assign(codes, label), clustering.n_clusters)
        total[-1] += every.sum(axis=0)
    return total.astype(np.int64)


def size_noise(vector_map: VectorMap, *, noise_stddev: float) -> float:
    """Return the standard deviation of the noise of a cluster's size, in patients."""
    return noise_stddev / math.sqrt(count_share(vector_map.width) * (1.0 - TOTAL_SHARE))


def sizes_and_means(
    noisy: Floats, *, vector_map: VectorMap, noise_stddev: float
) -> tuple[Floats, Floats]:
    """Noisy sizes (k,) and mean vectors (k, D) of clusters; post-processing.

    The lines of the clusters and of all records are made to agree by least squares. A mean keeps
    the share of its distance from the mean of all records that the noise does not explain
    (positive-part James-Stein), for each column by itself, numbers and yes-or-no columns together;
    then the means are moved so that they average to the mean of all records.

    `noisy`, of shape (k + 1, 1 + D), is what `cluster_means` released, in units of patients. Sizes
    may be negative; means are in [0, 1], and those of a one-hot block sum to one.
    """
    share, middle = count_share(vector_map.width), vector_map.middle
    radius = vector_map.radius(middle)
    own, every = noisy[:-1] / math.sqrt(1.0 - TOTAL_SHARE), noisy[-1] / math.sqrt(TOTAL_SHARE)
    own_variance, every_variance = 1.0 / (1.0 - TOTAL_SHARE), 1.0 / TOTAL_SHARE
    gap = (every - own.sum(axis=0)) / (every_variance + len(own) * own_variance)
    own = own + own_variance * gap
    every = every - every_variance * gap
    every_variance = 1.0 / (1.0 / every_variance + 1.0 / (len(own) * own_variance))

    sizes, n = own[:, 0] / math.sqrt(share), max(float(every[0]) / math.sqrt(share), 1.0)
    unit = radius / math.sqrt(1.0 - share)
    # Without the threshold, clipping negative noise at zero would give every rare level a share.
    overall = _valid(
        middle + every[1:] * (unit / n),
        vector_map,
        threshold=noise_stddev * math.sqrt(every_variance) * unit / n,
    )
    size = np.maximum(sizes, 1.0)[:, None]
    difference = middle + own[:, 1:] * (unit / size) - overall
    noise = noise_stddev * math.sqrt(own_variance) * unit / size
    means = overall + _kept(difference, noise, vector_map) * difference
    weights = np.maximum(sizes, 0.0) / max(float(np.maximum(sizes, 0.0).sum()), 1.0)
    for _ in range(_ROUNDS):
        means = _valid(means, vector_map)
        means = means + (overall - weights @ means)
    return sizes, _valid(means, vector_map)


def _kept(difference: Floats, noise: Floats, vector_map: VectorMap) -> Floats:
    """Share in [0, 1) of each coordinate's difference (k, D) that noise (k, 1) leaves."""
    kept = np.empty_like(difference)
    one_hot = [b for b in vector_map.blocks if b.kind == "one_hot"]
    groups = [np.arange(block.start, block.stop) for block in one_hot]
    groups.append(np.setdiff1d(np.arange(vector_map.width), np.concatenate([[], *groups])))
    for group in groups:
        distance = np.square(difference[:, group]).sum(axis=1, keepdims=True)
        explained = len(group) * np.square(noise)
        kept[:, group] = 1.0 - np.minimum(explained / np.maximum(distance, 1e-300), 1.0)
    return kept


def _valid(mean: Floats, vector_map: VectorMap, *, threshold: float = 0.0) -> Floats:
    """Make means valid: entries below the threshold become 0, and blocks sum to one."""
    valid = np.where(mean < threshold, 0.0, np.minimum(mean, 1.0))
    for block in vector_map.blocks:
        if block.kind == "one_hot":
            part = valid[..., block.start : block.stop]
            total = part.sum(axis=-1, keepdims=True)
            uniform = 1.0 / (block.stop - block.start)
            part[:] = np.where(total > 0.0, part / np.where(total > 0.0, total, 1.0), uniform)
    return valid


HISTOGRAMS = "cluster_histograms"

PUBLIC_SEED = 20_190_501
"""Seed of the frequencies and of the first centres: it may be printed."""


def round_name(index: int) -> str:
    """Name of the statistic of a round, counted from 0."""
    return f"kmeans_round_{index + 1:02d}"


def round_requests(
    embedding: Embedding, *, n_clusters: int, rounds: int, share: float
) -> list[SumRequest]:
    """One request per round; they share ``share`` evenly."""
    return [
        SumRequest(round_name(index), (n_clusters, 1 + embedding.width), share=share / rounds)
        for index in range(rounds)
    ]


def run_rounds(curator: Curator, clustering: Clustering, *, rounds: int) -> Clustering:
    """Draw every round and move the centres.

    Privacy
    -------
    One discrete Gaussian of sensitivity 1 per round, composed adaptively.
    """
    for index in range(rounds):
        name = round_name(index)
        noisy = curator.release(name, cluster_sums, clustering=clustering)
        clustering = move_centres(
            clustering,
            noisy,
            noise_stddev=curator.plan[name].unit_noise_stddev,
            public_seed=PUBLIC_SEED + 1 + index,
        )
    return clustering


@dataclass(frozen=True, slots=True)
class DpKMeans:
    """Private k-means bound to a public domain."""

    domain: EncodingDomain
    config: DpKMeansConfig

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Plan the rounds, then the histograms."""
        config, domain = self.config, self.domain
        requests = round_requests(
            self._embedding,
            n_clusters=config.clusters,
            rounds=config.rounds,
            share=config.clustering_share,
        )
        shape = (domain.n_labels * config.clusters, 1 + domain.one_hot_width)
        requests.append(SumRequest(HISTOGRAMS, shape, share=1.0 - config.clustering_share))
        return plan_measurement(requests, mu=mu)

    def stages(self) -> tuple[Stage, ...]:
        """Return two stages: the clusters, and their histograms."""
        return (
            Stage(name="clustering", run=self._clustering),
            Stage(name="histograms", run=self._histograms),
        )

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Sample records from the released mixture; see `Synthesizer.sample`."""
        component = draw_codes(released["mixture_weights"], n_rows, rng)
        offsets = self.domain.one_hot_offsets
        codes = draw_columns(released["mixture_marginals"], offsets, component, rng)
        # Components are in the order of labels, then clusters.
        return codes, (component // self.config.clusters).astype(np.uint16)

    @property
    def _embedding(self) -> Embedding:
        config = self.config
        return build_embedding(
            VectorMap(self.domain),
            features=config.features,
            n_features=config.n_features,
            length_scale=config.length_scale,
            l2_clip_norm=config.l2_clip_norm,
            public_seed=PUBLIC_SEED,
        )

    def _clustering(self, curator: Curator, released: Released) -> Released:
        start = start_clustering(
            self._embedding, n_clusters=self.config.clusters, public_seed=PUBLIC_SEED
        )
        clustering = run_rounds(curator, start, rounds=self.config.rounds)
        return {"centres": clustering.centres}

    def _histograms(self, curator: Curator, released: Released) -> Released:
        clustering = Clustering(
            embedding=self._embedding,
            centres=released["centres"],
            alive=np.ones(self.config.clusters, dtype=np.bool_),
        )
        n_codes, n_labels = self.domain.n_codes, self.domain.n_labels
        noisy = curator.release(
            HISTOGRAMS,
            label_counts,
            n_codes=n_codes,
            n_labels=n_labels,
            n_clusters=clustering.n_clusters,
            assign=clustering.assign,
        )
        _, counts = counts_of(noisy, n_codes)
        noise = curator.plan[HISTOGRAMS].unit_noise_stddev * centred_norm(n_codes)
        weights, marginals = build_mixture(
            counts.reshape(n_labels, self.config.clusters, -1),
            self.domain.one_hot_offsets,
            noise_stddev=noise,
            size_noise=noise / count_factor(n_codes),
        )
        return {"mixture_weights": weights, "mixture_marginals": marginals}
