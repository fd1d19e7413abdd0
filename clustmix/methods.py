"""The methods, each a class with the settings that its site file has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from clustmix.synthesizer import Synthesizer
from tasks.methods.dpgm.dpgm_settings import BudgetShares

if TYPE_CHECKING:
    from tasks.reporting.released_teacher import Teacher


@dataclass(eq=False, repr=False, kw_only=True)
class ClustMix(Synthesizer):
    """ClustMix: noisy label counts, one-way and two-way tables, or means of images.

    The steps are those of Madl, Xu, Choudhury and Howard, "Approximate, Adapt, Anonymize (3A)",
    Algorithm 2, under a proof that covers every step that reads a row. A public rule of the schema
    and the declared number of patients sets everything for tables.

    Parameters
    ----------
    schema, epsilon, delta, adjacency, patient_column, max_rows_per_patient, patients, parts
        Parameters of every method; `Synthesizer` explains them.
    variation : float, from 0 to 3, default 1.0
        Images: strength of the public warps of what is sampled; 0 for none.

    Examples
    --------
    >>> from clustmix import ClustMix, Schema
    >>> schema = Schema(items=("tea", "milk"), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> model = ClustMix(schema, epsilon=1.0, delta=1e-6, patients=5_000)
    >>> model.plan().guarantee.epsilon <= 1.0
    True
    >>> model
    ClustMix(epsilon=1.0, delta=1e-06, patients=5000), not fitted
    """

    kind: ClassVar[str] = "clustmix"

    variation: float = 1.0

    def teacher(self) -> "Teacher":
        """Return the classifier of images, under the same guarantee; ConfigurationError if none."""
        from tasks.reporting.released_teacher import Teacher

        return Teacher.of(self.released_, self.schema)


@dataclass(eq=False, repr=False, kw_only=True)
class NaiveBayes(Synthesizer):
    """Naive Bayes: one Gaussian release of all histograms of a column by label.

    The simplest honest method, and the yardstick of every other: it keeps every relation of one
    column to the label, and none between columns. It has no settings of its own.

    Parameters
    ----------
    schema, epsilon, delta, adjacency, patient_column, max_rows_per_patient, patients, parts
        Parameters of every method; `Synthesizer` explains them.

    Examples
    --------
    >>> from clustmix import NaiveBayes, Schema
    >>> schema = Schema(items=("tea", "milk"), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> NaiveBayes(schema, epsilon=1.0, delta=1e-6).plan()
                      statistic  values  draws noise share
    feature_by_label_histograms      10      1 4.225  100%
    """

    kind: ClassVar[str] = "naive_bayes"


@dataclass(eq=False, repr=False, kw_only=True)
class DPCDA(Synthesizer):
    """DP-CDA: noisy averages of groups of patients of one label, each a synthetic record.

    Saha, Tonoy and Imtiaz, "DP-CDA: An Algorithm for Enhanced Privacy Preservation in Dataset
    Synthesis Through Randomized Mixing", Algorithm 1, with disjoint groups. Declared sizes need not
    be exact: a wrong one costs utility, never privacy.

    Parameters
    ----------
    schema, epsilon, delta, adjacency, patient_column, max_rows_per_patient, patients, parts
        Parameters of every method; `Synthesizer` explains them.
    order_of_mixture : int, from 1 to 100,000, default 128
        Records of one class in a mixture (l).
    declared_patients : int, at least 1, default 10,000
        Declared number of patients, in classes of equal size.
    class_sizes : sequence of int, each at least 1, optional
        Declared patients of each class, instead of equal sizes.
    one_hot_levels : int, from 0 to 1024, default 64
        Numeric columns of at most this many codes have a coordinate for each code.
    l2_clip_norm : float, above 0, optional
        Largest norm c of a record; without it nothing is clipped.
    centre : float, from -10 to 10, optional
        Subtracted from features in [0, 1]; by default the middle, or 0 where records are clipped.
    scale : float, above 0 and at most 1000, default 1.0
        Divides the features after the centre.
    count_share : float, above 0 and below 1, default 0.02
        Share of the budget for the sizes of the classes.

    Examples
    --------
    >>> from clustmix import DPCDA, Schema
    >>> schema = Schema(items=("tea", "milk"), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> DPCDA(schema, epsilon=1.0, delta=1e-6, order_of_mixture=0)
    Traceback (most recent call last):
    privacy.errors.ConfigurationError: SETTING_INVALID: DPCDA: order_of_mixture: expected a ...
    """

    kind: ClassVar[str] = "dp_cda"

    order_of_mixture: int = 128
    declared_patients: int = 10_000
    class_sizes: Sequence[int] | None = None
    one_hot_levels: int = 64
    l2_clip_norm: float | None = None
    centre: float | None = None
    scale: float = 1.0
    count_share: float = 0.02

    def _declared_rows(self) -> int:
        return self.patients or sum(self.class_sizes or ()) or self.declared_patients


@dataclass(eq=False, repr=False, kw_only=True)
class DPGM(Synthesizer):
    """DPGM: noisy clusters of patients, and a generative network of each by noisy gradients.

    Acs, Melis, Castelluccia and De Cristofaro, "Differentially Private Mixture of Generative Neural
    Networks", Algorithm 1.

    Parameters
    ----------
    schema, epsilon, delta, adjacency, patient_column, max_rows_per_patient, patients, parts
        Parameters of every method; `Synthesizer` explains them.
    clusters : int, from 1 to 200, default 10
        Clusters, one network each.
    clustering_rounds : int, from 1 to 100, default 5
        Noisy rounds that place the cluster centres.
    fourier_features : even int, from 2 to 4000, default 200
        Random Fourier features.
    length_scale : float, above 0, optional
        Length scale of the kernel; by default that of the public domain.
    min_cluster_size : int, at least 1, default 50
        Clusters with a smaller noisy size are not used.
    one_hot_levels : int, from 0 to 1024, default 64
        Numeric columns of at most this many codes have a coordinate for each code.
    network : {"rbm", "vae"}, default "rbm"
        Network of each cluster.
    hidden_units : int, from 1 to 2000, default 200
        Hidden units of a layer.
    latent_dimensions : int, from 1 to 200, default 2
        Latent dimensions of the autoencoder.
    epochs : int, from 1 to 200, default 16
        Steps of the training; each reads everybody.
    optimiser : {"adam", "momentum"}, optional
        Optimiser; by default momentum for rbm, Adam for vae.
    learning_rate : float, above 0 and at most 100, optional
        Size of a step; by default 0.04 with Adam, 0.8 with momentum.
    momentum : float, from 0 and below 1, default 0.8
        Share of the last direction that a step keeps.
    l2_clip_norm : float, above 0 and at most 1,000,000, default 4.0
        Norm that gradients are clipped to, at first.
    adaptive_clipping : bool, default True
        Clip at the most frequent norm of the step before.
    max_norm : float, above 0 and at most 1,000,000, default 4.0
        Largest clipping norm, C_max.
    norm_bins : int, from 2 to 1000, default 100
        Bins of the norm histogram.
    histogram_share : float, above 0 and below 1, default 0.02
        Squared sensitivity that the histogram gets.
    shares : mapping of str to float, default clustering 0.12, means 0.30, training 0.58
        Ratios in which the stages share the budget.

    Examples
    --------
    >>> from clustmix import DPGM, Schema
    >>> schema = Schema(items=("tea", "milk"), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> DPGM(schema, epsilon=1.0, delta=1e-6, clusters=4)
    DPGM(epsilon=1.0, delta=1e-06, clusters=4), not fitted
    """

    kind: ClassVar[str] = "dpgm"

    clusters: int = 10
    clustering_rounds: int = 5
    fourier_features: int = 200
    length_scale: float | None = None
    min_cluster_size: int = 50
    one_hot_levels: int = 64
    network: Literal["rbm", "vae"] = "rbm"
    hidden_units: int = 200
    latent_dimensions: int = 2
    epochs: int = 16
    optimiser: Literal["adam", "momentum"] | None = None
    learning_rate: float | None = None
    momentum: float = 0.8
    l2_clip_norm: float = 4.0
    adaptive_clipping: bool = True
    max_norm: float = 4.0
    norm_bins: int = 100
    histogram_share: float = 0.02
    shares: BudgetShares | Mapping[str, float] = BudgetShares()  # noqa: RUF009 - it is frozen


@dataclass(eq=False, repr=False, kw_only=True)
class DPKMeans(Synthesizer):
    """DP k-means: noisy Lloyd rounds, then noisy histograms of each cluster.

    Parameters
    ----------
    schema, epsilon, delta, adjacency, patient_column, max_rows_per_patient, patients, parts
        Parameters of every method; `Synthesizer` explains them.
    clusters : int, from 1 to 1000, default 10
        Number of clusters.
    rounds : int, from 1 to 100, default 5
        Noisy rounds that place centres.
    features : {"plain", "fourier"}, default "fourier"
        Points: plain vectors, or random Fourier features.
    n_features : even int, from 2 to 4000, default 200
        Number of Fourier features.
    length_scale : float, above 0, optional
        Length scale of the kernel; by default that of the public domain.
    l2_clip_norm : float, above 0, optional
        Norm that plain vectors are clipped to; without it nothing is clipped.
    clustering_share : float, above 0 and below 1, default 0.3
        Share of the budget for the rounds.

    Examples
    --------
    >>> from clustmix import DPKMeans, Schema
    >>> schema = Schema(items=("tea", "milk"), label={"name": "y", "levels": {"no": (), "yes": ()}})
    >>> DPKMeans(schema, epsilon=1.0, delta=1e-6, clusters=4).plan().guarantee.epsilon <= 1.0
    True
    """

    kind: ClassVar[str] = "dp_kmeans"

    clusters: int = 10
    rounds: int = 5
    features: Literal["plain", "fourier"] = "fourier"
    n_features: int = 200
    length_scale: float | None = None
    l2_clip_norm: float | None = None
    clustering_share: float = 0.3


METHODS: tuple[type[Synthesizer], ...] = (ClustMix, NaiveBayes, DPCDA, DPGM, DPKMeans)
"""The classes, one for each registered method."""
