import copy
import hashlib
import os
import pickle
import stat

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from failing_disk import no_space
from hypothesis import example, given
from hypothesis import strategies as st

from privacy.errors import ConfigurationError
from storage.keys import keys
from storage.keys.key_store import KeyStore
from storage.keys.keys import PublicKey, SigningKey
from tests.processes import at_once

ED = Ed25519PrivateKey.generate()


def pkcs8(key, encryption=None):
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        encryption or serialization.NoEncryption(),
    )


def spki(key):
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def private_file(path, content, mode=0o600):
    path.write_bytes(content)
    path.chmod(mode)
    return path


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_created_key_is_read_again(tmp_path):
    os.umask(0)
    key = SigningKey.create(tmp_path / "anna.key")
    assert names(tmp_path) == ["anna.key", "anna.pub"]
    assert mode_of(tmp_path / "anna.key") == 0o600
    assert mode_of(tmp_path / "anna.pub") == 0o644
    assert SigningKey.read(tmp_path / "anna.key").public == key.public
    assert PublicKey.read(tmp_path / "anna.pub") == key.public
    assert key.key_id == hashlib.sha256(key.public.raw).hexdigest()[:16]
    assert SigningKey.create(tmp_path / "bert").public != key.public
    assert (tmp_path / "bert.pub").read_bytes().startswith(b"-----BEGIN PUBLIC KEY-----")
    (tmp_path / "anna.key").chmod(0o400)
    assert SigningKey.read(tmp_path / "anna.key").key_id == key.key_id


def test_a_key_needs_a_new_name_and_a_folder(tmp_path, monkeypatch):
    (tmp_path / "old.key").write_text("something")
    for path, message in (
        ("old.key", r"KEY_EXISTS: key .*old\.key exists and is nev"),
        ("anna.pub", "KEY_NAME: expected the file of a private key"),
        ("none/anna.key", r"KEY_UNWRITABLE: .*No such file or directory; c"),
        ("anna.key", "KEY_UNWRITABLE: .* No space left on device"),
    ):
        if path == "anna.key":
            monkeypatch.setattr(keys.os, "fsync", no_space)
        with pytest.raises(ConfigurationError, match=message):
            SigningKey.create(tmp_path / path)
    assert names(tmp_path) == ["old.key"]
    assert (tmp_path / "old.key").read_text() == "something"


def test_no_key_material_is_shown_or_pickled(tmp_path):
    key = SigningKey.create(tmp_path / "anna.key")
    assert repr(key) == str(key) == f"SigningKey(key_id='{key.key_id}')"
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        with pytest.raises(TypeError):
            pickle.dumps(key, protocol=protocol)
    assert copy.copy(key).key_id == key.key_id


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o700])
def test_a_private_key_that_others_can_read_is_refused(tmp_path, monkeypatch, mode):
    path = private_file(tmp_path / "anna.key", pkcs8(ED), mode)
    message = f"KEY_MODE: expected mode 0600 .*anna.key, found {mode:04o}; .*run: chmod 600 .*key"
    with pytest.raises(ConfigurationError, match=message):
        SigningKey.read(path)
    path.chmod(0o600)
    monkeypatch.setattr(keys.os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match=r"KEY_OWNER: expected the private key .*anna\.k"):
        SigningKey.read(path)


@pytest.mark.parametrize("read", [SigningKey.read, PublicKey.read])
def test_links_pipes_and_folders_are_no_keys(tmp_path, read):
    SigningKey.create(tmp_path / "anna.key")
    (tmp_path / "link").symlink_to(tmp_path / "anna.key")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises(
            ConfigurationError, match=f"KEY_NOT_REGULAR: expected a key in .*{name}"
        ):
            read(tmp_path / name)
    with pytest.raises(ConfigurationError, match=r"KEY_MISSING: .*/gone: .*; clustmix keygen"):
        read(tmp_path / "gone")


ELLIPTIC = ec.generate_private_key(ec.SECP256R1())
NO_KEYS = {
    "public": (SigningKey, spki(ED)), "two keys": (SigningKey, pkcs8(ED) * 2),
    "with password": (SigningKey, pkcs8(ED, serialization.BestAvailableEncryption(b"x"))),
    "elliptic curve": (SigningKey, pkcs8(ELLIPTIC)),
    "too large": (SigningKey, pkcs8(ED) + b"\n" * 10_000), "private": (PublicKey, pkcs8(ED)),
    "truncated": (PublicKey, spki(ED)[:-30]), "two public keys": (PublicKey, spki(ED) * 2),
    "public elliptic curve": (PublicKey, spki(ELLIPTIC)),
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_KEYS)
def test_what_is_no_key_is_refused_and_not_repeated(tmp_path, kind):
    form, content = NO_KEYS[kind]
    path = private_file(tmp_path / "anna.key", content)
    with pytest.raises(ConfigurationError, match=r"KEY_INVALID: expected .*, found something") as e:
        form.read(path)
    assert e.value.__context__ is None
    body = b"".join(pkcs8(ED).splitlines()[1:-1])
    assert body[:20].decode() not in str(e.value)


@example(b"")
@given(
    st.binary(max_size=200)
    | st.builds(
        lambda content, i, byte: content[:i] + bytes([byte]) + content[i + 1 :],
        st.sampled_from([pkcs8(ED), spki(ED)]),
        st.integers(0, 120),
        st.integers(0, 255),
    )
)
def test_hostile_files_are_refused_or_are_keys(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "hostile"
    folder.mkdir(exist_ok=True)
    path = private_file(folder / "x", content)
    for read in (SigningKey.read, PublicKey.read):
        code = "KEY_INVALID"
        try:
            assert len(read(path).key_id) == 16
        except ConfigurationError as error:
            code = error.code
        assert code == "KEY_INVALID"


@pytest.fixture
def store(tmp_path):
    return KeyStore(tmp_path / "keys")


def test_keys_are_made_once(store, tmp_path):
    folder = tmp_path / "keys"
    landing = store.landing_secret()
    assert names(folder) == ["landing.key"]
    key, secret = store.pipeline(), store.ledger_secret()
    assert names(folder) == ["landing.key", "ledger.key", "pipeline.key", "pipeline.pub"]
    assert mode_of(folder) == 0o700
    assert [mode_of(folder / f"{name}.key") for name in ("ledger", "landing")] == [0o600] * 2
    assert len(secret) == len(landing) == 32
    again = KeyStore(folder)
    folder.chmod(0o755)
    for make in (again.pipeline, again.ledger_secret, again.landing_secret):
        with pytest.raises(ConfigurationError, match="DIRECTORY_MODE"):
            make()
    folder.chmod(0o700)
    assert again.pipeline().public == key.public == PublicKey.read(folder / "pipeline.pub")
    assert (again.ledger_secret(), again.landing_secret()) == (secret, landing)
    assert len({secret, landing, KeyStore(tmp_path / "other").ledger_secret()}) == 3
    assert keys.read_secret(folder / "landing.key") == landing
    with pytest.raises(ConfigurationError, match="KEY_MISSING"):
        keys.read_secret(tmp_path / "gone")


def test_a_lost_or_replaced_key_is_noticed(store, tmp_path):
    folder = tmp_path / "keys"
    store.pipeline()
    (folder / "pipeline.pub").unlink()
    public = store.pipeline().public  # a crash between the two files: the second is made again
    assert PublicKey.read(folder / "pipeline.pub") == public
    SigningKey.create(tmp_path / "other.key")
    (tmp_path / "other.pub").replace(folder / "pipeline.pub")
    with pytest.raises(ConfigurationError, match=r"KEY_MISMATCH: expected the public key of .*res"):
        store.pipeline()
    (folder / "pipeline.key").unlink()
    with pytest.raises(ConfigurationError, match=r"KEY_LOST: expected the private key of .* resto"):
        store.pipeline()
    assert names(folder) == ["pipeline.pub"]


def test_a_damaged_secret_is_refused_and_not_repeated(store, tmp_path):
    for name, secret in (("ledger", store.ledger_secret), ("landing", store.landing_secret)):
        secret()
        path = private_file(tmp_path / "keys" / f"{name}.key", b"hunter2")
        with pytest.raises(ConfigurationError, match="KEY_INVALID: expected 32 bytes, fou") as e:
            secret()
        assert "hunter2" not in str(e.value)
        path.chmod(0o644)
        with pytest.raises(ConfigurationError, match="KEY_MODE"):
            secret()


def test_keys_of_officers_and_retired_ones_are_found_by_their_folders(store, tmp_path):
    assert store.officers() == store.pipeline_public() == ()
    folder = tmp_path / "keys"
    assert not folder.exists()
    old = store.pipeline().public
    for name in ("officers", "retired"):
        (folder / name).mkdir()
    (folder / "pipeline.key").unlink()
    (folder / "pipeline.pub").rename(folder / "retired" / "2024.pub")
    new = store.pipeline().public
    new.write(folder / "retired" / "2025.pub")
    assert store.pipeline_public() == (new, old)
    bert, anna = (SigningKey.create(tmp_path / f"{name}.key") for name in ("bert", "anna"))
    for name in ("bert", "anna"):
        (tmp_path / f"{name}.pub").rename(folder / "officers" / f"{name}.pub")
    (folder / "officers" / ".swp").touch()
    anna.public.write(folder / "officers" / "carla.pub")
    assert store.officers() == (anna.public, bert.public)
    store.require_officer(anna.key_id)


def test_a_folder_of_keys_holds_public_keys_alone(store, tmp_path):
    stranger = store.pipeline().key_id
    message = f"NOT_AN_OFFICER: .* in {tmp_path}/keys/officers, found {stranger}; its adminis"
    with pytest.raises(ConfigurationError, match=message):
        store.require_officer(stranger)
    for name, read in (("retired", store.pipeline_public), ("officers", store.officers)):
        folder = tmp_path / "keys" / name
        folder.mkdir()
        (folder / "old.key").touch()
        with pytest.raises(ConfigurationError, match="KEY_INVALID: expected only public k"):
            read()
        (folder / "old.key").unlink()
        folder.rmdir()
        folder.symlink_to(tmp_path)
        with pytest.raises(ConfigurationError, match="NOT_A_DIRECTORY: expected a folder of"):
            read()


def test_first_use_by_several_processes_makes_one_key(tmp_path):
    program = (
        "import sys; from pathlib import Path; from storage.keys.key_store import KeyStore\n"
        "store = KeyStore(Path(sys.argv[1]))\n"
        "sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()\n"
        "sys.stdout.write(store.pipeline().key_id + store.ledger_secret().hex())\n"
    )
    assert len(set(at_once(program, tmp_path / "keys", n=4))) == 1
    assert names(tmp_path / "keys") == ["ledger.key", "pipeline.key", "pipeline.pub"]
