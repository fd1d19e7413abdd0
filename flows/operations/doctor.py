"""Examine an installation: packages, folders, keys, ledger, revocations, noise, public data."""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import distribution, packages_distributions, version

from privacy.errors import ClustMixError, ConfigurationError, IntegrityError
from privacy.ledger import EntryState
from privacy.randomness import OperatingSystemNoise
from storage.files.private import ensure_private_directory
from storage.installation import installation_id
from storage.keys.key_store import KeyStore
from storage.keys.keys import SigningKey
from storage.ledger.head import HeadFile
from storage.ledger.ledger_db import LedgerDatabase
from storage.public_data import datasets
from storage.public_data.image_datasets import IMAGE_DATASETS, find_images
from storage.releases.revocations import REVOKED_FILE, read_revocations
from storage.releases.store import ReleaseStore
from storage.settings import Settings

PACKAGES = ("clustmix", "flows", "privacy", "storage", "tasks")
_TABLES = ("adult", "diabetes130", "physionet2012")
_NONE_YET = "none yet; the first release makes it"
_SAMPLE_STDDEV = 1_000.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one examination."""

    name: str
    good: bool
    text: str


def examine(settings: Settings) -> list[Finding]:
    """Run all examinations. They change nothing, but open a ledger in PostgreSQL as a release."""
    examinations: tuple[tuple[str, Callable[[Settings], str]], ...] = (
        ("packages", _packages),
        ("private folder", _private_folder),
        ("releases", _releases),
        ("keys", _keys),
        ("officers", _officers),
        ("measurements", _measurements),
        ("ledger", _ledger),
        ("ledger head", _ledger_head),
        ("revocations", _revocations),
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
    return findings + [_data(name, settings) for name in (*_TABLES, *sorted(IMAGE_DATASETS))]


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


def _keys(settings: Settings) -> str:
    folder = settings.key_folder
    if not os.path.lexists(folder):
        _refuse_lost_ledger_key(settings)
        return _NONE_YET
    store = KeyStore(ensure_private_directory(folder))
    # The store makes what is missing, so it is asked only for what is there.
    pair = [os.path.lexists(folder / name) for name in ("pipeline.key", "pipeline.pub")]
    if os.path.lexists(folder / "ledger.key"):
        store.ledger_secret()
    else:
        _refuse_lost_ledger_key(settings)
    if not any(pair):
        return f"{folder}, closed to others; the first release makes the pipeline's key"
    key = store.pipeline() if pair != [True, False] else SigningKey.read(folder / "pipeline.key")
    retired = sum(public != key.public for public in store.pipeline_public())
    before = f" and {retired} retired" if retired else ""
    return f"pipeline key {key.key_id}{before}, closed to others"


def _refuse_lost_ledger_key(settings: Settings) -> None:
    """Refuse the absence of the key of requests where the ledger of this installation has rows."""
    ledger = None if settings.ledger_url is not None else _open_ledger(settings)
    if ledger is not None and ledger.history():
        raise ConfigurationError(
            "LEDGER_KEY_LOST",
            f"expected the key of earlier requests in {settings.key_folder / 'ledger.key'}, found "
            "none; restore it, or what was measured before is measured and paid for again",
        )


def _officers(settings: Settings) -> str:
    folder = settings.key_folder / "officers"
    found = len(KeyStore(settings.key_folder).officers())
    if not found:
        return f"none; who may approve has a public key NAME.pub in {folder}"
    names = sorted(path.stem for path in folder.iterdir() if not path.name.startswith("."))
    if len(names) != found:
        raise ConfigurationError(
            "OFFICER_TWICE",
            f"expected a key of their own for each of {', '.join(names)}, found {found} keys; "
            "remove the repeated file",
        )
    return f"{found}: {', '.join(names)}"


def _measurements(settings: Settings) -> str:
    folder = settings.measurements
    if not os.path.lexists(folder):
        return _NONE_YET
    ensure_private_directory(folder)
    kept = sum(not path.name.startswith(".") for path in folder.iterdir())
    return f"{kept} sealed, closed to others"


def _open_ledger(settings: Settings) -> LedgerDatabase | None:
    """Return the ledger without its exported head, or None where no file was made yet."""
    if settings.ledger_url is not None:
        return LedgerDatabase(settings.ledger_url.get_secret_value())
    return LedgerDatabase(settings.ledger_path) if settings.ledger_path.exists() else None


def _ledger(settings: Settings) -> str:
    """Verify the journal by itself; where it is in PostgreSQL, its address stays unsaid."""
    ledger = _open_ledger(settings)
    if ledger is None:
        return _NONE_YET
    ledger.verify()
    where = "a file" if settings.ledger_url is None else "PostgreSQL"
    return f"in {where}; hash chain of {ledger.head()[0]} rows verified"


def _ledger_head(settings: Settings) -> str:
    if os.path.lexists(settings.ledger_head_path.parent):
        ensure_private_directory(settings.ledger_head_path.parent)
    # Before the journal, which may have grown since.
    head = HeadFile(settings.ledger_head_path).read()
    if head is None:
        return _NONE_YET
    ledger = _open_ledger(settings)
    if ledger is None:
        raise IntegrityError(
            "LEDGER_LOST",
            f"expected the ledger whose row {head[0]} was exported, found none at "
            f"{settings.ledger_path}; restore its latest copy before the next release",
        )
    ledger.verify(expected_head=head)
    return f"row {head[0]} is in the ledger"


def _revocations(settings: Settings) -> str:
    """Check that readers are told of every release that this installation has taken back."""
    path = settings.releases / REVOKED_FILE
    listed = _revoked(settings)
    # Asked only for what is there, as it would be made. Other installations have other stores.
    there = os.path.lexists(settings.home / "installation")
    owner = installation_id(settings.home) if there else None
    ledger = _open_ledger(settings) if there else None
    for entry in () if ledger is None else ledger.entries():
        revoked = entry.state is EntryState.REVOKED and entry.owner == owner
        if revoked and entry.release_id not in listed:
            raise IntegrityError(
                "REVOCATION_UNLISTED",
                f"expected release {entry.release_id} in {path}, found it revoked in the ledger "
                "alone; run clustmix revoke for it again",
            )
    return f"{len(listed)} listed, signature verified" if listed else "none"


def _revoked(settings: Settings) -> frozenset[str]:
    """Return the releases on the list that readers check."""
    path = settings.releases / REVOKED_FILE
    if not os.path.lexists(path):
        return frozenset()
    trusted = KeyStore(settings.key_folder).pipeline_public()
    revocations = read_revocations(path, trusted=trusted).revocations
    return frozenset(revocation.release_id for revocation in revocations)


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
    places = replace(settings.data_places, offline=True)
    try:
        if name in IMAGE_DATASETS:
            path, _ = find_images(name, "train", places=places)
        else:
            path = datasets.find(name, places=places)
    except ClustMixError:
        # Absent public data are no fault: a release fetches them where it can.
        return Finding(f"data: {name}", True, "not here; fetched when needed, where possible")
    return Finding(f"data: {name}", True, f"found {path.name}")
