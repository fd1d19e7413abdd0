"""Algorithm 1 of the DPGM paper as printed: k-means, then one network per cluster.

The (epsilon, delta) that configures it is what the paper claims; it is not proven (flaws G1 to G11
of the package docstring). Use it to compare, on public data.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from benchmarks.rivals.dpgm.dp_sgd import (
    Cluster,
    NoiseSettings,
    paper_epsilon,
    paper_sigma_g,
    steps_of,
    train,
)
from benchmarks.rivals.dpgm.kernel_kmeans import fourier_features, private_kernel_kmeans
from benchmarks.rivals.registry import Rival
from privacy.arrays import Codes, Floats, Floats32, Integers, Records
from privacy.errors import ConfigurationError
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm.dpgm import build_network
from tasks.methods.dpgm.dpgm_settings import DpgmConfig
from tasks.methods.dpgm.kernel_kmeans import public_length_scale
from tasks.methods.dpgm.network import GenerativeNetwork
from tasks.methods.dpgm.rbm import Rbm


@dataclass(frozen=True, slots=True, kw_only=True)
class DpgmSettings:
    """Parameters of Algorithms 1 to 4 as printed."""

    clusters: int = 10
    fourier_features: int = 200
    length_scale: float | None = None
    """Length scale of the kernel; none: by the public domain."""
    network: Literal["rbm", "vae"] = "rbm"
    hidden_units: int = 200
    latent_dimensions: int = 2
    sigma_c: float = 4.0
    """Noise scale of the norm histograms."""
    sigma_k: float = 40.0
    """Noise scale of k-means."""
    sigma_g: float | None = None
    """Noise scale of gradients; none: by the claimed epsilon."""
    sampling_probability: float = 0.0017
    """Batch size over number of records, L / |D|."""
    epochs: int = 20
    """Epochs of 1 / q iterations each."""
    clustering_rounds: int = 20
    assignment: Literal["simultaneous", "sequential"] = "simultaneous"
    """Assign once per k-means iteration, or before every cluster as typeset."""
    learning_rate: float = 0.01


class PrintedDpgm(Rival[DpgmSettings]):
    """DPGM as printed; ConfigurationError if its noise costs more than the claimed epsilon."""

    def noise_settings(self) -> NoiseSettings:
        """Return noise scales, held against the claimed epsilon (else ConfigurationError)."""
        printed, epsilon = self.settings, self.parameters.epsilon
        settings = NoiseSettings(
            sigma_c=printed.sigma_c,
            sigma_k=printed.sigma_k,
            sigma_g=printed.sigma_g or 1.0,
            clustering_rounds=printed.clustering_rounds,
            sampling_probability=printed.sampling_probability,
            n_steps=steps_of(
                epochs=printed.epochs, sampling_probability=printed.sampling_probability
            ),
            delta=self.parameters.delta,
        )
        if printed.sigma_g is None:
            return replace(settings, sigma_g=paper_sigma_g(settings, epsilon=epsilon))
        claimed = paper_epsilon(settings)
        if claimed > epsilon * (1.0 + 1e-9):
            raise ConfigurationError(
                "EPSILON_INVALID",
                f"expected noise scales that the paper's accounting gives an epsilon of at most "
                f"{epsilon!r}, found {claimed:.3f}; raise sigma_g, sigma_k or sigma_c, or leave "
                "sigma_g out",
            )
        return settings

    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Make as many records as there are real ones (flaw G10).

        Privacy
        -------
        Claimed: (epsilon, delta) under replacement of one record. Not proven.
        """
        vector_map, printed = VectorMap(self.domain, with_label=True), self.settings
        vectors = vector_map.vectors(codes, labels)
        settings = self.noise_settings()
        cluster = self._clusters(vectors, vector_map, settings, rng)
        # Line 4: picks by exact sizes; clusters do not read each other, so each is trained alone.
        sizes = np.bincount(cluster, minlength=printed.clusters)
        picks = rng.multinomial(settings.n_steps, sizes / sizes.sum())
        shape = DpgmConfig(
            network=printed.network,
            hidden_units=printed.hidden_units,
            latent_dimensions=printed.latent_dimensions,
        )
        network = build_network(vector_map, shape, None)
        if isinstance(network, Rbm):
            # Thousands of steps, one sweep each (Tieleman 2008).
            network = replace(network, gibbs_steps=1)
        trained = [
            train(
                Cluster(
                    network=network,
                    vectors=vectors[cluster == index],
                    n_steps=int(picks[index]),
                    batch_size=max(1.0, settings.sampling_probability * len(vectors)),
                    sigma_c=settings.sigma_c,
                    sigma_g=settings.sigma_g,
                    optimiser="adam" if printed.network == "vae" else "momentum",
                    learning_rate=printed.learning_rate,
                    rng=rng,
                    seed=int(rng.integers(2**31)),
                )
            )
            for index in range(printed.clusters)
        ]
        drawn = _generated(network, trained, sizes, len(codes), rng)
        made, made_labels = vector_map.codes(drawn)
        return made, np.asarray(made_labels)

    def _clusters(
        self,
        vectors: Floats,
        vector_map: VectorMap,
        settings: NoiseSettings,
        rng: np.random.Generator,
    ) -> Integers:
        length = self.settings.length_scale or public_length_scale(vector_map)
        points = fourier_features(
            vectors, n_features=self.settings.fourier_features, gamma=0.5 / length, rng=rng
        )
        # Flaw G11: records of the table stand in for public records of the same distribution.
        first = points[rng.integers(len(points), size=self.settings.clusters)]
        return private_kernel_kmeans(
            points,
            first,
            n_rounds=settings.clustering_rounds,
            sigma_k=settings.sigma_k,
            rng=rng,
            simultaneous=self.settings.assignment == "simultaneous",
        )


def _generated(
    network: GenerativeNetwork,
    trained: list[tuple[Floats, Floats32]],
    sizes: Integers,
    n_rows: int,
    rng: np.random.Generator,
) -> Floats:
    """Draw vectors by exact sizes (G10); as printed, small clusters would be preferred."""
    drawn = np.empty((n_rows, network.width))
    chosen = rng.choice(len(sizes), size=n_rows, p=sizes / sizes.sum())
    for index in np.unique(chosen):
        member = np.flatnonzero(chosen == index)
        parameters, chains = trained[index]
        drawn[member] = network.sample(parameters, len(member), rng, state=chains)
    return drawn
