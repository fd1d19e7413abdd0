"""DPGM with a proof: released clusters, one network each, records drawn from both.

Every look at the rows is a planned draw: some rounds of k-means, one draw of the clusters' sizes
and means, and one draw of gradients for each step, which trains the networks of all clusters at
once. The schedule and all noise are public and set in advance.

Source of the method: Acs, Melis, Castelluccia and De Cristofaro 2019, Algorithm 1, which here picks
no cluster by its private size: every step trains every cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from privacy.arrays import Floats, Floats32, Records
from tasks.measurement.curator import Curator
from tasks.measurement.encoded import EncodingDomain, row_slices
from tasks.measurement.marginals import draw_codes
from tasks.measurement.measurement_plan import MeasurementPlan, SumRequest, plan_measurement
from tasks.measurement.method import Released, Stage
from tasks.measurement.vectors import VectorMap, one_hot_numbers
from tasks.methods.dpgm.dp_kmeans import (
    cluster_means,
    round_requests,
    run_rounds,
    size_noise,
    sizes_and_means,
)
from tasks.methods.dpgm.dp_sgd import (
    Descent,
    NormHistogram,
    TrainingStep,
    gradient_sums,
    split_draw,
)
from tasks.methods.dpgm.dpgm_settings import PUBLIC_SEED, DpgmConfig
from tasks.methods.dpgm.kernel_kmeans import (
    Clustering,
    Embedding,
    build_embedding,
    start_clustering,
)

if TYPE_CHECKING:
    from tasks.methods.dpgm.network import GenerativeNetwork

MEANS = "cluster_means"
GRADIENTS = "gradients"


@dataclass(frozen=True, slots=True)
class Dpgm:
    """DPGM bound to a public domain and public settings."""

    domain: EncodingDomain
    config: DpgmConfig

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Plan the rounds of k-means, the sizes and means, then the gradients."""
        config, shares = self.config, self.config.shares
        requests = round_requests(
            self._embedding,
            n_clusters=config.clusters,
            rounds=config.clustering_rounds,
            share=shares.clustering,
        )
        shape = (config.clusters + 1, 1 + self._vector_map.width)
        requests.append(SumRequest(MEANS, shape, share=shares.means))
        n_parameters = config.clusters * build_network(self._vector_map, config, None).n_parameters
        requests.append(
            SumRequest(
                GRADIENTS,
                (self._histogram.n_bins + n_parameters,),
                share=shares.training,
                n_draws=config.epochs,
            )
        )
        return plan_measurement(requests, mu=mu)

    def stages(self) -> tuple[Stage, ...]:
        """Return the clusters, then one stage for each step of the training."""
        count = self.config.epochs
        return (
            Stage(name="clustering", run=self._clustering),
            *(
                Stage(name=f"train-{epoch:02d}-of-{count:02d}", run=self._step)
                for epoch in range(1, count + 1)
            ),
        )

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Sample a cluster by its noisy weight, then its network; see `Synthesizer.sample`."""
        cluster = draw_codes(released["weights"], n_rows, rng)
        networks = self._networks(released["means"])
        codes = np.empty((n_rows, self.domain.n_columns), dtype=np.uint16)
        labels = np.empty(n_rows, dtype=np.uint16)
        for index in np.unique(cluster):
            member = np.flatnonzero(cluster == index)
            for rows in (member[block] for block in row_slices(len(member))):
                vectors = networks[index].sample(
                    released["parameters"][index], len(rows), rng, state=released["chains"][index]
                )
                made, label = self._vector_map.codes(vectors)
                codes[rows], labels[rows] = made, np.asarray(label)
        return codes, labels

    @property
    def _vector_map(self) -> VectorMap:
        # A bias per code follows any distribution of a number; one expected value has none.
        domain = one_hot_numbers(self.domain, most_codes=self.config.one_hot_levels)
        return VectorMap(domain, with_label=True)

    @property
    def _embedding(self) -> Embedding:
        return build_embedding(
            self._vector_map,
            features="fourier",
            n_features=self.config.fourier_features,
            length_scale=self.config.length_scale,
            l2_clip_norm=None,
            public_seed=PUBLIC_SEED,
        )

    @property
    def _histogram(self) -> NormHistogram:
        config = self.config
        adaptive = config.adaptive_clipping
        return NormHistogram(
            max_norm=config.max_norm,
            n_bins=config.norm_bins if adaptive else 0,
            share=config.histogram_share if adaptive else 0.0,
        )

    def _networks(self, means: Floats) -> tuple[GenerativeNetwork, ...]:
        return tuple(build_network(self._vector_map, self.config, mean) for mean in means)

    def _clustering(self, curator: Curator, released: Released) -> Released:
        """Place the centres, draw sizes and means, and start the networks."""
        config = self.config
        clustering = run_rounds(
            curator,
            start_clustering(self._embedding, n_clusters=config.clusters, public_seed=PUBLIC_SEED),
            rounds=config.clustering_rounds,
        )
        noisy = curator.release(
            MEANS, cluster_means, clustering=clustering, vector_map=self._vector_map
        )
        noise = curator.plan[MEANS].unit_noise_stddev
        sizes, means = sizes_and_means(noisy, vector_map=self._vector_map, noise_stddev=noise)
        noise_of_sizes = size_noise(self._vector_map, noise_stddev=noise)
        least = max(float(config.min_cluster_size), 2.0 * noise_of_sizes)
        alive = sizes >= least
        if not alive.any():
            # All noise: the clusters are as good as each other.
            alive, sizes = np.ones_like(alive), np.full_like(sizes, least)
        sizes = np.where(alive, sizes, 0.0)
        largest_norm = config.max_norm if config.adaptive_clipping else config.l2_clip_norm
        networks = self._networks(means)
        seeds = [PUBLIC_SEED + index for index in range(len(networks))]
        parameters = np.stack([net.start(seed) for net, seed in zip(networks, seeds, strict=True)])
        chains = [net.first_chains(seed) for net, seed in zip(networks, seeds, strict=True)]
        return {
            "centres": clustering.centres,
            "alive": alive,
            "sizes": sizes,
            "weights": sizes / sizes.sum(),
            "means": means,
            "parameters": parameters.astype(np.float32),
            "first_moment": np.zeros_like(parameters, dtype=np.float32),
            "second_moment": np.zeros_like(parameters, dtype=np.float32),
            "chains": np.stack(chains),
            "l2_clip_norm": np.array(min(config.l2_clip_norm, largest_norm)),
            "steps_taken": np.array(0),
        }

    def _step(self, curator: Curator, released: Released) -> Released:
        """Take one step on the gradients of all patients; what comes back starts the next."""
        config, histogram = self.config, self._histogram
        networks = self._networks(released["means"])
        descent = Descent(
            kind=config.descent,
            learning_rate=config.step_size,
            momentum=config.momentum,
            parameters=released["parameters"].astype(np.float64),
            first=released["first_moment"].astype(np.float64),
            second=released["second_moment"].astype(np.float64),
            n_steps=int(released["steps_taken"]),
        )
        norm = float(released["l2_clip_norm"])
        step = TrainingStep(
            clustering=Clustering(
                embedding=self._embedding, centres=released["centres"], alive=released["alive"]
            ),
            vector_map=self._vector_map,
            networks=networks,
            parameters=descent.parameters,
            chains=released["chains"],
            histogram=histogram,
            l2_clip_norm=norm,
            seed=PUBLIC_SEED + descent.n_steps,
        )
        noisy = curator.release(GRADIENTS, gradient_sums, step=step)
        counts, gradients = split_draw(noisy, step)
        if histogram.n_bins:
            noise = curator.plan[GRADIENTS].unit_noise_stddev / float(np.sqrt(histogram.share))
            norm = histogram.next_norm(counts, norm, noise_stddev=noise)
        # A dead cluster has no gradient.
        sizes = np.maximum(released["sizes"], 1.0)[:, None]
        descent = descent.step(gradients / sizes * released["alive"][:, None])
        move = partial(_moved, step_seed=step.seed, is_last=descent.n_steps == config.epochs)
        items = zip(networks, descent.parameters, step.chains, strict=True)
        parameters, chains = map(np.stack, zip(*curator.map(move, items), strict=True))
        return {
            "parameters": parameters.astype(np.float32),
            "first_moment": descent.first.astype(np.float32),
            "second_moment": descent.second.astype(np.float32),
            "chains": chains,
            "l2_clip_norm": np.array(norm),
            "steps_taken": np.array(descent.n_steps),
        }


def build_network(
    vector_map: VectorMap, config: DpgmConfig, mean: Floats | None
) -> GenerativeNetwork:
    """Network of one cluster, with the released mean of the cluster where there is one."""
    form: dict[str, Any] = {"blocks": vector_map.blocks, "hidden_units": config.hidden_units}
    if config.network == "rbm":
        from tasks.methods.dpgm.rbm import Rbm

        return Rbm(mean=mean, **form)
    from tasks.methods.dpgm.vae import Vae

    return Vae(mean=mean, latent_dimensions=config.latent_dimensions, **form)


def _moved(
    item: tuple[GenerativeNetwork, Floats, Floats32], *, step_seed: int, is_last: bool
) -> tuple[Floats, Floats32]:
    """Return the parameters of a cluster, fitted to its mean at last, and its chains under them."""
    network, parameters, chains = item
    chains = network.chains(parameters, chains, step_seed=step_seed)
    if is_last:
        parameters = network.fitted_to_mean(parameters, state=chains)
    return parameters, chains
