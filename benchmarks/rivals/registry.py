"""Rivals by name. None is a method of the product: no site file and no release can name one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

import numpy as np

from privacy.arrays import Codes, Records
from privacy.calibration import gdp_mu
from privacy.parameters import PrivacyParameters
from tasks.measurement.encoded import EncodingDomain

Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class Rival(ABC, Generic[Settings]):
    """A rival bound to a public domain, its settings and an epsilon and delta."""

    domain: EncodingDomain
    settings: Settings
    parameters: PrivacyParameters

    @property
    def mu(self) -> float:
        """Budget in Gaussian differential privacy."""
        return gdp_mu(epsilon=self.parameters.epsilon, delta=self.parameters.delta)

    @abstractmethod
    def synthesize(self, codes: Codes, labels: Codes, rng: np.random.Generator) -> Records:
        """Make synthetic records (n, d) and labels (n,); every random choice comes from `rng`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Module below this package, its class of settings, and the class of each form, by name."""

    source: str
    module: str
    settings: str
    forms: dict[str, str]

    def settings_class(self) -> type[Any]:
        """Return the dataclass of the settings."""
        return cast(type[Any], self._named(self.settings))

    def build(
        self, form: str, domain: EncodingDomain, settings: Any, parameters: PrivacyParameters
    ) -> Rival[Any]:
        """Bind a form of the rival."""
        return cast(Rival[Any], self._named(self.forms[form])(domain, settings, parameters))

    def _named(self, name: str) -> Callable[..., Any]:
        module = import_module(f"benchmarks.rivals.{self.module}")
        return cast(Callable[..., Any], getattr(module, name))


PRINTED, ACCOUNTED = "printed", "accounted"

RIVALS = {
    "clustmix": Entry(
        'Madl et al., "Approximate, Adapt, Anonymize (3A)", Algorithm 2',
        "clustmix.algorithm",
        "ClustMixSettings",
        {PRINTED: "PrintedClustMix"},
    ),
    "dp_cda": Entry(
        'Saha, Tonoy and Imtiaz, "DP-CDA", Algorithm 1',
        "dp_cda",
        "DpCdaSettings",
        {PRINTED: "PrintedDpCda"},
    ),
    "dpgm": Entry(
        'Acs, Melis, Castelluccia and De Cristofaro, "Differentially Private Mixture of '
        'Generative Neural Networks", Algorithm 1',
        "dpgm.printed_dpgm",
        "DpgmSettings",
        {PRINTED: "PrintedDpgm"},
    ),
    "dp_merf": Entry(
        'Harder, Adamczewski and Park, "DP-MERF", AISTATS 2021',
        "dp_merf",
        "DpMerfSettings",
        {PRINTED: "PrintedDpMerf", ACCOUNTED: "AccountedDpMerf"},
    ),
    "mwem": Entry(
        'Hardt, Ligett and McSherry, "A Simple and Practical Algorithm for Differentially '
        'Private Data Release", NeurIPS 2012',
        "mwem",
        "MwemSettings",
        {PRINTED: "PrintedMwem", ACCOUNTED: "AccountedMwem"},
    ),
    "dp_mix": Entry(
        'Lee, Kim, Lee, Suh and Ramchandran, "Synthesizing Differentially Private Datasets '
        'using Random Mixing", ISIT 2019',
        "dp_mix",
        "DPMixSettings",
        {PRINTED: "PrintedDPMix", ACCOUNTED: "AccountedDPMix"},
    ),
    "local_perturbation": Entry(
        "Noise on every record; a rival in Table 3 of the paper of DP-CDA",
        "noisy_records",
        "LocalPerturbationSettings",
        {PRINTED: "PrintedNoisyRecords", ACCOUNTED: "AccountedNoisyRecords"},
    ),
    "random_projection": Entry(
        "Noise in a random subspace; a rival in Table 3 of the paper of DP-CDA",
        "noisy_records",
        "RandomProjectionSettings",
        {PRINTED: "PrintedNoisyRecords", ACCOUNTED: "AccountedNoisyRecords"},
    ),
}
