"""Parameters of Algorithm 2 as printed."""

from pydantic import Field

from tasks.measurement.method_settings import MethodSettings
from tasks.papers.clustmix.scaling import ScalingKind


class AlgorithmConfig(MethodSettings):
    """Parameters of Algorithm 2, of which the paper picks two by private rows (C9, C12)."""

    epsilon: float = Field(gt=0, description="Claimed by the paper; not proven.")
    delta: float = Field(gt=0, lt=1, description="Claimed by the paper; not proven.")
    sigma_max: float = Field(
        default=0.15,
        gt=0,
        description="Largest noise per coordinate of a mean of features scaled to [0, 1]; it fixes "
        "the smallest cluster.",
    )
    alpha: float = Field(default=0.5, ge=0, le=1, description="Weight of the centroids in Eq. 6.")
    ridge: float = Field(default=1e-3, gt=0, description="Regularisation lambda of Eq. 6.")
    scaling: ScalingKind = Field(default=ScalingKind.MIN_MAX)
    """Scaling of the features to [0, 1]."""
    max_slice_rows: int = Field(default=2000, ge=1)
    """Slices are cut until they have at most that many rows."""
    n_cutoffs: int = Field(default=2, ge=1, description="Cut-offs at a time.")
    hidden_layers: int = Field(default=2, ge=0)
    """Depth of the network whose tangent kernel is used."""
    convolved_image: tuple[int, int, int] | None = None
    """Height, width and channels of rows that are images, for a convolutional network."""
    kip_steps: int = Field(default=100, ge=1)
    """Adam steps of the adaptation; fewer where the loss settles."""
    learning_rate: float = Field(default=0.01, gt=0, description="Size of an Adam step.")
    gmm_iterations: int = Field(default=20, ge=1)
    """Steps of expectation-maximisation in each (slice, class)."""
    gmm_starts: int = Field(default=1, ge=1, description="Starts, of which the best is kept.")
    timeout_seconds: float = Field(
        default=30.0,
        gt=0,
        description="Time after which a (slice, class) falls back to constrained k-means, where "
        "there is a clock.",
    )
