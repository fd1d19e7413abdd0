"""Ed25519 keys as PEM files, and the folder where an installation keeps its own.

A private key is a PKCS8 file without a password, readable by its owner alone; whoever can read it
can sign. A public key is a SubjectPublicKeyInfo file. No message, repr or log holds key material.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import StringConstraints

from privacy.errors import ConfigurationError
from storage.files.private import ensure_private_directory
from storage.keys.key_files import (
    key_exists,
    key_invalid,
    make_secret,
    read_key_file,
    write_if_first,
    write_key_file,
)

PUBLIC_SUFFIX = ".pub"

KeyId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{16}$")]
"""First 16 hexadecimal digits of the SHA-256 of the 32 bytes of a public key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """An Ed25519 public key.

    Parameters
    ----------
    raw : bytes
        Its 32 bytes (RFC 8032, section 5.1.5).

    Raises
    ------
    ConfigurationError
        If there are not 32 bytes.
    """

    raw: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse what is no key."""
        if not isinstance(self.raw, bytes) or len(self.raw) != 32:
            raise ConfigurationError("KEY_INVALID", "expected the 32 bytes of a public key")

    def __repr__(self) -> str:
        return f"PublicKey(key_id={self.key_id!r})"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a SubjectPublicKeyInfo PEM file.

        Parameters
        ----------
        path : Path
            A regular file, not a link.

        Returns
        -------
        PublicKey
            The key.

        Raises
        ------
        ConfigurationError
            If the file is missing, not regular, or does not hold one Ed25519 public key; names
            the file, never its content.
        """
        content = read_key_file(path, private=False)
        key: object = None
        try:
            key = serialization.load_pem_public_key(content)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            pass  # the reason may quote content: raised below without a context
        if not isinstance(key, Ed25519PublicKey) or not _holds_one_key(content):
            raise key_invalid(path, "one Ed25519 public key in PEM form (BEGIN PUBLIC KEY)")
        return cls(raw=key.public_bytes_raw())

    @property
    def key_id(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the key."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Return whether a signature of 64 bytes is one of this key over `message`."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def to_pem(self) -> bytes:
        """Return the key as a SubjectPublicKeyInfo PEM file."""
        return Ed25519PublicKey.from_public_bytes(self.raw).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def write(self, path: Path) -> None:
        """Write the key to a new file of mode 0644.

        Raises
        ------
        ConfigurationError
            If the file exists or cannot be written.
        """
        write_key_file(path, self.to_pem(), mode=0o644)


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """An Ed25519 private key.

    Parameters
    ----------
    private : Ed25519PrivateKey
        The key itself, which can neither be shown nor pickled.

    Privacy
    -------
    Whoever has it can sign releases in the name of this installation, or approve them.
    """

    private: Ed25519PrivateKey = field(repr=False)

    def __repr__(self) -> str:
        return f"SigningKey(key_id={self.key_id!r})"

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a key and write it to two new files: itself, and its public part beside it.

        Parameters
        ----------
        path : Path
            File of the private key, mode 0600; must not exist. The public key gets the suffix
            ``.pub`` in place of the one of `path`.

        Returns
        -------
        SigningKey
            The key, forced to the disk.

        Raises
        ------
        ConfigurationError
            If one of the files exists, the name ends in ``.pub``, or the folder cannot be
            written to.

        Privacy
        -------
        The key is made of bytes of the operating system. No seed is taken.
        """
        public_path = _public_path(path)
        if os.path.lexists(public_path):
            raise key_exists(public_path)
        key = cls(private=Ed25519PrivateKey.generate())
        key._write(path)
        key.public.write(public_path)
        return key

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a PKCS8 PEM file without a password.

        Parameters
        ----------
        path : Path
            A regular file of this user, not a link, with mode 0600 or 0400.

        Returns
        -------
        SigningKey
            The key.

        Raises
        ------
        ConfigurationError
            If the file is missing, not regular, open to others, of another user, or does not
            hold one Ed25519 private key; names the file, never its content.
        """
        content = read_key_file(path, private=True)
        key: object = None
        try:
            key = serialization.load_pem_private_key(content, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            pass  # as above
        if not isinstance(key, Ed25519PrivateKey) or not _holds_one_key(content):
            raise key_invalid(
                path, "one Ed25519 private key in PEM form without a password (PKCS8)"
            )
        return cls(private=key)

    @property
    def public(self) -> PublicKey:
        """The public key, which may be given to anybody."""
        return PublicKey(raw=self.private.public_key().public_bytes_raw())

    @property
    def key_id(self) -> str:
        """Id of the public key."""
        return self.public.key_id

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message`, 64 bytes, the same at every call (RFC 8032)."""
        return self.private.sign(message)

    def _write(self, path: Path) -> None:
        content = self.private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        write_key_file(path, content, mode=0o600)


class KeyStore:
    """The keys of an installation.

    ``pipeline.key`` and ``pipeline.pub`` sign releases; ``ledger.key`` and ``landing.key`` hold 32
    random bytes each, the keys of request digests and of arrivals; ``officers/NAME.pub`` and
    ``retired/NAME.pub``, which were ``pipeline.pub`` before, are put there by people.

    Parameters
    ----------
    folder : Path
        Created with mode 0700 when the first key is made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        return f"KeyStore({str(self._folder)!r})"

    def pipeline(self) -> SigningKey:
        """Return the key that signs releases, made at the first use.

        Any number of processes may call it for the first time at once: all get the same key.

        Raises
        ------
        ConfigurationError
            If a file is damaged or open to others, if the public key is not that of the private
            one, or if the public key is there and the private one is lost.
        """
        path = ensure_private_directory(self._folder) / "pipeline.key"
        public_path = _public_path(path)
        # The private key is written first: a public one alone was not left by another process.
        if os.path.lexists(public_path) and not os.path.lexists(path):
            raise ConfigurationError(
                "KEY_LOST",
                f"expected the private key of {public_path} in {path}, found none; restore it, or "
                "move the public key away, to the folder 'retired' beside it, to begin with a new "
                "key that readers have to be told of",
            )
        if not os.path.lexists(path):
            write_if_first(SigningKey(private=Ed25519PrivateKey.generate())._write, path)
        key = SigningKey.read(path)
        if not os.path.lexists(public_path):
            write_if_first(key.public.write, public_path)
        if PublicKey.read(public_path) != key.public:
            raise ConfigurationError(
                "KEY_MISMATCH",
                f"expected the public key of {path} in {public_path}, found another; restore the "
                "one that was replaced",
            )
        return key

    def ledger_secret(self) -> bytes:
        """Return the 32 bytes that key the digests of requests, made at the first use.

        Raises
        ------
        ConfigurationError
            If the file does not hold 32 bytes, or is open to others.

        Privacy
        -------
        Whoever has them can test guesses of the content of a small source.
        """
        return make_secret(ensure_private_directory(self._folder) / "ledger.key")

    def landing_secret(self) -> bytes:
        """Return the 32 bytes that key the announcements of arrivals, made at the first use.

        Raises
        ------
        ConfigurationError
            If the file does not hold 32 bytes, or is open to others.

        Privacy
        -------
        Whoever has them can start releases of a table of their own, within the budget. They are
        given to the feeder of the landing place and to nobody else.
        """
        return make_secret(ensure_private_directory(self._folder) / "landing.key")

    def pipeline_public(self) -> tuple[PublicKey, ...]:
        """Return the public keys of the pipeline: the present one, then those that were retired.

        Empty before the first use. A retired key signs nothing new; bundles that it signed go on
        being read.

        Raises
        ------
        ConfigurationError
            As `officers`, about the folder of retired keys.
        """
        path = self._folder / "pipeline.pub"
        present = (PublicKey.read(path),) if os.path.lexists(path) else ()
        return _without_repeats((*present, *_keys_in(self._folder / "retired")))

    def officers(self) -> tuple[PublicKey, ...]:
        """Return the keys of those who may approve, in the order of their file names.

        Raises
        ------
        ConfigurationError
            If the folder is a link or a file, holds a file that is not ``NAME.pub``, or a file
            does not hold a public key.
        """
        return _keys_in(self._folder / "officers")

    def require_officer(self, key_id: str) -> None:
        """Refuse a key that is none of an officer.

        Raises
        ------
        ConfigurationError
            ``NOT_AN_OFFICER``, or as `officers`.
        """
        if key_id not in {officer.key_id for officer in self.officers()}:
            raise ConfigurationError(
                "NOT_AN_OFFICER",
                f"expected a key whose public half is in {self._folder / 'officers'}, found "
                f"{key_id}; its administrator can put it there",
            )

    def trusted(self) -> tuple[PublicKey, ...]:
        """Return the public keys of the pipeline and of the officers; makes nothing."""
        return _without_repeats((*self.pipeline_public(), *self.officers()))


def read_public_keys(paths: Iterable[Path]) -> tuple[PublicKey, ...]:
    """Read the public keys that a reader was given.

    Parameters
    ----------
    paths : iterable of Path
        PEM files, or folders of files ``NAME.pub``; folders inside them are not searched.

    Returns
    -------
    tuple of PublicKey
        Each key once, in the order of `paths`.

    Raises
    ------
    ConfigurationError
        If a file is missing or does not hold a public key, or a folder holds none.
    """
    keys: list[PublicKey] = []
    for path in paths:
        files = sorted(path.glob(f"[!.]*{PUBLIC_SUFFIX}")) if path.is_dir() else [path]
        if not files:
            raise ConfigurationError(
                "NO_PUBLIC_KEY",
                f"expected files NAME{PUBLIC_SUFFIX} in folder {path}, found none; name the "
                "public keys that you were given",
            )
        keys += map(PublicKey.read, files)
    return _without_repeats(keys)


def _keys_in(folder: Path) -> tuple[PublicKey, ...]:
    """Return the public keys that people put into a folder; nothing else may be in it."""
    if not os.path.lexists(folder):
        return ()
    if folder.is_symlink() or not folder.is_dir():
        raise ConfigurationError(
            "NOT_A_DIRECTORY",
            f"expected a folder of public keys at {folder}, found a file or a symbolic link; "
            "remove it",
        )
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in paths:
        if path.suffix != PUBLIC_SUFFIX:
            raise key_invalid(path, f"only public keys NAME{PUBLIC_SUFFIX} in this folder")
    return _without_repeats(PublicKey.read(path) for path in paths)


def _without_repeats(keys: Iterable[PublicKey]) -> tuple[PublicKey, ...]:
    return tuple(dict.fromkeys(keys))


def _holds_one_key(content: bytes) -> bool:
    # A reader takes the first block of a file: a second one would be ignored without a word.
    return content.count(b"-----BEGIN ") == 1


def _public_path(path: Path) -> Path:
    if path.suffix == PUBLIC_SUFFIX:
        raise ConfigurationError(
            "KEY_NAME",
            f"expected the file of a private key, found {path}; choose a name that does not end "
            f"in {PUBLIC_SUFFIX}",
        )
    return path.with_suffix(PUBLIC_SUFFIX)
