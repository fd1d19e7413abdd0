import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from datetime import date
from pathlib import Path

import pytest

from privacy.accountants.gaussian import GaussianAccountant
from privacy.errors import ConfigurationError, InputError, IntegrityError, Withheld
from privacy.events import DiscreteGaussianEvent, event_to_dict
from privacy.parameters import Adjacency
from storage import releases
from storage.manifest import GateRecord, Manifest, MethodRecord, canonical_json, file_digests
from storage.refs import ReleaseRef
from storage.releases import ReleaseStore, verify_bundle

REPOSITORY = Path(__file__).resolve().parents[2]
REF = ReleaseRef(dataset="adult", release_id="r-20250131-0f3a9c21")
FILES = {"synthetic.csv": b"a,b\n1,2\n", "data_card.md": b"# Card\n"}
EVENTS = tuple(
    DiscreteGaussianEvent(statistic=name, l2_sensitivity=1000.0, noise_stddev=stddev, n_values=10)
    for name, stddev in (("sums", 5000.0), ("moments", 7000.0))
)


def manifest_of(files=FILES, ref=REF, **changes):
    accountants = {}
    for adjacency in Adjacency:
        accountant = GaussianAccountant(adjacency=adjacency)
        for event in EVENTS:
            accountant = accountant.compose(event)
        accountants[adjacency] = accountant
    total = accountants[Adjacency.ADD_REMOVE]
    fields = {
        "dataset": ref.dataset,
        "release_id": ref.release_id,
        "created_on": date(2025, 1, 31),
        "analysis": "proven",
        "guarantee": "One sentence.",
        "method": MethodRecord(name="clustmix", settings={"clusters": 4}),
        "request": {"epsilon": 1.0},
        "code_version": "0.1.0",
        "events": tuple(event_to_dict(event) for event in EVENTS),
        "mu": total.mu,
        "rho": total.rho,
        "epsilon": total.epsilon(delta=1e-6),
        "delta": 1e-6,
        "replace_one_epsilon": accountants[Adjacency.REPLACE_ONE].epsilon(delta=1e-6),
        "adjacency": "add_remove",
        "privacy_unit": "patient_nbr",
        "max_rows_per_patient": 5,
        "ledger_entry": "17",
        "gate": (GateRecord(check="schema", passed=True),),
        "rows": 1000,
        "tainted": False,
        "files": file_digests(files),
    }
    return Manifest(**{**fields, **changes})


@pytest.fixture
def store(tmp_path):
    return ReleaseStore(tmp_path / "releases")


@pytest.fixture
def bundle(store):
    return store.publish(REF, FILES, manifest_of())


def entries(folder):
    return sorted(str(entry.relative_to(folder)) for entry in folder.rglob("*"))


def test_published_bundle_verifies_and_is_readable(store, tmp_path):
    source = tmp_path / "synthetic.csv"
    source.write_bytes(FILES["synthetic.csv"])
    before = os.umask(0o077)
    try:
        path = store.publish(REF, {**FILES, "synthetic.csv": source}, manifest_of())
    finally:
        os.umask(before)
    assert path == store.path(REF) == tmp_path / "releases" / "adult" / REF.release_id
    assert entries(path) == ["data_card.md", "manifest.json", "synthetic.csv"]
    assert (path / "synthetic.csv").read_bytes() == FILES["synthetic.csv"]
    for folder in (path, path.parent, path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    for file in path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
    verified = verify_bundle(path)
    assert verified.manifest == manifest_of()
    content = (path / "manifest.json").read_bytes()
    assert verified.manifest_sha256 == hashlib.sha256(content).hexdigest()
    moved = path.rename(tmp_path / "elsewhere")
    assert verify_bundle(moved).manifest == manifest_of()


def test_release_is_never_replaced(store, bundle):
    before = (bundle / "manifest.json").stat()
    with pytest.raises(IntegrityError, match=r"RELEASE_EXISTS: release adult/r-2025.* never repl"):
        store.publish(REF, FILES, manifest_of())
    assert (bundle / "manifest.json").stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tainted": True}, "TAINTED: the noise came from a source for tests"),
        ({"analysis": "published"}, "ANALYSIS_NOT_PROVEN: only a release with analysis 'proven'"),
        (
            {"gate": (GateRecord(check="schema", passed=False),)},
            "GATE_FAILED: the release gate failed: schema",
        ),
    ],
)
def test_what_may_not_be_published_is_withheld(store, tmp_path, changes, message):
    with pytest.raises(Withheld, match=message):
        store.publish(REF, FILES, manifest_of(**changes))
    assert not (tmp_path / "releases").exists()


@pytest.mark.parametrize(
    ("files", "manifest", "code"),
    [
        (
            FILES,
            manifest_of(ref=ReleaseRef(dataset="other", release_id=REF.release_id)),
            "MANIFEST",
        ),
        ({**FILES, "extra.csv": b""}, manifest_of(), "MANIFEST_MISMATCH"),
        ({"synthetic.csv": b"a,b\n1,2\n"}, manifest_of(), "MANIFEST_MISMATCH"),
        ({**FILES, "synthetic.csv": b"a,b\n1,3\n"}, manifest_of(), "FILE_CHANGED: file synthetic"),
        (FILES, manifest_of(epsilon=0.5), "MANIFEST_CLAIM"),
    ],
)
def test_bundle_that_would_not_verify_is_not_published(store, tmp_path, files, manifest, code):
    with pytest.raises(IntegrityError, match=code):
        store.publish(REF, files, manifest)
    root = tmp_path / "releases"
    assert not root.exists() or entries(root) == [".lock"]


# --- verification


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_changed_byte_is_found_and_its_file_named(bundle, name):
    original = (bundle / name).read_bytes()
    for position in range(len(original)):
        changed = bytearray(original)
        changed[position] ^= 1
        (bundle / name).write_bytes(changed)
        with pytest.raises(IntegrityError, match=f"FILE_CHANGED: file {name} differs from its"):
            verify_bundle(bundle)
    (bundle / name).write_bytes(original)
    verify_bundle(bundle)


def test_missing_and_extra_files_are_named(bundle):
    (bundle / "notes.txt").write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"FILE_EXTRA: file notes\.txt is not in the man"):
        verify_bundle(bundle)
    (bundle / "notes.txt").unlink()
    (bundle / "folder").mkdir()
    with pytest.raises(IntegrityError, match="FILE_EXTRA: file folder"):
        verify_bundle(bundle)
    (bundle / "folder").rmdir()
    (bundle / "data_card.md").unlink()
    with pytest.raises(IntegrityError, match=r"FILE_MISSING: file data_card\.md is missing; get"):
        verify_bundle(bundle)
    (bundle / "manifest.json").unlink()
    with pytest.raises(IntegrityError, match=r"FILE_MISSING: file manifest\.json is missing or"):
        verify_bundle(bundle)
    with pytest.raises(IntegrityError, match="BUNDLE_MISSING: expected a folder with a release"):
        verify_bundle(bundle / "nowhere")


def test_links_pipes_and_folders_are_not_files(bundle, tmp_path):
    path = bundle / "data_card.md"
    content = path.read_bytes()
    path.unlink()
    (tmp_path / "same").write_bytes(content)
    path.symlink_to(tmp_path / "same")
    with pytest.raises(IntegrityError, match=r"FILE_NOT_REGULAR: file data_card\.md is a symb"):
        verify_bundle(bundle)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(IntegrityError, match="FILE_NOT_REGULAR"):
        verify_bundle(bundle)
    path.unlink()
    path.mkdir()
    with pytest.raises(IntegrityError, match="FILE_NOT_REGULAR"):
        verify_bundle(bundle)
    (tmp_path / "link").symlink_to(bundle)
    with pytest.raises(IntegrityError, match="BUNDLE_MISSING"):
        verify_bundle(tmp_path / "link")


def rewritten(bundle, **fields):
    path = bundle / "manifest.json"
    path.write_bytes(canonical_json({**json.loads(path.read_bytes()), **fields}))
    return bundle


def test_manifest_with_an_extra_field_is_refused(bundle):
    with pytest.raises(IntegrityError, match=r"file manifest\.json field 'source_rows': Extra inp"):
        verify_bundle(rewritten(bundle, source_rows=32_561))


@pytest.mark.parametrize("factor", [0.5, 1 - 1e-5, 1 + 1e-5, 2.0])
@pytest.mark.parametrize("field", ["mu", "rho", "epsilon", "replace_one_epsilon"])
def test_numbers_that_the_events_do_not_give_are_refused(bundle, field, factor):
    value = getattr(manifest_of(), field) * factor
    with pytest.raises(IntegrityError, match=f"MANIFEST_CLAIM: .* field '{field}' is not what"):
        verify_bundle(rewritten(bundle, **{field: value}))


def test_a_dropped_event_and_another_delta_are_refused(bundle):
    events = [event_to_dict(event) for event in EVENTS]
    with pytest.raises(IntegrityError, match="field 'mu' is not what its events give"):
        verify_bundle(rewritten(bundle, events=events[:1]))
    with pytest.raises(IntegrityError, match="field 'epsilon' is not what its events give"):
        verify_bundle(rewritten(bundle, events=events, delta=1e-7))


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "none"},
        {"kind": []},
        {"kind": {}},
        {**event_to_dict(EVENTS[0]), "adjacency": []},
        {**event_to_dict(EVENTS[0]), "l2_sensitivity": 1e200},
        {**event_to_dict(EVENTS[0]), "l2_sensitivity": "1"},
        {**event_to_dict(EVENTS[0]), "noise_stddev": 1},
        {**event_to_dict(EVENTS[0]), "n_rows": 1},
        {**event_to_dict(EVENTS[0]), "adjacency": "replace_one"},
    ],
)
def test_impossible_events_are_refused(bundle, event):
    with pytest.raises(IntegrityError, match=r"MANIFEST_CLAIM: file manifest\.json: "):
        verify_bundle(rewritten(bundle, events=[event]))


@pytest.mark.parametrize(
    "fields",
    [
        {"tainted": True},
        {"analysis": "published"},
        {"gate": [{"check": "schema", "passed": False}]},
    ],
)
def test_bundle_that_may_not_be_published_does_not_verify(bundle, fields):
    with pytest.raises(IntegrityError, match="MANIFEST_CLAIM"):
        verify_bundle(rewritten(bundle, **fields))


# --- the store


def test_links_in_the_store_are_refused(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "root").symlink_to(outside)
    with pytest.raises(IntegrityError, match=r"SYMLINK: .* is a symbolic link; a release store"):
        ReleaseStore(tmp_path / "root").publish(REF, FILES, manifest_of())
    for link in ("adult", f".staging-{REF.release_id}"):
        root = tmp_path / f"with-{link}"
        root.mkdir()
        (root / link).symlink_to(outside)
        with pytest.raises(IntegrityError, match="SYMLINK"):
            ReleaseStore(root).publish(REF, FILES, manifest_of())
    root = tmp_path / "with-release"
    (root / "adult").mkdir(parents=True)
    (root / "adult" / REF.release_id).symlink_to(outside)
    with pytest.raises(IntegrityError, match="SYMLINK"):
        ReleaseStore(root).path(REF)
    assert list(outside.iterdir()) == []


def test_source_file_that_is_a_link_is_refused(store, tmp_path):
    (tmp_path / "real").write_bytes(FILES["synthetic.csv"])
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(IntegrityError, match="FILE_NOT_REGULAR: file link is a symbolic link"):
        store.publish(REF, {**FILES, "synthetic.csv": tmp_path / "link"}, manifest_of())
    assert store.clean_staging() == ()


def test_names_cannot_leave_the_store(tmp_path):
    for dataset in ("..", "a/b", "/etc", ""):
        with pytest.raises(ConfigurationError):
            ReleaseRef(dataset=dataset, release_id=REF.release_id)


def test_failure_before_the_rename_leaves_nothing(store, tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(releases.os, "rename", full)
    with pytest.raises(OSError, match="No space"):
        store.publish(REF, FILES, manifest_of())
    monkeypatch.undo()
    assert entries(tmp_path / "releases") == [".lock", "adult"]
    store.publish(REF, FILES, manifest_of())


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_crash_leaves_no_release_and_is_cleaned(store, tmp_path, step):
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(manifest_of().to_bytes())
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from storage.manifest import parse_manifest; from storage.releases import ReleaseStore\n"
        f"os.{step} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "manifest = parse_manifest(Path(sys.argv[2]).read_bytes())\n"
        f"ReleaseStore(Path(sys.argv[1])).publish(manifest.ref, {FILES!r}, manifest)\n"
    )
    root = tmp_path / "releases"
    command = [sys.executable, "-c", program, str(root), str(manifest)]
    done = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (root / "adult" / REF.release_id).exists()
    assert store.clean_staging() == (REF.release_id,)
    assert store.clean_staging() == ()
    verify_bundle(store.publish(REF, FILES, manifest_of()))


def test_cleaning_an_absent_store(store):
    assert store.clean_staging() == ()


def test_one_of_many_publishers_wins(store):
    outcomes = []

    def publish():
        try:
            store.publish(REF, FILES, manifest_of())
            outcomes.append("published")
        except (IntegrityError, InputError) as error:
            outcomes.append(error.code)

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["RELEASE_EXISTS"] * 7 + ["published"]
    verify_bundle(store.path(REF))


def test_a_release_is_found_by_its_id_in_whatever_dataset(store, bundle):
    assert store.find(REF.release_id) == REF
    assert store.find("r-20260101-ffffffff") is None
    assert ReleaseStore(bundle.parent / "nowhere").find(REF.release_id) is None
