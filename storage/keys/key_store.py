"""The folder of an installation's keys, and of the public keys of its officers."""

import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy.errors import refusals
from storage.files.private import ensure_private_directory
from storage.keys.keys import (
    PUBLIC_SUFFIX,
    PublicKey,
    SigningKey,
    make_secret,
    public_path,
    write_if_first,
)

refusal = refusals(__package__)


class KeyStore:
    """The keys of an installation.

    ``pipeline.key`` and ``pipeline.pub`` sign releases. ``ledger.key`` and ``landing.key`` hold 32
    random bytes each: the keys of request digests and of arrivals. People put public keys into
    ``officers/NAME.pub``, and into ``retired/NAME.pub`` each ``pipeline.pub`` that was replaced.
    The first key creates the folder, with mode 0700. A file that is damaged or open to others is a
    ConfigurationError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pipeline(self) -> SigningKey:
        """Return the key that signs releases, created at the first use.

        Processes that call it at once for the first time get the same key. It is a
        ConfigurationError if the private key is lost, or the public key is not its own.
        """
        path = ensure_private_directory(self._folder) / "pipeline.key"
        beside = public_path(path)
        # The private key is written first, so that no process leaves a public key alone.
        if os.path.lexists(beside) and not os.path.lexists(path):
            raise refusal("KEY_LOST", beside=beside, path=path)
        if not os.path.lexists(path):
            write_if_first(SigningKey(private=Ed25519PrivateKey.generate()).write, path)
        key = SigningKey.read(path)
        if not os.path.lexists(beside):
            write_if_first(key.public.write, beside)
        if PublicKey.read(beside) != key.public:
            raise refusal("KEY_MISMATCH", path=path, beside=beside)
        return key

    def ledger_secret(self) -> bytes:
        """Return the 32 bytes that key the digests of requests, created at the first use.

        Privacy
        -------
        They allow tests of guesses about the content of a small source.
        """
        return make_secret(ensure_private_directory(self._folder) / "ledger.key")

    def landing_secret(self) -> bytes:
        """Return the 32 bytes that key the announcements of arrivals, created at the first use.

        Privacy
        -------
        They allow releases of any table, within the budget: only the sender gets them.
        """
        return make_secret(ensure_private_directory(self._folder) / "landing.key")

    def pipeline_public(self) -> tuple[PublicKey, ...]:
        """Return the present public key, if there is one, then the retired ones."""
        path = self._folder / "pipeline.pub"
        present = (PublicKey.read(path),) if os.path.lexists(path) else ()
        return tuple(dict.fromkeys((*present, *_keys_in(self._folder / "retired"))))

    def officers(self) -> tuple[PublicKey, ...]:
        """Return the public keys of the people who may approve."""
        return _keys_in(self._folder / "officers")

    def require_officer(self, key_id: str) -> None:
        """Refuse the key of anybody else than an officer (``NOT_AN_OFFICER``)."""
        if key_id not in {officer.key_id for officer in self.officers()}:
            raise refusal("NOT_AN_OFFICER", folder=self._folder / "officers", key_id=key_id)


def read_public_keys(paths: Iterable[Path]) -> tuple[PublicKey, ...]:
    """Read public keys: PEM files, or folders of files ``NAME.pub`` (ConfigurationError)."""
    keys: list[PublicKey] = []
    for path in paths:
        files = sorted(path.glob(f"[!.]*{PUBLIC_SUFFIX}")) if path.is_dir() else [path]
        if not files:
            raise refusal("NO_PUBLIC_KEY", path=path)
        keys += map(PublicKey.read, files)
    return tuple(dict.fromkeys(keys))


def _keys_in(folder: Path) -> tuple[PublicKey, ...]:
    """Return the public keys in a folder; nothing else may be in it."""
    if not os.path.lexists(folder):
        return ()
    if folder.is_symlink() or not folder.is_dir():
        raise refusal("NOT_A_DIRECTORY", folder=folder)
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in paths:
        if path.suffix != PUBLIC_SUFFIX:
            raise refusal("KEY_INVALID", path=path, expected="only public keys NAME.pub here")
    return tuple(dict.fromkeys(map(PublicKey.read, paths)))
