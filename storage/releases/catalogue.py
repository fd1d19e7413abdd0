"""What is in a release store: the manifests of its bundles."""

from collections.abc import Iterator

from privacy.errors import IntegrityError
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.store import ReleaseStore


def manifests_in(store: ReleaseStore) -> Iterator[Manifest]:
    """Yield the manifest of each bundle in a store, by dataset and release.

    Nothing is verified: verify a bundle before relying on it. What has no readable manifest is
    passed over, as no reader accepts it.
    """
    for path in sorted(store.root.glob(f"[!.]*/[!.]*/{MANIFEST_FILE}")):
        try:
            manifest = Manifest.read(path)
        except IntegrityError:
            continue
        yield manifest
