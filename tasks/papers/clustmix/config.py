"""Parameters of the published algorithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privacy.errors import ConfigurationError
from tasks.papers.clustmix.scaling import ScalingKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedConfig:
    """Parameters of Algorithm 2.

    Parameters
    ----------
    epsilon, delta
        Parameters claimed by the paper; not proven. The paper takes ``delta = 1/N`` (flaw C12).
    sigma_max
        Largest noise per coordinate of a mean, in units of features scaled to [0, 1]; it fixes the
        smallest cluster. The paper picks it by accuracy on the private rows (flaw C9).
    alpha
        Weight of staying at the centroids in Eq. 6, in [0, 1].
    ridge
        Regularisation lambda of Eq. 6, above 0.
    scaling
        Scaling of the features to [0, 1].
    max_slice_rows, n_cutoffs
        Slices are cut until they have at most that many rows, at that many cut-offs at a time.
    hidden_layers
        Depth of the network whose tangent kernel is used.
    kip_steps, learning_rate
        Adam steps of the adaptation (fewer where the loss settles), and their size.
    gmm_iterations, gmm_starts
        Limits of expectation-maximisation in each (slice, class).
    timeout_seconds
        Time after which one (slice, class) falls back to constrained k-means. It counts only where
        `PublishedClustMix` is given a clock.

    Raises
    ------
    ConfigurationError
        If a parameter is outside its range.
    """

    epsilon: float
    delta: float
    sigma_max: float = 0.15
    alpha: float = 0.5
    ridge: float = 1e-3
    scaling: ScalingKind = ScalingKind.MIN_MAX
    max_slice_rows: int = 2000
    n_cutoffs: int = 2
    hidden_layers: int = 2
    kip_steps: int = 100
    learning_rate: float = 0.01
    gmm_iterations: int = 20
    gmm_starts: int = 1
    timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        rules = {
            "epsilon above 0": self.epsilon > 0.0 and math.isfinite(self.epsilon),
            "delta in (0, 1)": 0.0 < self.delta < 1.0,
            "sigma_max above 0": self.sigma_max > 0.0,
            "alpha in [0, 1]": 0.0 <= self.alpha <= 1.0,
            "ridge above 0": self.ridge > 0.0,
            "max_slice_rows of 1 or more": self.max_slice_rows >= 1,
            "n_cutoffs of 1 or more": self.n_cutoffs >= 1,
            "hidden_layers of 0 or more": self.hidden_layers >= 0,
            "kip_steps of 1 or more": self.kip_steps >= 1,
            "learning_rate above 0": self.learning_rate > 0.0,
            "gmm_iterations of 1 or more": self.gmm_iterations >= 1,
            "gmm_starts of 1 or more": self.gmm_starts >= 1,
            "timeout_seconds above 0": self.timeout_seconds > 0.0,
        }
        for rule, holds in rules.items():
            if not holds:
                name = rule.split(" ", 1)[0]
                raise ConfigurationError(
                    "BAD_PARAMETER",
                    f"expected {rule}, found {getattr(self, name)}; change {name} of the "
                    "published method",
                )
