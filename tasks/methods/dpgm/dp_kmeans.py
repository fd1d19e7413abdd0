"""Private k-means by itself: released clusters, then a mixture of product densities.

A few noisy rounds place the centres; one Gaussian release of the (label, cluster) histograms
follows, and records are sampled column by column given the label and the cluster. With Fourier
features it is the clustering of DPGM, with plain vectors the method that DPGM is compared with.

Source: Blum, Dwork, McSherry and Nissim 2005 (plain); DPGM paper (Acs, Melis, Castelluccia and De
Cristofaro 2019), Algorithm 2 (Fourier features). The histograms are of this software.
"""

from dataclasses import dataclass

import numpy as np

from privacy.arrays import Records
from tasks.measurement.centred import (
    centred_norm,
    count_factor,
    counts_of,
    label_counts,
)
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.marginals import build_mixture, draw_codes, draw_columns
from tasks.measurement.measurement_plan import (
    MeasurementPlan,
    SumRequest,
    plan_measurement,
)
from tasks.measurement.method import Released, Stage
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm.dpgm_settings import DpKMeansConfig
from tasks.methods.dpgm.kernel_kmeans import (
    Clustering,
    Embedding,
    build_embedding,
    cluster_sums,
    move_centres,
    start_clustering,
)

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
        """Two stages: the clusters, and what is in them."""
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
