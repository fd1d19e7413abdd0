"""Ed25519 keys as PEM files, and the files of all keys.

A private key is a PKCS8 file without a password: anybody who can read it can sign. A public key is
a SubjectPublicKeyInfo file. Files are written whole and never replaced, and a private one is read
only if its modes keep others from reading it. No message, repr or log holds key material.
"""

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import StringConstraints

from privacy.errors import ConfigurationError, IntegrityError, refusals
from storage.files.private import folder_locked, open_regular, replace_durably

refusal = refusals(__package__)

SECRET_BYTES = 32
"""Length of the key of a digest."""

_MAX_KEY_BYTES = 10_000


def read_key_file(path: Path, *, private: bool) -> bytes:
    """Read a regular file of at most 10,000 bytes; links are refused.

    A private file must belong to this user and have mode 0600 or 0400. The ConfigurationError is
    ``KEY_MISSING``, ``KEY_NOT_REGULAR``, ``KEY_OWNER``, ``KEY_MODE`` or ``KEY_INVALID``.
    """
    try:
        descriptor = open_regular(path)
    except IntegrityError as error:
        code = error.code.replace("FILE", "KEY")
        hint = "; clustmix keygen FILE makes a person's key" if code == "KEY_MISSING" else ""
        text = f"expected a key in {path}: {error.message}{hint}"
        raise ConfigurationError(code, text) from None
    with os.fdopen(descriptor, "rb") as handle:
        status = os.fstat(handle.fileno())
        if private and status.st_uid != os.geteuid():
            raise refusal("KEY_OWNER", path=path)
        mode = stat.S_IMODE(status.st_mode)
        if private and mode not in (0o600, 0o400):
            raise refusal("KEY_MODE", path=path, mode=mode)
        content = handle.read(_MAX_KEY_BYTES + 1)
    if len(content) > _MAX_KEY_BYTES:
        raise refusal("KEY_INVALID", path=path, expected=f"at most {_MAX_KEY_BYTES} bytes")
    return content


def write_key_file(path: Path, content: bytes, *, mode: int) -> None:
    """Write a new file, whole and durable (``KEY_EXISTS``, ``KEY_UNWRITABLE``)."""
    try:
        with folder_locked(path.parent):
            if os.path.lexists(path):
                raise refusal("KEY_EXISTS", path=path)
            # Appears all at once and leaves no second name of a key behind, as a link would.
            replace_durably(path, content, mode=mode)
    except OSError as error:
        raise refusal("KEY_UNWRITABLE", path=path, reason=error.strerror) from None


def read_secret(path: Path) -> bytes:
    """Read a private file of 32 random bytes; errors are those of `read_key_file`."""
    secret = read_key_file(path, private=True)
    if len(secret) != SECRET_BYTES:
        raise refusal("KEY_INVALID", path=path, expected=f"{SECRET_BYTES} bytes")
    return secret


def make_secret(path: Path) -> bytes:
    """Return the 32 random bytes of a file, created at the first call."""
    if not os.path.lexists(path):
        write_if_first(
            lambda place: write_key_file(place, os.urandom(SECRET_BYTES), mode=0o600), path
        )
    return read_secret(path)


def write_if_first(write: Callable[[Path], None], path: Path) -> None:
    """Write a key that other processes may write at the same time; the first one stays."""
    try:
        write(path)
    except ConfigurationError as error:
        if error.code != "KEY_EXISTS":
            raise


PUBLIC_SUFFIX = ".pub"

KeyId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{16}$")]
"""First 16 hexadecimal digits of the SHA-256 of the 32 bytes of a public key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """An Ed25519 public key of 32 bytes (RFC 8032, section 5.1.5)."""

    raw: bytes = field(repr=False)

    def __repr__(self) -> str:
        return f"PublicKey(key_id={self.key_id!r})"

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read an Ed25519 public key (SubjectPublicKeyInfo); an error names the file alone."""
        return cls(raw=_load(path, private=False).public_bytes_raw())

    @property
    def key_id(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the key."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Return whether `signature`, of 64 bytes, is that of this key over `message`."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def write(self, path: Path) -> None:
        """Write the key to a new PEM file (SubjectPublicKeyInfo) of mode 0644."""
        content = Ed25519PublicKey.from_public_bytes(self.raw).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        write_key_file(path, content, mode=0o644)


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """An Ed25519 private key, which can neither be shown nor pickled.

    Privacy
    -------
    It allows to sign releases in the name of this installation, or to approve them.
    """

    private: Ed25519PrivateKey = field(repr=False)

    def __repr__(self) -> str:
        return f"SigningKey(key_id={self.key_id!r})"

    @classmethod
    def create(cls, path: Path) -> Self:
        """Create a key, and write it and its public key to two new files.

        The private key has mode 0600; the public one beside it has the suffix ``.pub``. It is a
        ConfigurationError if one exists, the name ends in ``.pub``, or the folder is not writable.

        Privacy
        -------
        The key comes from the random bytes of the operating system. It takes no seed.
        """
        beside = public_path(path)
        if os.path.lexists(beside):
            raise refusal("KEY_EXISTS", path=beside)
        key = cls(private=Ed25519PrivateKey.generate())
        key.write(path)
        key.public.write(beside)
        return key

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a PKCS8 private key, ours, of mode 0600 or 0400; an error names the file alone."""
        return cls(private=_load(path, private=True))

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

    def write(self, path: Path) -> None:
        """Write the key to a new file of mode 0600 (ConfigurationError)."""
        content = self.private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        write_key_file(path, content, mode=0o600)


def _load(path: Path, *, private: bool) -> Any:
    content = read_key_file(path, private=private)
    key: object = None
    try:
        key = (
            serialization.load_pem_private_key(content, password=None)
            if private
            else serialization.load_pem_public_key(content)
        )
    except (ValueError, TypeError, UnsupportedAlgorithm):
        pass  # the reason may quote content: raised below without a context
    kind, expected = (
        (Ed25519PrivateKey, "private key in PEM form without a password (PKCS8)")
        if private
        else (Ed25519PublicKey, "public key in PEM form (BEGIN PUBLIC KEY)")
    )
    # The library reads the first block of a file and ignores a second one.
    if not isinstance(key, kind) or content.count(b"-----BEGIN ") != 1:
        raise refusal("KEY_INVALID", path=path, expected=f"one Ed25519 {expected}")
    return key


def public_path(path: Path) -> Path:
    """Return the path of the public key beside a private one (``KEY_NAME`` if named ``.pub``)."""
    if path.suffix == PUBLIC_SUFFIX:
        raise refusal("KEY_NAME", path=path)
    return path.with_suffix(PUBLIC_SUFFIX)
