"""Examination of an installation: packages, folders, keys, ledger, noise, public data."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path

from privacy.errors import ClustMixError, refusals
from privacy.ledger import EntryState, LedgerEntry
from privacy.randomness import OperatingSystemNoise
from storage.files.private import ensure_private_directory
from storage.keys.key_store import KeyStore
from storage.keys.keys import SigningKey
from storage.ledger.books import check_head_kept
from storage.ledger.ledger_db import HeadFile, LedgerDatabase
from storage.ledger.register import open_register
from storage.public_data import datasets
from storage.releases.measurements import MeasurementStore
from storage.releases.release_store import ReleaseStore
from storage.releases.revocations import REVOKED_FILE, read_revocations
from storage.settings import DataPlaces, Settings, installation_id
from tasks.steps.entries import require_known

refusal = refusals(__package__)

PACKAGES = ("clustmix", "flows", "privacy", "storage", "tasks")
_TABLES = ("adult", "diabetes130", "physionet2012", "fashion_mnist", "mnist")
_NONE_YET = "none yet; the first release makes it"
_SAMPLE_STDDEV = 1_000.0

_Ledger = Callable[[], LedgerDatabase | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one examination."""

    name: str
    good: bool
    text: str


def examine(settings: Settings) -> list[Finding]:
    """Run all examinations. They change nothing, but may create the journal in PostgreSQL."""
    home, releases, keys = settings.home, settings.releases, settings.key_folder
    url, file, head = settings.ledger_url, settings.ledger_path, settings.ledger_head_path

    def ledger() -> LedgerDatabase | None:
        """Open the ledger without its exported head; None where no file was made yet."""
        if url is not None:
            return LedgerDatabase(url.get_secret_value())
        return LedgerDatabase(file) if file.exists() else None

    # A ledger that is shared has rows of other installations, whose keys are not ours.
    own_ledger = ledger if url is None else lambda: None
    where = "a file" if url is None else "PostgreSQL"  # its address stays unsaid
    examinations: tuple[tuple[str, Callable[[], str]], ...] = (
        ("packages", _packages),
        ("private folder", partial(_private_folders, home, settings.measurements)),
        ("releases", partial(_releases, releases)),
        ("keys", partial(_keys, keys, own_ledger)),
        ("officers", partial(_officers, keys)),
        ("ledger", partial(_ledger, ledger, where, head=head, file=file, home=home)),
        ("register", partial(_register, own_ledger, settings.register, keys)),
        ("charges", partial(_charges, ledger, settings.measurements, releases)),
        ("revocations", partial(_revocations, releases / REVOKED_FILE, keys, home, ledger)),
        ("noise", _noise),
        ("orchestrator", _orchestrator),
    )
    findings = []
    for name, examination in examinations:
        try:
            findings.append(Finding(name, True, examination()))
        except ClustMixError as error:
            findings.append(Finding(name, False, error.message))
        except OSError as error:
            findings.append(Finding(name, False, f"expected to look at it, found: {error}"))
    offline = replace(settings.data_places, offline=True)
    return findings + [_data(name, offline) for name in _TABLES]


def _packages() -> str:
    """Check that the generic package names are ours, and no other distribution's."""
    owners = packages_distributions()
    for package in PACKAGES:
        if set(owners.get(package, ["clustmix"])) != {"clustmix"}:
            raise refusal("PACKAGE_SHADOWED", package=package)
    return f"clustmix {version('clustmix')}, prefect {version('prefect')}, dask {version('dask')}"


def _private_folders(home: Path, measurements: Path) -> str:
    if not os.path.lexists(home):
        return _NONE_YET
    sealed: list[str] = []
    ensure_private_directory(home)
    if os.path.lexists(measurements):
        ensure_private_directory(measurements)
        sealed = [path.name for path in measurements.iterdir() if path.name[0] != "."]
    return f"{home}, closed to others; sealed measurements: {len(sealed)}"


def _releases(folder: Path) -> str:
    ReleaseStore(folder).check_usable()
    return f"{folder}" if folder.exists() else _NONE_YET


def _keys(folder: Path, ledger: _Ledger) -> str:
    # The store creates missing keys, so only existing ones are read.
    secret = folder / "ledger.key"
    if os.path.lexists(folder):
        ensure_private_directory(folder)
    store = KeyStore(folder)
    if os.path.lexists(secret):
        store.ledger_secret()
    elif (opened := ledger()) is not None and opened.history():
        raise refusal("LEDGER_KEY_LOST", secret=secret)
    private, public = (os.path.lexists(folder / f"pipeline.{end}") for end in ("key", "pub"))
    if not private and not public:
        return _NONE_YET
    key = store.pipeline() if public else SigningKey.read(folder / "pipeline.key")
    retired = sum(public != key.public for public in store.pipeline_public())
    before = f" and {retired} retired" if retired else ""
    return f"pipeline key {key.key_id}{before}, closed to others"


def _officers(keys: Path) -> str:
    folder = keys / "officers"
    found = len(KeyStore(keys).officers())
    if not found:
        return f"none; who may approve has a public key NAME.pub in {folder}"
    names = sorted(path.stem for path in folder.iterdir() if not path.name.startswith("."))
    if len(names) != found:
        raise refusal("OFFICER_TWICE", names=", ".join(names), found=found)
    return f"{found}: {', '.join(names)}"


def _ledger(ledger: _Ledger, where: str, *, head: Path, file: Path, home: Path) -> str:
    if os.path.lexists(head.parent):
        ensure_private_directory(head.parent)
    # Read before the journal, which may grow meanwhile.
    exported = HeadFile(head).read()
    opened = ledger()
    if opened is None and exported is None:
        return _NONE_YET
    if opened is None:
        raise refusal("LEDGER_LOST", file=file)
    opened.verify(expected_head=exported)
    if os.path.lexists(home / "installation"):
        check_head_kept(opened.history(), exported, owner=installation_id(home))
    kept = "" if exported is None else f", exported row {exported[0]} among them"
    return f"in {where}; hash chain of {opened.head()[0]} rows verified{kept}"


def _register(ledger: _Ledger, path: Path, keys: Path) -> str:
    opened = ledger()
    rows = () if opened is None else opened.history()
    by_entry = [row.owner for row in rows if row.partition and row.partition.period]
    if not by_entry and not os.path.lexists(path):
        return "none; a release by entry makes it"
    secret = KeyStore(keys).ledger_secret() if os.path.lexists(keys / "ledger.key") else b""
    # With any other owner, a missing register would be begun.
    open_register(path, secret, rows, owner=by_entry[0] if by_entry else "")
    return "of patients who were read by entry, no older than the ledger"


def _charges(ledger: _Ledger, measurements: Path, releases: Path) -> str:
    opened = ledger()
    entries = tuple[LedgerEntry, ...] if opened is None else opened.entries
    require_known(MeasurementStore(measurements), ReleaseStore(releases), entries)
    return "every bundle and sealed measurement has an entry in the ledger"


def _revocations(path: Path, keys: Path, home: Path, ledger: _Ledger) -> str:
    """Check that the list for readers has every release that this installation has revoked."""
    listed = frozenset[str]()
    if os.path.lexists(path):
        trusted = KeyStore(keys).pipeline_public()
        revocations = read_revocations(path, trusted=trusted).revocations
        listed = frozenset(revocation.release_id for revocation in revocations)
    # Only an existing id is read, as a missing one would be created. Others have other stores.
    there = os.path.lexists(home / "installation")
    owner = installation_id(home) if there else None
    opened = ledger() if there else None
    for entry in () if opened is None else opened.entries():
        revoked = entry.state is EntryState.REVOKED and entry.owner == owner
        if revoked and entry.release_id not in listed:
            raise refusal("REVOCATION_UNLISTED", release=entry.release_id, path=path)
    return f"{len(listed)} listed, signature verified" if listed else "none"


def _noise() -> str:
    sample = OperatingSystemNoise().discrete_gaussian((2_000,), noise_stddev=_SAMPLE_STDDEV)
    # Eight standard errors either way: a sound sampler fails once in 1e15.
    if not 0.87 < float(sample.std()) / _SAMPLE_STDDEV < 1.13:
        raise refusal("NOISE_BROKEN")
    return "exact discrete Gaussian, entropy of the operating system"


def _orchestrator() -> str:
    if "PREFECT_API_URL" in os.environ:
        return "the server named by PREFECT_API_URL"
    return "a server of its own on the loopback interface"


def _data(name: str, places: DataPlaces) -> Finding:
    try:
        return Finding(f"data: {name}", True, f"found {datasets.find(name, places=places).name}")
    except ClustMixError:
        # Absent public data are no fault: a release fetches them where it can.
        return Finding(f"data: {name}", True, "not here; fetched when needed, where possible")
