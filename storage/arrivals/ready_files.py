"""The ready file: the announcement of a table in the landing place by its sender.

The table is one file ``NAME``, or the files of one folder ``NAME``. The sender writes it as
``NAME.part`` and renames it when complete; then ``NAME.ready.json`` appears beside it, all at once.
That file lists every file of the table with its digest, and carries an HMAC under a key that sender
and installation share. ``clustmix ready`` or, without it, ``examples/announce.py`` writes it.

On an S3-compatible store the table is uploaded first and the ready file last; there every upload
appears all at once, so that nothing is renamed.
"""

import hashlib
import hmac
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, ValidationError

from privacy.errors import ConfigurationError, InputError, IntegrityError, refusals
from storage.files.documents import (
    DatasetName,
    FileDigest,
    Record,
    Sha256,
    canonical_json,
    strict_json,
)
from storage.files.private import open_regular, replace_durably
from storage.files.refs import check_name

refusal = refusals(__package__)
READY_SUFFIX = ".ready.json"
MAX_READY_BYTES = 2_000_000
"""Largest ready file; `MAX_FILES` names of ordinary length fit."""

MAX_FILES = 10_000
"""Most files of one table."""

_MAC_CONTEXT = b"clustmix-arrival-v1\0"
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
# Enough for key=value folders with escaped values; no blank, quote, control character or separator.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+%,@-]{0,127}")
_MAX_DEPTH = 8
_UNFINISHED = (".part", READY_SUFFIX, ".refused")


def _existing(text: str) -> str:
    datetime.strptime(text, _TIME_FORMAT)  # no 31 February
    return text


_Name = Annotated[str, StringConstraints(min_length=1, max_length=1_000)]
_Nonce = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
_Time = Annotated[
    str,
    StringConstraints(pattern="^[0-9]{4}(-[0-9]{2}){2}T([0-9]{2}:){2}[0-9]{2}Z$"),
    AfterValidator(_existing),
]


class ReadyFile(Record):
    """A parsed ready file; `verify` checks its signature.

    `files` has every file of the table, by its name relative to the landing place. `signed_at` is
    in UTC, for example ``2026-11-21T17:00:00Z``. `mac` is the HMAC-SHA256 of
    ``clustmix-arrival-v1``, a null byte and the canonical JSON of the other fields.

    Privacy
    -------
    A ready file is not public: its digests confirm a guess of the table.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    format_version: Literal[1] = 1
    dataset: DatasetName
    files: dict[_Name, FileDigest] = Field(min_length=1, max_length=MAX_FILES)
    signed_at: _Time
    nonce: _Nonce
    mac: Sha256

    @property
    def signed(self) -> datetime:
        """The moment of `signed_at`."""
        return datetime.strptime(self.signed_at, _TIME_FORMAT).replace(tzinfo=UTC)

    def verify(self, secret: bytes) -> None:
        """Refuse a file that was not written with the key or was changed (``ARRIVAL_FORGED``)."""
        expected = _mac(secret, self.model_dump(mode="json", exclude={"mac"}))
        if not hmac.compare_digest(expected, self.mac):
            raise refusal("ARRIVAL_FORGED")

    def check_names(self, ready_name: str) -> None:
        """Refuse names outside of the table (``ARRIVAL_NAME``); the error repeats none of them.

        ``NAME.ready.json`` announces the file ``NAME``, or files below the folder ``NAME``, alone.
        """
        table = ready_name.removesuffix(READY_SUFFIX)
        for name in self.files:
            _check_name(name)
            if not name.startswith(f"{table}/") and set(self.files) != {table}:
                raise refusal("ARRIVAL_NAME of ready file")
        if any(
            str(above) in self.files for name in self.files for above in PurePosixPath(name).parents
        ):
            raise refusal("ARRIVAL_NAME of both")

    @property
    def size_bytes(self) -> int:
        """Size of the table."""
        return sum(file.size for file in self.files.values())

    @property
    def is_folder(self) -> bool:
        """True if the table is a folder; only after `check_names`."""
        return any("/" in name for name in self.files)


def parse_ready_file(content: bytes) -> ReadyFile:
    """Parse a ready file strictly; ``ARRIVAL_MALFORMED`` names a field, never its content."""
    problem = f"at most {MAX_READY_BYTES:,} bytes"
    if len(content) <= MAX_READY_BYTES:
        problem = "the documented fields, in JSON in UTF-8 that names every key once"
        try:
            return ReadyFile.model_validate(strict_json(content), strict=True)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            # The rest of a location may be a name that the sender chose.
            field = next((part for part in first["loc"] if part in ReadyFile.model_fields), None)
            problem = f"the documented fields, {field!r} in its range" if field else problem
        except (ValueError, RecursionError):  # the text of the reason may quote content
            pass
    raise refusal("ARRIVAL_MALFORMED", expected=problem)


def build_ready_file(path: Path, *, dataset: str, secret: bytes) -> bytes:
    """Return a new announcement of a complete table, file or folder (ConfigurationError)."""
    check_name(dataset)
    problem = ""
    files: dict[str, FileDigest] = {}
    try:
        for part in _parts_of(path):
            files[part.relative_to(path.parent).as_posix()] = _announce(part)
        ready = _signed(dataset, files, secret)
        ready.check_names(path.name + READY_SUFFIX)
        content = json.dumps(ready.model_dump(mode="json"), indent=1).encode()
        if len(content) <= MAX_READY_BYTES:
            return content
        problem = f"expected names for a ready file of at most {MAX_READY_BYTES:,} bytes"
    except (OSError, IntegrityError):
        problem = "expected regular files that can be read, found something else"
    except ValidationError:
        problem = f"expected 1 to {MAX_FILES:,} files, found none or more"
    except InputError as error:
        problem = error.message
    raise ConfigurationError("TABLE_NOT_READY", f"{path}: {problem}")


def write_ready_file(path: Path, content: bytes) -> Path:
    """Write or replace the ready file beside its table, all at once (``READY_UNWRITABLE``).

    It has mode 0640: the installation may be another user of the same group.
    """
    target = path.with_name(path.name + READY_SUFFIX)
    try:
        replace_durably(target, content, mode=0o640)
    except OSError as error:
        raise refusal("READY_UNWRITABLE", target=target, found=error.strerror) from None
    return target


def _signed(dataset: str, files: dict[str, FileDigest], secret: bytes) -> ReadyFile:
    unsigned = ReadyFile(
        dataset=dataset,
        files=files,
        signed_at=datetime.now(UTC).strftime(_TIME_FORMAT),
        nonce=os.urandom(16).hex(),
        mac="0" * 64,
    )
    body = unsigned.model_dump(mode="json", exclude={"mac"})
    return unsigned.model_copy(update={"mac": _mac(secret, body)})


def _mac(secret: bytes, body: dict[str, Any]) -> str:
    return hmac.new(secret, _MAC_CONTEXT + canonical_json(body), hashlib.sha256).hexdigest()


def _parts_of(path: Path) -> list[Path]:
    if not path.is_dir() or path.is_symlink():
        return [path]
    # Hidden files, as Spark leaves them, are no part; `open_regular` refuses other kinds of files.
    return sorted(
        part
        for part in path.rglob("*")
        if (part.is_symlink() or not part.is_dir())
        and not any(name.startswith(".") for name in part.relative_to(path).parts)
    )


def _announce(path: Path) -> FileDigest:
    with os.fdopen(open_regular(path), "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
        return FileDigest(sha256=digest, size=handle.tell())


def _check_name(name: str) -> None:
    parts = name.split("/")
    if len(parts) > _MAX_DEPTH or not all(map(_PART.fullmatch, parts)):
        raise refusal("ARRIVAL_NAME of characters")
    if name.endswith(_UNFINISHED):
        raise refusal("ARRIVAL_NAME of unfinished")
