"""Algorithm 2 of the 3A paper: approximate, adapt, anonymize, as printed.

The (epsilon, delta) that configures it is what the paper *claims*; it is not proven, and for the
algorithm as written it does not hold (flaws C1 to C12, listed in the package docstring). Use it to
compare, on public data.

The work is cut into items without shared state and handed to a map function, so that a cluster of
workers can take them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes, Floats, Indices, Records
from privacy.errors import ConfigurationError, InputError
from privacy.parameters import PrivacyParameters
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.measurement.encoded import EncodingDomain
from tasks.methods.clustmix.clustmix_settings import ClustMixConfig
from tasks.papers.clustmix import stages
from tasks.papers.clustmix.config import AlgorithmConfig
from tasks.papers.clustmix.noise import minimum_cluster_size
from tasks.papers.clustmix.scaling import ScalingKind, fit_scaling
from tasks.papers.clustmix.slices import random_slices


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustMixAlgorithm:
    """ClustMix as printed; without a clock, the iteration limits alone bound the work."""

    config: AlgorithmConfig
    clock: Callable[[], float] | None = None

    def synthesize(
        self,
        features: Floats,
        labels: NDArray[np.integer[Any]],
        rng: np.random.Generator,
        executor: Executor = IN_PROCESS,
    ) -> tuple[Floats, NDArray[np.integer[Any]]]:
        """Make synthetic records: one noisy cluster mean each.

        Features (n, D) have values in [0, 1], in any public units; the data-dependent scaling of
        the paper comes on top. Returned are features (r, D) in [0, 1] and labels (r,) in the order
        of slices, then classes; r is zero where no class of any slice has enough rows for one
        cluster.

        Privacy
        -------
        Claimed by the paper: (epsilon, delta) under replacement of one record. Not proven; see the
        package docstring for the flaws. The noise comes from `rng`, a seedable generator.
        """
        features = _checked(features, labels)
        classes, codes = np.unique(labels, return_inverse=True)
        n_classes, n_features = len(classes), features.shape[1]
        config = self.config
        min_size = minimum_cluster_size(
            epsilon=config.epsilon,
            delta=config.delta,
            sigma_max=config.sigma_max,
            n_classes=n_classes,
            n_features=n_features,
        )
        scaling = fit_scaling(config.scaling, features)
        scaled = scaling.scale(features)
        slices = random_slices(
            scaled, max_rows=config.max_slice_rows, n_cutoffs=config.n_cutoffs, rng=rng
        )
        # Flaws C3 and C8: which classes of which slices give points is an exact count.
        regions = [
            stages.Region(
                config=config, rows=scaled[rows][codes[rows] == code], slice=index, code=code
            )
            for index, rows in enumerate(slices)
            for code in range(n_classes)
            if min_size is not None and np.count_nonzero(codes[rows] == code) >= min_size
        ]
        if min_size is None or not regions:
            return np.empty((0, n_features)), labels[:0]

        streams = rng.spawn(2 * len(regions))
        approximated = [
            stages.ApproximateItem(region=region, min_size=min_size, rng=stream, clock=self.clock)
            for region, stream in zip(regions, streams[: len(regions)], strict=True)
        ]
        clusters = executor.map(stages.approximate, approximated)
        adapted = _adapt_slices(regions, clusters, slices, scaled, codes, executor)
        of_regions = zip(regions, clusters, adapted, streams[len(regions) :], strict=True)
        anonymized = [
            stages.AnonymizeItem(
                region=region,
                centroids=centroids,
                sizes=cluster.sizes,
                n_classes=n_classes,
                rng=stream,
            )
            for region, cluster, centroids, stream in of_regions
        ]
        released = executor.map(stages.anonymize, anonymized)
        synthetic = np.clip(scaling.restore(np.concatenate(released)), 0.0, 1.0)
        counts = [len(points) for points in released]
        return synthetic, classes[np.repeat([region.code for region in regions], counts)]


@dataclass(frozen=True, slots=True)
class PaperClustMix:
    """ClustMix as printed, with the ``published`` settings, on each column's codes in [0, 1].

    The clock is monotonic, in seconds.
    """

    domain: EncodingDomain
    config: ClustMixConfig
    parameters: PrivacyParameters
    clock: Callable[[], float] | None = None

    def synthesize(
        self, codes: Codes, labels: Codes, rng: np.random.Generator, executor: Executor = IN_PROCESS
    ) -> Records:
        """Make one synthetic record of each cluster; without any it is an InputError.

        Privacy
        -------
        Claimed by the paper, not proven; see the package docstring.
        """
        printed = self.config.published
        method = ClustMixAlgorithm(
            config=AlgorithmConfig(
                epsilon=self.parameters.epsilon,
                delta=self.parameters.delta,
                sigma_max=printed.sigma_max,
                alpha=printed.alpha,
                ridge=printed.regularisation,
                scaling=ScalingKind(printed.scaling),
                convolved_image=self._convolved_image,
            ),
            clock=self.clock,
        )
        largest_code = np.maximum(np.array(self.domain.n_codes) - 1.0, 1.0)
        rows, levels = method.synthesize(
            codes / largest_code, labels.astype(np.int64), rng, executor
        )
        if len(levels) == 0:
            raise InputError(
                "NOTHING_SYNTHESISED",
                "expected a class with enough rows for one cluster, found none; raise sigma_max",
            )
        return np.rint(rows * largest_code).astype(np.uint16), levels.astype(np.uint16)

    @property
    def _convolved_image(self) -> tuple[int, int, int] | None:
        if self.config.published.kernel == "fully_connected":
            return None
        if self.domain.image is None:
            raise ConfigurationError(
                "KERNEL_NEEDS_IMAGES",
                "expected images for the convolutional kernel, found columns; take fully_connected",
            )
        return self.domain.image


def _checked(features: NDArray[Any], labels: NDArray[Any]) -> Floats:
    features = np.asarray(features, dtype=np.float64)
    if features.ndim != 2 or labels.shape != features.shape[:1] or features.size == 0:
        raise ValueError("expected features of shape (n, D) and labels of shape (n,), not empty")
    if not np.all((features >= 0.0) & (features <= 1.0)):
        raise ValueError("expected every feature in [0, 1]; scale by public bounds first")
    return features


def _adapt_slices(
    regions: list[stages.Region],
    clusters: list[stages.Clusters],
    slices: list[Indices],
    scaled: Floats,
    codes: Indices,
    executor: Executor,
) -> list[Floats]:
    """Adapted centroids of each region: the classes of a slice are adapted together."""
    spread = np.std(scaled, axis=0)
    by_slice: dict[int, list[int]] = {}
    for position, region in enumerate(regions):
        by_slice.setdefault(region.slice, []).append(position)
    items = [
        stages.AdaptItem(
            config=regions[0].config,
            centroids=np.concatenate([clusters[position].centroids for position in positions]),
            centroid_codes=np.repeat(
                [regions[position].code for position in positions],
                [len(clusters[position].centroids) for position in positions],
            ),
            targets=scaled[slices[index]],
            target_codes=codes[slices[index]],
            n_classes=int(codes.max()) + 1,
            z_centre=np.mean(scaled, axis=0),
            z_spread=np.where(spread > 0.0, spread, 1.0),
        )
        for index, positions in by_slice.items()
    ]
    points = np.concatenate(executor.map(stages.adapt, items, gpu=True))
    # The regions are in the order of their slices, so the points are in the order of the regions.
    return np.split(points, np.cumsum([len(cluster.centroids) for cluster in clusters])[:-1])
