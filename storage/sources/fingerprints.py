"""What the files of a source looked like at one moment, hashed on as many workers as there are."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from storage.sources.parquet_files import hive_values

T = TypeVar("T")
R = TypeVar("R")

N_HASHED_TOGETHER = 16
"""Groups of files that are hashed side by side. A constant, as the number of files is private."""


class Mapper(Protocol):
    """The method ``map`` of an executor: a function of each item, on whatever workers there are."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return ``function(item)`` for each item, in order."""


FileState = tuple[str, int, int, int]
"""Name, size, modification time and inode of a file."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a source looked like at one moment; can be compared and does nothing else.

    It covers the names, sizes, modification times, inodes and bytes of all files. Its content is
    private, because the digest of a small file can be guessed, and therefore not in its repr.

    Notes
    -----
    A source is hashed twice: for the key of the request and after its last row was read. Between
    the two only what the file system says of the files is compared, which is a hint and no more:
    a writer can set the time of a file back, and one that has it mapped into memory need not change
    the time at all. That no other bytes were read than those of the key rests on the second hash.
    """

    _files: tuple[FileState, ...] = field(repr=False)
    _digests: tuple[bytes, ...] = field(repr=False)

    def content_sha256(self, folder: Path | None = None, *, labels: Sequence[str] = ()) -> str:
        """Return a digest of all files, in the order in which they are read.

        Below `folder`, that of the source, the names of partition folders are content, which is
        digested with the bytes; so are `labels` that folders of images tell.
        """
        whole = hashlib.sha256(b"".join(self._digests))
        if folder is not None:
            partitions = [hive_values(Path(name).relative_to(folder)) for name, *_ in self._files]
            if any(partitions):
                whole.update(json.dumps([list(keys.items()) for keys in partitions]).encode())
        if labels:
            whole.update(json.dumps(labels).encode())
        return whole.hexdigest()

    def is_of(self, files: tuple[FileState, ...]) -> bool:
        """Return whether names, sizes, times and inodes are these; the bytes may differ."""
        return self._files == files


def states_of(files: Iterable[Path]) -> tuple[FileState, ...]:
    """Return what the file system says of each file, all of which can be opened."""
    states = list[FileState]()
    for file in files:
        # Opened, not only asked for: a network file system then asks its server.
        with file.open("rb") as handle:
            status = os.fstat(handle.fileno())
        states.append((str(file), status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(states)


def fingerprint_of(states: Sequence[FileState], map: Mapper | None = None) -> Fingerprint | None:
    """Hash the files of these states, where `map` runs it or here; None if one cannot be read."""
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
    """Return the SHA-256 of each file, None if one cannot be read. Private: it tests a guess."""
    try:
        return tuple(_digest_of(file) for file in files)
    except OSError:
        return None


def _digest_of(file: Path) -> bytes:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").digest()
