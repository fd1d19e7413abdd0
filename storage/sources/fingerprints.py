"""State of the files of a source at one moment, hashed in parallel."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

N_HASHED_TOGETHER = 16
"""Groups of files that are hashed in parallel. A constant, as the number of files is private."""


Mapper = Callable[[Callable[..., Any], Iterable[Any]], list[Any]]
"""The method ``map`` of an executor: the results of a function for each item, in order."""

FileState = tuple[str, int, int, int]
"""Name, size, modification time and inode of a file."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """State of a source at one moment, for comparison alone.

    It covers the names, sizes, modification times, inodes and bytes of all files. It is private,
    because the digest of a small file can be guessed, and so its repr is empty.

    Notes
    -----
    A source is hashed twice: for the key of the request, and after its last row was read. In
    between only the state of the file system is compared. That is a hint: a writer can set the time
    of a file back, or write through memory without changing the time. The second hash proves that
    the bytes that were read are those of the key.
    """

    _files: tuple[FileState, ...] = field(repr=False)
    _digests: tuple[bytes, ...] = field(repr=False)

    def content_sha256(self, cells: Sequence[object] = ()) -> str:
        """Return a digest of all files in the order of reading.

        It includes the `cells` that are names of folders: partition keys, or labels of images.
        """
        whole = hashlib.sha256(b"".join(self._digests))
        if cells:
            whole.update(json.dumps(cells).encode())
        return whole.hexdigest()

    def is_of(self, files: tuple[FileState, ...]) -> bool:
        """Compare names, sizes, times and inodes; the bytes may differ."""
        return self._files == files


def states_of(files: Iterable[Path]) -> tuple[FileState, ...]:
    """Return the state of each file, which must be readable."""
    states = list[FileState]()
    for file in files:
        # Opening a file makes a network file system ask its server.
        with file.open("rb") as handle:
            status = os.fstat(handle.fileno())
        states.append((str(file), status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(states)


def fingerprint_of(states: Sequence[FileState], map: Mapper | None = None) -> Fingerprint | None:
    """Hash the files with `map`, or in this process; None if one cannot be read."""
    paths = [Path(name).absolute() for name, *_ in states]
    groups = [tuple(paths[start::N_HASHED_TOGETHER]) for start in range(N_HASHED_TOGETHER)]
    digests = dict[Path, bytes]()
    hashed = [digests_of(group) for group in groups] if map is None else map(digests_of, groups)
    for group, found in zip(groups, hashed, strict=True):
        if found is None:
            return None
        digests.update(zip(group, found, strict=True))
    return Fingerprint(tuple(states), tuple(digests[path] for path in paths))


def digests_of(files: tuple[Path, ...]) -> tuple[bytes, ...] | None:
    """Return the SHA-256 of each file, None if one cannot be read. It is private."""
    try:
        return tuple(_digest_of(file) for file in files)
    except OSError:
        return None


def _digest_of(file: Path) -> bytes:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").digest()
