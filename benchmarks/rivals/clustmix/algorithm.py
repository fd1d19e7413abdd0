"""Algorithm 2 of the 3A paper: approximate, adapt, anonymize, as printed.

The (epsilon, delta) that configures it is what the paper *claims*; it is not proven, and for the
algorithm as written it does not hold (flaws C1 to C12, listed in the package docstring).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.rivals.clustmix.claimed_noise import minimum_cluster_size
from benchmarks.rivals.clustmix.scaling import ScalingKind, fit_scaling
from benchmarks.rivals.clustmix.slices import random_slices
from benchmarks.rivals.clustmix.stages import adapt, anonymize, approximate
from benchmarks.rivals.registry import Rival
from privacy.arrays import Codes, Floats, Indices, Integers, Records
from privacy.errors import ConfigurationError, InputError
from privacy.parameters import PrivacyParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustMixSettings:
    """Parameters of Algorithm 2, of which the paper picks two by private rows (C9, C12)."""

    sigma_max: float = 0.15
    """Largest noise of a mean of features scaled to [0, 1]; it fixes the smallest cluster."""
    alpha: float = 0.5
    """Weight of staying at the centroids (Eq. 6)."""
    ridge: float = 1e-3
    """Lambda of kernel ridge regression (Eq. 5)."""
    scaling: ScalingKind = "min_max"
    kernel: Literal["fully_connected", "convolutional"] = "fully_connected"
    """Network whose tangent kernel the inducing points are optimised by; the second for images."""
    max_slice_rows: int = 2000
    n_cutoffs: int = 2
    hidden_layers: int = 2
    kip_steps: int = 100
    """Adam steps of the adaptation; fewer where the loss settles."""
    learning_rate: float = 0.01
    gmm_iterations: int = 20
    """Steps of expectation-maximisation in each class of a slice."""
    gmm_starts: int = 1
    gmm_seconds: float = 600.0
    """After which the clustering of a class of a slice falls back to constrained k-means."""


class PrintedClustMix(Rival[ClustMixSettings]):
    """ClustMix as printed, on each column's codes in [0, 1]."""

    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Make one synthetic record of each cluster; without any it is an InputError."""
        image = None
        if self.settings.kernel == "convolutional":
            image = self.domain.image
            if image is None:
                raise ConfigurationError(
                    "KERNEL_NEEDS_IMAGES",
                    "expected images for the convolutional kernel, found columns; take "
                    "fully_connected",
                )
        largest_code = np.maximum(np.array(self.domain.n_codes) - 1.0, 1.0)
        rows, levels, _ = synthesize(
            codes / largest_code,
            labels.astype(np.int64),
            settings=self.settings,
            parameters=self.parameters,
            rng=rng,
            image=image,
        )
        if len(levels) == 0:
            raise InputError(
                "NOTHING_SYNTHESISED",
                "expected a class with enough rows for one cluster, found none; raise sigma_max",
            )
        return np.rint(rows * largest_code).astype(np.uint16), levels.astype(np.uint16)


def synthesize(
    features: Floats,
    labels: Integers,
    *,
    settings: ClustMixSettings,
    parameters: PrivacyParameters,
    rng: np.random.Generator,
    image: tuple[int, int, int] | None = None,
) -> tuple[Floats, Integers, int]:
    """Make synthetic records (r, D) and labels (r,): one noisy cluster mean each.

    The third is how often the clock ended a clustering, which then fell back to k-means.

    Features (n, D) have values in [0, 1], in any public units; the data-dependent scaling of the
    paper comes on top. The order is that of slices, then classes; r is zero where no class of any
    slice has enough rows for one cluster.

    Privacy
    -------
    Claimed by the paper: (epsilon, delta) under replacement of one record. Not proven; see the
    package docstring for the flaws. The noise comes from `rng`, a seedable generator.
    """
    if not np.all((features >= 0.0) & (features <= 1.0)):
        raise ValueError("expected every feature in [0, 1]; scale by public bounds first")
    classes, codes = np.unique(labels, return_inverse=True)
    min_size = minimum_cluster_size(
        epsilon=parameters.epsilon,
        delta=parameters.delta,
        sigma_max=settings.sigma_max,
        n_classes=len(classes),
        n_features=features.shape[1],
    )
    scaling = fit_scaling(settings.scaling, features)
    scaled = scaling.scale(features)
    spread = np.std(scaled, axis=0)
    moments = np.mean(scaled, axis=0), np.where(spread > 0.0, spread, 1.0)
    points, found, late = [np.empty((0, features.shape[1]))], [labels[:0]], 0
    for rows in random_slices(
        scaled, max_rows=settings.max_slice_rows, n_cutoffs=settings.n_cutoffs, rng=rng
    ):
        # Flaws C3 and C8: which classes of which slices give points is an exact count.
        members = _members(codes[rows], min_size)
        if not members or min_size is None:
            continue
        own = scaled[rows]
        clusters = [
            approximate(own[member], min_size=min_size, settings=settings, rng=rng)
            for member in members.values()
        ]
        sizes = [len(centroids) for centroids, *_ in clusters]
        late += sum(ended for *_, ended in clusters)
        adapted = adapt(
            np.concatenate([centroids for centroids, *_ in clusters]),
            np.repeat(list(members), sizes),
            own,
            codes[rows],
            n_classes=len(classes),
            moments=moments,
            settings=settings,
            image=image,
        )
        of_classes = np.split(adapted, np.cumsum(sizes)[:-1])
        for (code, member), (_, members_of, _), centroids in zip(
            members.items(), clusters, of_classes, strict=True
        ):
            noisy = anonymize(
                own[member],
                centroids,
                members_of,
                n_classes=len(classes),
                parameters=parameters,
                rng=rng,
            )
            points.append(noisy)
            found.append(np.full(len(noisy), classes[code]))
    released = np.clip(scaling.restore(np.concatenate(points)), 0.0, 1.0)
    return released, np.concatenate(found), late


def _members(codes: Sequence[int] | Indices, min_size: int | None) -> dict[int, Indices]:
    """Return the rows of each class of a slice that has enough of them for one cluster."""
    found = {int(code): np.flatnonzero(codes == code) for code in np.unique(codes)}
    return {c: rows for c, rows in found.items() if min_size is not None and len(rows) >= min_size}
