from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from made_manifests import key_of, manifest_of, revocation

from privacy.errors import IntegrityError
from storage.releases.bundles import VerifiedBundle
from storage.releases.release_store import ReleaseStore
from storage.releases.revocations import (
    REVOKED_FILE,
    _RevocationList,
    list_revocations,
    read_revocations,
)

PIPELINE, ANNA, STRANGER = (key_of(number) for number in range(1, 4))
TRUSTED = [PIPELINE.public]


LISTED = _RevocationList.signed(PIPELINE, revocations=(revocation(1), revocation(2)))


def bundle_of(number, *, manifest_sha256=None, **changes):
    return VerifiedBundle(
        path=Path("adult"),
        manifest=manifest_of(release_id=f"r-20250131-{number:08x}", **changes),
        manifest_sha256=manifest_sha256 or f"{number:064x}",
        signer=PIPELINE.key_id,
        approved_by=None,
        reason=None,
    )


@pytest.fixture
def store(tmp_path):
    return ReleaseStore(tmp_path / "releases")


def add(store, *numbers, signer=PIPELINE, trusted=TRUSTED, **changes):
    items = [revocation(number, **changes) for number in numbers]
    return list_revocations(store, items, signer=signer, trusted=trusted)


def numbers_in(store):
    listed = read_revocations(store.root / REVOKED_FILE, trusted=TRUSTED)
    return [int(item.release_id[-8:], 16) for item in listed.revocations]


def test_listed_bundles_are_refused_with_date_and_reason():
    LISTED.require_not_revoked(bundle_of(3))
    LISTED.require_not_revoked(bundle_of(3, resampled_from="r-20250131-00000004"))
    own = (
        "RELEASE_REVOKED: release r-20250131-00000001 was revoked on 2025-02-01: Bounds were taken"
    )
    with pytest.raises(IntegrityError, match=own):
        LISTED.require_not_revoked(bundle_of(1))
    # Under its own id with other bytes, and its bytes under another id.
    for bundle in (
        bundle_of(2, manifest_sha256="f" * 64),
        bundle_of(3, manifest_sha256=f"{2:064x}"),
    ):
        with pytest.raises(IntegrityError, match="RELEASE_REVOKED"):
            LISTED.require_not_revoked(bundle)


def test_the_list_only_grows_and_everybody_may_read_it(store):
    assert add(store) == ()
    assert not (store.root / REVOKED_FILE).exists()
    assert [item.release_id[-1] for item in add(store, 1, 2)] == ["1", "2"]
    path = store.root / REVOKED_FILE
    before = path.read_bytes()
    assert add(store, 2, 1, reason="another") == ()
    assert path.read_bytes() == before
    assert [item.release_id[-1] for item in add(store, 2, 3, 3, reason="another")] == ["3"]
    assert numbers_in(store) == [1, 2, 3]
    kept = read_revocations(path, trusted=TRUSTED).revocations
    assert [item.reason for item in kept] == [*2 * [revocation(1).reason], "another"]
    assert sorted(entry.name for entry in store.root.iterdir()) == [".lock", REVOKED_FILE]
    assert path.stat().st_mode & 0o777 == 0o644


def test_of_revocations_at_once_none_is_lost(store):
    # The lock belongs to an open file, so threads exclude each other as processes do.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: add(ReleaseStore(store.root), number), range(20)))
    assert sorted(numbers_in(store)) == list(range(20))
