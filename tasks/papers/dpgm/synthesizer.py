"""Algorithm 1 of the DPGM paper as printed: k-means, then one network per cluster.

The (epsilon, delta) that configures it is what the paper claims; it is not proven (flaws G1 to G11
of the package docstring). Use it to compare, on public data.
"""

from dataclasses import dataclass, replace

import numpy as np

from privacy.arrays import Codes, Floats, Floats32, Integers, Records
from privacy.errors import ConfigurationError
from privacy.parameters import PrivacyParameters
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.vectors import VectorMap
from tasks.methods.dpgm.dpgm import build_network
from tasks.methods.dpgm.dpgm_settings import DpgmConfig
from tasks.methods.dpgm.embedding import public_length_scale
from tasks.methods.dpgm.network import GenerativeNetwork
from tasks.papers.dpgm.dp_sgd import (
    Cluster,
    NoiseSettings,
    paper_epsilon,
    paper_sigma_g,
    steps_of,
    train,
)
from tasks.papers.dpgm.kernel_kmeans import fourier_features, private_kernel_kmeans


@dataclass(frozen=True, slots=True)
class PaperDpgm:
    """DPGM as printed; ConfigurationError if its noise costs more than the claimed epsilon."""

    domain: EncodingDomain
    config: DpgmConfig
    parameters: PrivacyParameters

    def __post_init__(self) -> None:
        """Hold the settings against the claimed epsilon before any row is read."""
        settings = self.noise_settings()
        claimed = paper_epsilon(settings)
        if claimed > self.parameters.epsilon * (1.0 + 1e-9):
            raise ConfigurationError(
                "EPSILON_INVALID",
                f"expected noise scales that the paper's accounting gives an epsilon of at most "
                f"{self.parameters.epsilon!r}, found {claimed:.3f}; raise sigma_g, sigma_k or "
                "sigma_c, or leave sigma_g out",
            )

    def noise_settings(self) -> NoiseSettings:
        """Return noise scales; sigma_g by epsilon if left out (ConfigurationError if none)."""
        printed = self.config.published
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
        if printed.sigma_g is not None:
            return settings
        return replace(settings, sigma_g=paper_sigma_g(settings, epsilon=self.parameters.epsilon))

    def synthesize(
        self, codes: Codes, labels: Codes, rng: np.random.Generator, executor: Executor = IN_PROCESS
    ) -> Records:
        """Make as many records as there are real ones (flaw G10); see `PaperForm.synthesize`.

        Privacy
        -------
        Claimed: (epsilon, delta) under replacement of one record. Not proven.
        """
        if len(codes) == 0 or len(codes) != len(labels):
            raise ValueError("expected one or more records and a label for each")
        vector_map = VectorMap(self.domain, with_label=True)
        vectors = vector_map.vectors(codes, labels)
        settings = self.noise_settings()
        cluster = self._clusters(vectors, vector_map, settings, rng)
        # Line 4: picks by exact sizes; clusters do not read each other, so each is trained alone.
        sizes = np.bincount(cluster, minlength=self.config.clusters)
        picks = rng.multinomial(settings.n_steps, sizes / sizes.sum())
        network = build_network(vector_map, self.config, None)
        items = self._items(network, vectors, cluster, picks, settings, rng)
        trained = executor.map(train, items)
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
        length = self.config.length_scale or public_length_scale(vector_map)
        points = fourier_features(
            vectors, n_features=self.config.fourier_features, gamma=0.5 / length, rng=rng
        )
        # Flaw G11: records of the table stand in for public records of the same distribution.
        first = points[rng.integers(len(points), size=self.config.clusters)]
        return private_kernel_kmeans(
            points,
            first,
            n_rounds=settings.clustering_rounds,
            sigma_k=settings.sigma_k,
            rng=rng,
            simultaneous=self.config.published.assignment == "simultaneous",
        )

    def _items(
        self,
        network: GenerativeNetwork,
        vectors: Floats,
        cluster: Integers,
        picks: Integers,
        settings: NoiseSettings,
        rng: np.random.Generator,
    ) -> list[Cluster]:
        return [
            Cluster(
                network=network,
                vectors=vectors[cluster == index],
                n_steps=int(picks[index]),
                batch_size=max(1.0, settings.sampling_probability * len(vectors)),
                sigma_c=settings.sigma_c,
                sigma_g=settings.sigma_g,
                optimiser="adam" if self.config.network == "vae" else "momentum",
                learning_rate=self.config.published.learning_rate,
                rng=stream,
                seed=int(rng.integers(2**31)),
            )
            for index, stream in enumerate(rng.spawn(self.config.clusters))
        ]


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
