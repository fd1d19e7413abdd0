"""The closed list of methods that a site file can name.

No plug-ins and no import paths of others: third-party code cannot enter a release. A method is one
entry here and the module that it names; `CONTRIBUTING.md` says how one is added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from privacy.errors import ConfigurationError
from privacy.extras import extra
from privacy.parameters import PrivacyParameters

if TYPE_CHECKING:
    from tasks.measurement.encoded import EncodingDomain
    from tasks.measurement.synthesizer import PaperForm, Synthesizer


class DataKind(StrEnum):
    """What a method is meant for; it runs on any declared table."""

    TABLES = "tables"
    IMAGES = "images"
    ITEMS = "items"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodEntry:
    """What is public knowledge about a method.

    Parameters
    ----------
    kind, class_name, title
        Name in a site file, of its class in `clustmix`, and for people.
    settings
        Module and class of its settings, a pydantic model with the field ``kind``.
    histograms
        Names of its statistics that count codes by label, in any of its forms: by
        `tasks.measurement.statistics.cell_histograms` or `tasks.measurement.centred.label_counts`.
    proven, paper
        Module and class of each form, None where there is none.

    Notes
    -----
    Classes are named and loaded where they are used, as some need seconds to load.
    """

    kind: str
    class_name: str
    title: str
    source: str
    data_kinds: tuple[DataKind, ...]
    settings: tuple[str, str]
    histograms: tuple[str, ...] = ()
    proven: tuple[str, str] | None = None
    paper: tuple[str, str] | None = None

    @property
    def config(self) -> type[BaseModel]:
        """The class of its settings."""
        return cast(type[BaseModel], _class_of(self.settings))

    @property
    def has_paper_form(self) -> bool:
        """Whether the algorithm of the paper can be run on public data for comparison."""
        return self.paper is not None


_PACKAGE = "tasks."
_ALL = tuple(DataKind)

METHODS: tuple[MethodEntry, ...] = (
    MethodEntry(
        kind="clustmix",
        class_name="ClustMix",
        title="ClustMix",
        source='Madl et al., "Approximate, Adapt, Anonymize (3A)", Algorithm 2',
        data_kinds=_ALL,
        settings=("synthesizers.clustmix.config", "ClustMixConfig"),
        histograms=("label_counts", "cell_histograms"),
        proven=("synthesizers.clustmix.forms.synthesizer", "ClustMix"),
        paper=("papers.clustmix.coded", "PaperClustMix"),
    ),
    MethodEntry(
        kind="dp_cda",
        class_name="DPCDA",
        title="DP-CDA",
        source='Saha, Tonoy and Imtiaz, "DP-CDA: An Algorithm for Enhanced Privacy Preservation in '
        'Dataset Synthesis Through Randomized Mixing", Algorithm 1',
        data_kinds=_ALL,
        settings=("synthesizers.dp_cda.config", "DpCdaConfig"),
        proven=("synthesizers.dp_cda.synthesizer", "DpCda"),
        paper=("papers.dp_cda", "PaperDpCda"),
    ),
    MethodEntry(
        kind="dpgm",
        class_name="DPGM",
        title="DPGM",
        source='Acs, Melis, Castelluccia and De Cristofaro, "Differentially Private Mixture of '
        'Generative Neural Networks", Algorithm 1',
        data_kinds=_ALL,
        settings=("synthesizers.dpgm.config", "DpgmConfig"),
        proven=("synthesizers.dpgm.synthesizer", "Dpgm"),
        paper=("papers.dpgm.synthesizer", "PaperDpgm"),
    ),
    MethodEntry(
        kind="naive_bayes",
        class_name="NaiveBayes",
        title="Naive-Bayes synthesizer",
        source="One Gaussian release of all feature-by-label histograms",
        data_kinds=(DataKind.TABLES, DataKind.ITEMS),
        settings=("synthesizers.naive_bayes", "NaiveBayesConfig"),
        histograms=("feature_by_label_histograms",),
        proven=("synthesizers.naive_bayes", "NaiveBayes"),
    ),
    MethodEntry(
        kind="dp_kmeans",
        class_name="DPKMeans",
        title="DP k-means",
        source="Noisy Lloyd rounds, plain or on random Fourier features (DPGM, Algorithm 2), then "
        "noisy histograms of each cluster",
        data_kinds=_ALL,
        settings=("synthesizers.kmeans.config", "DpKMeansConfig"),
        histograms=("cluster_histograms",),
        proven=("synthesizers.kmeans.dp_kmeans", "DpKMeans"),
    ),
    MethodEntry(
        kind="dp_merf",
        class_name="DPMERF",
        title="DP-MERF",
        source='Harder, Adamczewski and Park, "DP-MERF: Differentially Private Mean Embeddings '
        'with Random Features", AISTATS 2021',
        data_kinds=_ALL,
        settings=("synthesizers.dp_merf.config", "DpMerfConfig"),
        proven=("synthesizers.dp_merf.synthesizer", "DpMerf"),
        paper=("papers.dp_merf", "PaperDpMerf"),
    ),
    MethodEntry(
        kind="mwem",
        class_name="MWEM",
        title="MWEM",
        source='Hardt, Ligett and McSherry, "A Simple and Practical Algorithm for Differentially '
        'Private Data Release", NeurIPS 2012',
        data_kinds=(DataKind.TABLES, DataKind.ITEMS),
        settings=("synthesizers.mwem.config", "MwemConfig"),
        proven=("synthesizers.mwem.synthesizer", "Mwem"),
        paper=("papers.mwem", "PaperMwem"),
    ),
    MethodEntry(
        kind="dp_mix",
        class_name="DPMix",
        title="DPMix",
        source='Lee, Kim, Lee, Suh and Ramchandran, "Synthesizing Differentially Private Datasets '
        'using Random Mixing", ISIT 2019',
        data_kinds=_ALL,
        settings=("synthesizers.dp_mix.config", "DPMixConfig"),
        proven=("synthesizers.dp_mix.synthesizer", "DPMix"),
        paper=("papers.dp_mix", "PaperDPMix"),
    ),
    MethodEntry(
        kind="local_perturbation",
        class_name="LocalPerturbation",
        title="Local perturbation",
        source="Noise on every record; a rival in Table 3 of the paper of DP-CDA",
        data_kinds=_ALL,
        settings=("synthesizers.slots.config", "LocalPerturbationConfig"),
        proven=("synthesizers.slots.synthesizer", "NoisySlots"),
        paper=("papers.noisy_records", "PaperNoisyRecords"),
    ),
    MethodEntry(
        kind="random_projection",
        class_name="RandomProjection",
        title="Random projection",
        source="Noise in a random subspace; a rival in Table 3 of the paper of DP-CDA",
        data_kinds=_ALL,
        settings=("synthesizers.slots.config", "RandomProjectionConfig"),
        proven=("synthesizers.slots.synthesizer", "NoisySlots"),
        paper=("papers.noisy_records", "PaperNoisyRecords"),
    ),
)


def method_entry(kind: str) -> MethodEntry:
    """Entry of a registered method; KeyError names an unknown one."""
    for entry in METHODS:
        if entry.kind == kind:
            return entry
    raise KeyError(f"expected a registered method, found {kind!r}")


def build(config: Any, domain: EncodingDomain) -> Synthesizer:
    """Bind the proven form of a method to a public domain, which its settings have to fit.

    A method without a proven form is a ConfigurationError.
    """
    entry = method_entry(config.kind)
    if entry.proven is None:
        raise ConfigurationError(
            "NO_PROVEN_FORM",
            f"expected a method with a proven form (clustmix methods lists them), found "
            f"{config.kind!r}; it runs in a benchmark on public data only",
        )
    return cast("Synthesizer", _class_of(entry.proven)(domain, config))


def build_paper(
    config: Any,
    domain: EncodingDomain,
    parameters: PrivacyParameters,
    *,
    clock: Callable[[], float] | None = None,
) -> PaperForm:
    """Bind the paper form of a method to a public domain and a claimed epsilon.

    `clock`, monotonic and in seconds, is for methods that give up a search when it takes long. It
    is a ConfigurationError if the settings do not fit the domain or the claimed epsilon.
    """
    entry = method_entry(config.kind)
    if entry.paper is None:
        raise KeyError(f"expected a method with a paper form, found {config.kind!r}")
    with extra("papers"):
        bound = _class_of(entry.paper)
    if config.kind == "clustmix":
        return cast("PaperForm", bound(domain, config, parameters, clock))
    return cast("PaperForm", bound(domain, config, parameters))


def _class_of(form: tuple[str, str]) -> Callable[..., Any]:
    module, name = form
    return cast(Callable[..., Any], getattr(import_module(_PACKAGE + module), name))
