"""Examine an installation: packages, folders, ledger, noise, public data."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution, packages_distributions, version
from pathlib import Path

from privacy.errors import ClustMixError
from privacy.randomness import OperatingSystemNoise
from storage import datasets
from storage.ledger_db import LedgerDatabase
from storage.releases import ReleaseStore
from storage.settings import Settings, ensure_private_directory

PACKAGES = ("flows", "privacy", "storage", "tasks")
_NONE_YET = "none yet; the first release makes it"
_SAMPLE_STDDEV = 1_000.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one examination."""

    name: str
    good: bool
    text: str

    def as_json(self) -> dict[str, str | bool]:
        """Return the finding for a program."""
        return {"name": self.name, "good": self.good, "text": self.text}


def examine(settings: Settings) -> list[Finding]:
    """Run all examinations; none changes anything."""
    examinations: tuple[tuple[str, Callable[[Settings], str]], ...] = (
        ("packages", _packages),
        ("private folder", _private_folder),
        ("releases", _releases),
        ("ledger", _ledger),
        ("noise", _noise),
        ("orchestrator", _orchestrator),
    )
    findings = []
    for name, examination in examinations:
        try:
            findings.append(Finding(name, True, examination(settings)))
        except ClustMixError as error:
            findings.append(Finding(name, False, error.message))
        except OSError as error:
            findings.append(Finding(name, False, f"expected to look at it, found: {error}"))
    return findings + [_data(name, settings) for name in ("adult", "diabetes130", "physionet2012")]


def _packages(settings: Settings) -> str:
    """Check that the generic package names are ours, and no other distribution's."""
    owners = packages_distributions()
    for package in PACKAGES:
        module = importlib.import_module(package)
        if set(owners.get(package, ["clustmix"])) != {"clustmix"} or module.__file__ is None:
            raise ClustMixError(
                "PACKAGE_SHADOWED",
                f"expected package {package!r} of this distribution, found another; use a clean "
                "environment",
            )
    distribution("clustmix")
    return f"clustmix {version('clustmix')}, prefect {version('prefect')}, dask {version('dask')}"


def _private_folder(settings: Settings) -> str:
    home = settings.home
    if not os.path.lexists(home):
        return _NONE_YET
    return f"{ensure_private_directory(home)}, closed to others"


def _releases(settings: Settings) -> str:
    ReleaseStore(settings.releases).check_usable()
    return f"{settings.releases}" if settings.releases.exists() else _NONE_YET


def _ledger(settings: Settings) -> str:
    if not settings.ledger_path.exists():
        return _NONE_YET
    ledger = LedgerDatabase(settings.ledger_path)
    ledger.verify()
    return f"hash chain of {ledger.head()[0]} rows verified"


def _noise(settings: Settings) -> str:
    sample = OperatingSystemNoise().discrete_gaussian((2_000,), noise_stddev=_SAMPLE_STDDEV)
    # Eight standard errors either way: a sound sampler fails once in 1e15.
    if not 0.87 < float(sample.std()) / _SAMPLE_STDDEV < 1.13:
        raise ClustMixError("NOISE_BROKEN", "expected noise of the asked size, found another")
    return "exact discrete Gaussian, entropy of the operating system"


def _orchestrator(settings: Settings) -> str:
    address = os.environ.get("PREFECT_API_URL")
    return (
        "a server of its own on the loopback interface"
        if address is None
        else "the server named by PREFECT_API_URL"
    )


def _data(name: str, settings: Settings) -> Finding:
    offline = settings.model_copy(update={"offline": True})
    try:
        path: Path = datasets.find(name, settings=offline)
    except ClustMixError:
        # Absent public data are no fault: a release fetches them where it can.
        return Finding(f"data: {name}", True, "not here; fetched when needed, where possible")
    return Finding(f"data: {name}", True, f"found {path.name}")
