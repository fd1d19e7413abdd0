"""What an installation keeps, opened for a test to look into."""

from dataclasses import dataclass

from storage.files.private import ensure_private_directory
from storage.installation import installation_id, open_keys, open_ledger
from storage.releases.measurements import MeasurementStore
from storage.releases.pending import PendingBundles
from storage.releases.store import ReleaseStore
from storage.settings import Settings


@dataclass(frozen=True)
class Stores:
    """The stores of one installation; each is opened anew whenever it is asked for."""

    settings: Settings

    ledger = property(lambda self: open_ledger(self.settings))
    keys = property(lambda self: open_keys(self.settings))
    owner = property(lambda self: installation_id(self.settings.home))
    measurements = property(lambda self: MeasurementStore(self.settings.measurements))
    pending = property(lambda self: PendingBundles(self.settings.pending))
    releases = property(lambda self: ReleaseStore(self.settings.releases))
    private_root = property(lambda self: ensure_private_directory(self.settings.private_root))
