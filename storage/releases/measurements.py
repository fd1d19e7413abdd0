"""Sealed measurements: the noisy statistics of a charge, kept so that nothing is drawn twice.

A measurement holds what the noise has made public already. Releases, other numbers of rows and
other formats are made from it at no cost, by post-processing. It stays with its owner because it
is not signed and not meant for readers, not because it is secret.
"""

import hashlib
import io
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray
from pydantic import Field, JsonValue, ValidationError

from privacy.arrays import Floats, Integers
from privacy.charges import charged_rho
from privacy.errors import ClustMixError, refusals
from privacy.events import Composed, Gaussian, event_from_dict
from privacy.gaussian import GaussianAccountant
from privacy.ledger import LedgerEntry
from privacy.mechanisms import SUM_GRID_BITS
from privacy.parameters import Adjacency
from storage.files.documents import Record, Sha256, canonical_json
from storage.files.private import ensure_private_directory, write_durably, write_folder
from storage.files.workspace import read_npz, write_npz
from storage.releases.manifest import Manifest
from storage.releases.release_store import ReleaseStore, manifests_in
from storage.schema.vocabulary import Vocabulary

refusal = refusals(__package__)

RECORD_FILE = "measurement.json"
RELEASED_FILE = "released.npz"


def sealed_file(name: str) -> str:
    """Return the file of a noisy statistic in a measurement."""
    return f"sealed-{name.replace('_', '-').replace('.', '-')}.npz"


class MeasurementRecord(Record):
    """Request, requester and events of a measurement, and the digests of its files.

    The request key is that of `tasks.steps.source`, and the site file is in JSON. Events are
    in order, as `privacy.events.event_to_dict` writes them. ``tainted`` means that the noise can be
    drawn again. The period is that of a release by entry. The vocabulary names the codes of the
    arrays. The files are the SHA-256 of every other file.
    """

    format_version: Literal[1] = 1
    dataset: str
    release_id: str
    ledger_entry: str
    request_key: Sha256
    site: dict[str, JsonValue]
    events: tuple[dict[str, JsonValue], ...]
    tainted: bool
    requester: str | None
    period: str | None = Field(default=None, exclude_if=lambda value: value is None)
    code_version: str
    vocabulary: Vocabulary
    files: dict[str, Sha256] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnknownCharge:
    """The charge of a bundle or a sealed measurement whose entry the ledger lacks."""

    entry_id: str
    release_id: str
    cohort: str
    rho: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A sealed measurement that was read and verified.

    `sha256` is the digest of the record, which holds the digests of all npz files. Of a pool,
    `pooled` are the parts, `stddevs` the noise, which the events lack, `unit` the unit in words.
    """

    record: MeasurementRecord
    files: dict[str, bytes]
    sha256: str
    pooled: tuple[dict[str, Any], ...] = ()
    stddevs: dict[str, float] | None = None
    unit: str | None = None

    @property
    def released(self) -> dict[str, NDArray[Any]]:
        """Everything the method released or derived: the input of its sampler."""
        return arrays_of_bytes(self.files[RELEASED_FILE])

    @property
    def noise_stddevs(self) -> dict[str, float]:
        """Standard deviation of the noise of each statistic, in grid points."""
        if self.stddevs is not None:
            return self.stddevs
        events = map(event_from_dict, self.record.events)
        return {one.statistic: one.noise_stddev for one in events if isinstance(one, Gaussian)}

    def sealed_values(self, name: str) -> Integers:
        """Return the noisy values of a statistic, in grid points; KeyError if there is none."""
        return arrays_of_bytes(self.files[sealed_file(name)])["values"]

    def noisy(self, name: str) -> tuple[Floats, float]:
        """Return the noisy values of a sum in its own units, and their standard deviation."""
        scale = 2.0**SUM_GRID_BITS
        return self.sealed_values(name) / scale, self.noise_stddevs[name] / scale


class MeasurementStore:
    """Folders ``<root>/<release_id>`` of sealed measurements, mode 0700, made on the first use."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def seal(self, record: MeasurementRecord, files: Mapping[str, bytes]) -> str:
        """Write a measurement and its files for good (IntegrityError); return its digest."""
        content = canonical_json(record.model_dump(mode="json"))
        write_folder(self.root / record.release_id, {**files, RECORD_FILE: content})
        return hashlib.sha256(content).hexdigest()

    def check_writable(self, release_id: str, n_bytes: int) -> None:
        """Check by a trial that `n_bytes` of a measurement can be written (ConfigurationError)."""
        folder = ensure_private_directory(self.root) / f".staging-{release_id}-trial"
        try:
            folder.mkdir(mode=0o700)
            # Random bytes, since a compressing file system stores zeros in almost no space.
            write_durably(folder / RELEASED_FILE, os.urandom(n_bytes))
        except OSError as error:
            raise refusal(
                "SEAL_UNWRITABLE", n_bytes=n_bytes, root=self.root, fault=error.strerror
            ) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def release_ids(self) -> frozenset[str]:
        """Return the releases that have a whole measurement here."""
        return frozenset(path.name for path in self.root.glob("[!.]*"))

    def open(self, release_id: str, *, expected_sha256: str | None = None) -> Measurement:
        """Read a measurement: IntegrityError if missing, damaged or not of the ledger's digest."""
        folder = self.root / release_id
        try:
            content = (folder / RECORD_FILE).read_bytes()
            record = MeasurementRecord.model_validate_json(content)
            files = {name: (folder / name).read_bytes() for name in record.files}
        except (OSError, ValidationError):
            raise _damaged(release_id, "missing or unreadable") from None
        sha256 = hashlib.sha256(content).hexdigest()
        if record.release_id != release_id or sha256 != (expected_sha256 or sha256):
            raise _damaged(release_id, "not the one in the ledger")
        for name, data in files.items():
            if hashlib.sha256(data).hexdigest() != record.files[name]:
                raise _damaged(release_id, f"changed in file {name}")
        return Measurement(record=record, files=files, sha256=sha256)


def unknown_charges(
    measurements: MeasurementStore,
    releases: ReleaseStore,
    entries: Callable[[], Sequence[LedgerEntry]],
) -> list[_UnknownCharge]:
    """Return measurements and bundles without an entry in the ledger, with rho of their events.

    The stores are listed before the entries are read, since an entry is older than its seal.
    """
    sealed = measurements.release_ids()
    bundles = [manifest for manifest in manifests_in(releases) if not manifest.pooled]
    known = entries()
    ids, cohorts = {e.entry_id for e in known}, {e.dataset: e.cohort for e in known}
    records = [measurements.open(r).record for r in sorted(sealed - {e.release_id for e in known})]
    found: dict[str, _UnknownCharge] = {}
    everything: list[MeasurementRecord | Manifest] = [*records, *bundles]
    for drawn in everything:
        if drawn.ledger_entry in ids | found.keys():
            continue
        budget = drawn.site.get("budget") if isinstance(drawn, MeasurementRecord) else drawn.request
        named = budget.get("cohort") if isinstance(budget, dict) else None
        events = Composed(events=tuple(map(event_from_dict, drawn.events)))
        rho = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(events).rho
        found[drawn.ledger_entry] = _UnknownCharge(
            entry_id=drawn.ledger_entry,
            release_id=drawn.release_id,
            cohort=str(named or cohorts.get(drawn.dataset, drawn.dataset)),
            rho=charged_rho(rho),
        )
    return list(found.values())


def arrays_to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Write named arrays as an npz file: no pickles, and the same arrays give the same bytes."""
    buffer = io.BytesIO()
    write_npz(buffer, arrays)
    return buffer.getvalue()


def arrays_of_bytes(content: bytes) -> dict[str, NDArray[Any]]:
    """Read what `arrays_to_bytes` wrote; content with pickles is refused."""
    return read_npz(io.BytesIO(content))


def _damaged(release_id: str, what: str) -> ClustMixError:
    return refusal("MEASUREMENT_DAMAGED", release_id=release_id, what=what)
