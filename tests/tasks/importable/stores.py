"""What an installation keeps, opened for a test to look into."""

from dataclasses import dataclass
from pathlib import Path

from storage.files.private import ensure_private_directory
from storage.installation import installation_id, open_keys, open_ledger
from storage.keys.key_store import KeyStore
from storage.ledger.ledger_db import LedgerDatabase
from storage.releases.checkpoints import CheckpointStore
from storage.releases.measurements import MeasurementStore
from storage.releases.pending import PendingBundles
from storage.releases.store import ReleaseStore
from storage.settings import Settings


@dataclass(frozen=True)
class Stores:
    """The stores of one installation; each is opened anew whenever it is asked for."""

    settings: Settings

    @property
    def ledger(self) -> LedgerDatabase:
        return open_ledger(self.settings)

    @property
    def keys(self) -> KeyStore:
        return open_keys(self.settings)

    @property
    def owner(self) -> str:
        return installation_id(self.settings.home)

    @property
    def measurements(self) -> MeasurementStore:
        return MeasurementStore(self.settings.measurements)

    @property
    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.settings.checkpoints)

    @property
    def pending(self) -> PendingBundles:
        return PendingBundles(self.settings.pending)

    @property
    def releases(self) -> ReleaseStore:
        return ReleaseStore(self.settings.releases)

    @property
    def private_root(self) -> Path:
        return ensure_private_directory(self.settings.private_root)
