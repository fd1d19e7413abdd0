"""What an installation keeps, opened for a test to look into."""

from dataclasses import dataclass, field
from functools import partial

from flows.decisions import decide, revoke
from flows.installation import Installation
from storage.files.private import ensure_private_directory
from storage.keys.key_store import KeyStore
from storage.releases.measurements import MeasurementStore
from storage.releases.pending import PendingBundles
from storage.releases.release_store import ReleaseStore
from storage.settings import Settings, installation_id, load_settings, open_ledger


@dataclass(frozen=True)
class Stores:
    """The stores and services of one installation; each is opened anew whenever it is asked for."""

    settings: Settings = field(default_factory=load_settings)

    opened = property(lambda self: Installation.open(self.settings))
    entries = property(lambda self: self.opened.entries)
    publisher = property(lambda self: self.opened.publisher)
    decide = property(lambda self: partial(decide, self.publisher))
    clean_up = property(lambda self: self.opened.janitor.clean_up)
    revoke = property(lambda self: partial(revoke, self.publisher))
    ledger = property(lambda self: open_ledger(self.settings))
    keys = property(lambda self: KeyStore(self.settings.key_folder))
    owner = property(lambda self: installation_id(self.settings.home))
    measurements = property(lambda self: MeasurementStore(self.settings.measurements))
    pending = property(lambda self: PendingBundles(self.settings.pending))
    releases = property(lambda self: ReleaseStore(self.settings.releases))
    private_root = property(lambda self: ensure_private_directory(self.settings.private_root))
