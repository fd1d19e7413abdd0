import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from made_manifests import EVENTS, key_of, revocation
from made_manifests import manifest_of as made_manifest_of

from privacy.errors import ConfigurationError, IntegrityError, Withheld
from privacy.events import event_to_dict
from storage.files.documents import canonical_json, digest_of
from storage.files.refs import ReleaseRef
from storage.releases.bundles import VerifiedBundle, verify_bundle
from storage.releases.manifest import file_digests
from storage.releases.release_store import ReleaseStore
from storage.releases.revocations import (
    REVOKED_FILE,
    _RevocationList,
    list_revocations,
    read_revocations,
)
from storage.releases.signatures import ApprovalStatement, Signature, sign_approval

PIPELINE, ANNA, BERT, STRANGER = (key_of(number) for number in range(1, 5))
TRUSTED = [PIPELINE.public]
OFFICERS = [ANNA.public, BERT.public]

REF = ReleaseRef(dataset="adult", release_id="r-20250131-0f3a9c21")
FILES = {"synthetic.csv": b"a,b\n1,2\n", "data_card.md": b"# Card\n"}


def manifest_of(files=FILES, ref=REF, **changes):
    address = {"dataset": ref.dataset, "release_id": ref.release_id}
    return made_manifest_of(**address, files=file_digests(files), **changes)


@pytest.fixture
def store(tmp_path):
    return ReleaseStore(tmp_path / "releases")


@pytest.fixture
def bundle(store):
    return store.publish(FILES, manifest_of(), signer=PIPELINE)


def entries(folder):
    return sorted(str(entry.relative_to(folder)) for entry in folder.rglob("*"))


def test_published_bundle_verifies_is_readable_and_never_replaced(store, tmp_path):
    os.umask(0o077)
    path = store.publish(FILES, manifest_of(), signer=PIPELINE)
    assert path == store.path(REF) == tmp_path / "releases" / "adult" / REF.release_id
    assert entries(path) == ["data_card.md", "manifest.json", "signature.json", "synthetic.csv"]
    for folder in (path, path.parent, path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o644}
    with pytest.raises(IntegrityError, match=r"RELEASE_EXISTS: release adult/r-2025.* never repl"):
        store.publish(FILES, manifest_of(), signer=PIPELINE)
    moved = path.rename(tmp_path / "elsewhere")
    verified = verify_bundle(moved, trusted=TRUSTED)
    assert (verified.manifest, verified.signer) == (manifest_of(), PIPELINE.key_id)
    assert verified.approved_by is verified.reason is None
    content = (moved / "manifest.json").read_bytes()
    assert verified.manifest_sha256 == hashlib.sha256(content).hexdigest()


def refused(bundle, message, **keys):
    with pytest.raises(IntegrityError, match=message) as caught:
        verify_bundle(bundle, **{"trusted": TRUSTED, **keys})
    return str(caught.value)


@pytest.mark.parametrize("name", [*sorted(FILES), "manifest.json"])
def test_every_changed_byte_is_found_and_its_file_named(bundle, name):
    original = (bundle / name).read_bytes()
    # Each byte of a short file, a few dozen of the manifest.
    for position in range(0, len(original), max(1, len(original) // 40)):
        changed = bytearray(original)
        changed[position] ^= 1
        (bundle / name).write_bytes(changed)
        refused(bundle, f"FILE_CHANGED: file {name} differs from its digest")
    for content in (original + b"x", b""):
        (bundle / name).write_bytes(content)
        refused(bundle, f"FILE_CHANGED: file {name} differs from its digest")
    (bundle / name).write_bytes(original)
    verify_bundle(bundle, trusted=TRUSTED)


def test_a_file_of_another_size_is_not_read(bundle):
    os.truncate(bundle / "synthetic.csv", 2**42)  # sparse: hours to hash
    refused(bundle, r"FILE_CHANGED: file synthetic\.csv differs")


def test_a_bundle_without_public_keys_proves_nothing(bundle):
    with pytest.raises(ConfigurationError, match="NO_PUBLIC_KEY: expected the public key of the p"):
        verify_bundle(bundle, trusted=[])
    signer = f"SIGNER_UNKNOWN: file signature.json is signed by key {PIPELINE.key_id}, expected one"
    refused(bundle, f"{signer} of {ANNA.key_id}, {BERT.key_id}; ask the publ", trusted=OFFICERS)
    (bundle / "signature.json").unlink()
    refused(bundle, r"FILE_MISSING: file signature\.json is missing or u")


def rewritten(bundle, *, signer=PIPELINE, **fields):
    path = bundle / "manifest.json"
    content = canonical_json({**json.loads(path.read_bytes()), **fields})
    path.write_bytes(content)
    signature = Signature.signed(signer, manifest=digest_of(content))
    (bundle / "signature.json").write_bytes(signature.to_bytes())
    return bundle


def test_a_bundle_that_was_rewritten_as_a_whole_is_refused(bundle):
    refused(rewritten(bundle, signer=STRANGER, rows=1001), f"SIGNER_UNKNOWN: .*{STRANGER.key_id}")
    signature = Signature.read(bundle / "signature.json")
    forged = signature.model_copy(update={"key_id": PIPELINE.key_id})
    (bundle / "signature.json").write_bytes(forged.to_bytes())
    refused(bundle, "SIGNATURE_WRONG")
    # Where roles are known, an officer signs no manifest.
    refused(rewritten(bundle, signer=ANNA), "SIGNER_UNKNOWN", officers=OFFICERS)


@pytest.mark.parametrize(
    "name", ["notes.txt", "approval.json", "-x", "\x1b[2J", "zeile\n", "\udcff", "MANIFEST.json"]
)
def test_an_extra_file_of_any_name_is_refused_and_named_in_print(bundle, name):
    (bundle / name).write_bytes(b"{}")
    assert refused(bundle, r"FILE_EXTRA: file .* is not in the manifest").isprintable()
    (bundle / name).unlink()
    (bundle / name).mkdir()
    refused(bundle, "FILE_EXTRA")


def test_a_missing_file_is_named(bundle):
    for name, end in (("data_card.md", "missing; get"), ("manifest.json", "missing or")):
        (bundle / name).unlink()
        refused(bundle, f"FILE_MISSING: file {name} is {end}")
    refused(bundle / "nowhere", "BUNDLE_MISSING: expected a folder with a release")


def test_links_pipes_and_folders_are_not_files(bundle, tmp_path):
    path = bundle / "data_card.md"
    content = path.read_bytes()
    path.unlink()
    (tmp_path / "same").write_bytes(content)
    path.symlink_to(tmp_path / "same")
    refused(bundle, r"FILE_NOT_REGULAR: file data_card\.md is a symb")
    for make in (os.mkfifo, os.mkdir):
        path.unlink()
        make(path)
        refused(bundle, "FILE_NOT_REGULAR")
    (tmp_path / "link").symlink_to(bundle)
    refused(tmp_path / "link", "BUNDLE_MISSING")


@pytest.mark.parametrize("factor", [0.5, 1 - 1e-5, 1 + 1e-5, 2.0])
@pytest.mark.parametrize("field", ["mu", "rho", "epsilon", "replace_one_epsilon"])
def test_numbers_that_the_events_do_not_give_are_refused(bundle, field, factor):
    value = getattr(manifest_of(), field) * factor
    refused(rewritten(bundle, **{field: value}), f"MANIFEST_CLAIM: .* field '{field}' is not what")


def test_a_dropped_event_and_another_delta_are_refused(bundle):
    events = [event_to_dict(event) for event in EVENTS]
    for changes, field in (({"events": events[:1]}, "mu"), ({"delta": 1e-7}, "epsilon")):
        said = f"field '{field}' is not what its events give"
        refused(rewritten(bundle, **{"events": events, **changes}), said)


def pending(ref=REF, **changes):
    return manifest_of(ref=ref, **{"needs_approval": True, "requester": BERT.key_id, **changes})


def approval_of(manifest, officer=ANNA, **changes):
    statement = ApprovalStatement.of(manifest, decision="approve", reason="Card and numbers agree.")
    return sign_approval(statement.model_copy(update=changes), officer)


APPROVAL = approval_of(pending())


@pytest.mark.parametrize(
    ("manifest", "changes", "approval", "said"),
    [
        (manifest_of(tainted=True), {}, None, "TAINTED: the noise came from a source for tests"),
        (manifest_of(), {"extra.csv": b""}, None, "FILE_EXTRA"),
        (manifest_of(files={**FILES, "more.csv": b""}), {}, None, "FILE_MISSING"),
        (manifest_of(), {"synthetic.csv": b"a,b\n1,3\n"}, None, "FILE_CHANGED: file synthetic"),
        (manifest_of(epsilon=0.5), {}, None, "MANIFEST_CLAIM"),
        (pending(), {}, None, r"FILE_MISSING: file approval\.json"),
        (pending(), {}, approval_of(pending(), STRANGER), "SIGNER_UNKNOWN"),
        (pending(guarantee="Another."), {}, APPROVAL, "APPROVAL_MISMATCH: .*the guarantee of"),
        (manifest_of(), {}, APPROVAL, r"FILE_EXTRA: file approval\.json is not in the man"),
    ],
)
def test_what_would_not_verify_is_not_published(store, tmp_path, manifest, changes, approval, said):
    with pytest.raises((IntegrityError, Withheld), match=said):
        store.publish(
            FILES | changes, manifest, signer=PIPELINE, approval=approval, officers=OFFICERS
        )
    root = tmp_path / "releases"
    assert not root.exists() or entries(root) == [".lock"]


def test_links_in_the_store_are_refused(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "root").symlink_to(outside)
    with pytest.raises(IntegrityError, match=r"SYMLINK: .* is a symbolic link; a release store"):
        ReleaseStore(tmp_path / "root").publish(FILES, manifest_of(), signer=PIPELINE)
    for link in ("adult", f".staging-{REF.release_id}"):
        root = tmp_path / f"with-{link}"
        root.mkdir()
        (root / link).symlink_to(outside)
        with pytest.raises(IntegrityError, match="SYMLINK"):
            ReleaseStore(root).publish(FILES, manifest_of(), signer=PIPELINE)
    root = tmp_path / "with-release"
    (root / "adult").mkdir(parents=True)
    (root / "adult" / REF.release_id).symlink_to(outside)
    with pytest.raises(IntegrityError, match="SYMLINK"):
        ReleaseStore(root).path(REF)
    assert list(outside.iterdir()) == []


def test_one_of_many_publishers_wins(store):
    def publish(_):
        try:
            store.publish(FILES, manifest_of(), signer=PIPELINE)
        except IntegrityError as error:
            return error.code
        return "published"

    with ThreadPoolExecutor(8) as pool:
        outcomes = sorted(pool.map(publish, range(8)))
    assert outcomes == ["RELEASE_EXISTS"] * 7 + ["published"]
    verify_bundle(store.path(REF), trusted=TRUSTED)


LISTED = _RevocationList.signed(PIPELINE, revocations=(revocation(1), revocation(2)))


def bundle_of(number, *, manifest_sha256=None, **changes):
    return VerifiedBundle(
        path=Path("adult"),
        manifest=made_manifest_of(release_id=f"r-20250131-{number:08x}", **changes),
        manifest_sha256=manifest_sha256 or f"{number:064x}",
        signer=PIPELINE.key_id,
        approved_by=None,
        reason=None,
    )


def add(store, *numbers, signer=PIPELINE, trusted=TRUSTED, **changes):
    items = [revocation(number, **changes) for number in numbers]
    return list_revocations(store, items, signer=signer, trusted=trusted)


def numbers_in(store):
    listed = read_revocations(store.root / REVOKED_FILE, trusted=TRUSTED)
    return [int(item.release_id[-8:], 16) for item in listed.revocations]


def test_listed_bundles_are_refused_with_date_and_reason():
    LISTED.require_not_revoked(bundle_of(3))
    LISTED.require_not_revoked(bundle_of(3, resampled_from="r-20250131-00000004"))
    own = "release r-20250131-00000001 was revoked on 2025-02-01: Bounds were taken"
    with pytest.raises(IntegrityError, match=f"RELEASE_REVOKED: {own}"):
        LISTED.require_not_revoked(bundle_of(1))
    # Under its own id with other bytes, and its bytes under another id.
    for number, digest in ((2, "f" * 64), (3, f"{2:064x}")):
        with pytest.raises(IntegrityError, match="RELEASE_REVOKED"):
            LISTED.require_not_revoked(bundle_of(number, manifest_sha256=digest))


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
