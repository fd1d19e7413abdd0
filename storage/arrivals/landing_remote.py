"""A landing place in a remote store through fsspec: S3 and compatible stores.

Address and credentials come from the environment, as for any client of the store
(``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_PROFILE``). They need
the rights to list, get, put and delete below the prefix.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from privacy.errors import ClustMixError, refusals

refusal = refusals(__package__)
_BLOCK_BYTES = 2**23
_VERSION_KEYS = ("ETag", "VersionId", "LastModified", "mtime", "created", "size")
# A store that does not answer must not delay the other work of the watcher.
_S3_OPTIONS = {
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 60, "retries": {"max_attempts": 1}}
}


class RemotePlace:
    """A prefix of a remote store, as ``s3://bucket/prefix``; methods as of `LocalPlace`."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        protocol = url.partition("://")[0]
        options = _S3_OPTIONS if protocol in ("s3", "s3a") else {}
        found: Any = None
        try:
            # A chain of stores ("::") would be a cache of rows somewhere on the disk.
            found = None if "::" in url else url_to_fs(url, use_listings_cache=False, **options)
        except (ImportError, ValueError, TypeError):
            pass  # the message holds the address, which may hold a password
        if found is None:
            raise refusal("LANDING_UNSUPPORTED", found=protocol[:20])
        self._store, self._root = found

    def names(self) -> list[str]:
        """Return the names that lie directly below the prefix."""
        with _reaching():
            try:
                listed = self._store.ls(self._root, detail=True)
            except FileNotFoundError:
                # Without the bucket it is an error, without an object of the prefix it is not.
                if not self._store.exists(self._root.split("/")[0] or "/"):
                    raise refusal("LANDING_UNREADABLE store") from None
                listed = []
            return [
                str(item["name"]).rpartition("/")[2] for item in listed if item["type"] == "file"
            ]

    def chunks(self, name: str) -> Generator[bytes, None, None]:
        """Read an object from its beginning."""
        with _reaching():
            if self.version(name) is None:
                raise refusal("ARRIVAL_INCOMPLETE object")
            with self._store.open(self._at(name), "rb", block_size=_BLOCK_BYTES) as handle:
                while chunk := handle.read(_BLOCK_BYTES):
                    yield chunk

    def version(self, name: str) -> str | None:
        """Return the store's tags of content and time of an object, None if there is none."""
        with _reaching():
            self._store.invalidate_cache()
            try:
                state = self._store.info(self._at(name))
            except FileNotFoundError:
                return None
            if state["type"] != "file":
                return None
            return "-".join(str(state.get(key, "")) for key in _VERSION_KEYS)

    def modified(self, name: str) -> datetime | None:
        """Return the time of an object, None if it is gone."""
        with _reaching():
            try:
                found: datetime = self._store.modified(self._at(name))
            except FileNotFoundError:
                return None
            return found if found.tzinfo else found.replace(tzinfo=UTC)

    def remove(self, name: str) -> None:
        """Delete an object."""
        with _reaching():
            self._store.rm_file(self._at(name))

    def rename(self, name: str, new: str) -> None:
        """Copy an object and delete the first."""
        with _reaching():
            self._store.mv(self._at(name), self._at(new))

    def remove_empty(self, folder: str) -> None:
        """Do nothing: a store has no folders."""

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"


@contextmanager
def _reaching() -> Iterator[None]:
    """Replace errors of the store, which may hold addresses and keys, by our own."""
    try:
        yield
    except ClustMixError:
        raise
    except Exception:  # client libraries have no common base class
        raise refusal("LANDING_UNREADABLE store") from None
