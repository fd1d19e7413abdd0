"""Rivals by name. None is a method of the product: no site file and no release can name one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
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


PRINTED, ACCOUNTED = "printed", "accounted"


@dataclass(frozen=True, slots=True)
class Entry:
    """Module below this package, its class of settings, and the name of the rival in its forms."""

    module: str
    settings: str
    rival: str
    forms: tuple[str, ...] = (PRINTED, ACCOUNTED)

    @property
    def source(self) -> str:
        """What the module says first of the method."""
        return (self._module.__doc__ or "").partition("\n")[0]

    def settings_class(self) -> type[Any]:
        """Return the dataclass of the settings."""
        return cast(type[Any], getattr(self._module, self.settings))

    def build(
        self, form: str, domain: EncodingDomain, settings: Any, parameters: PrivacyParameters
    ) -> Rival[Any]:
        """Bind a form of the rival."""
        bound = getattr(self._module, form.capitalize() + self.rival)
        return cast(Rival[Any], bound(domain, settings, parameters))

    @property
    def _module(self) -> ModuleType:
        return import_module(f"benchmarks.rivals.{self.module}")


RIVALS = {
    "clustmix": Entry("clustmix.algorithm", "ClustMixSettings", "ClustMix", (PRINTED,)),
    "dp_cda": Entry("dp_cda", "DpCdaSettings", "DpCda", (PRINTED,)),
    "dpgm": Entry("dpgm.printed_dpgm", "DpgmSettings", "Dpgm", (PRINTED,)),
    "dp_merf": Entry("dp_merf", "DpMerfSettings", "DpMerf"),
    "mwem": Entry("mwem", "MwemSettings", "Mwem"),
    "dp_mix": Entry("dp_mix", "DPMixSettings", "DPMix"),
    "local_perturbation": Entry("noisy_records", "LocalPerturbationSettings", "NoisyRecords"),
    "random_projection": Entry("noisy_records", "RandomProjectionSettings", "NoisyRecords"),
}
