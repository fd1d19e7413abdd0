"""Stored documents, read strictly in one canonical form of JSON; digests of files; TOML lists."""

import hashlib
import json
import math
import os
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from privacy.errors import ClustMixError, ConfigurationError, IntegrityError
from storage.files.private import (
    ensure_private_directory,
    open_regular,
    read_bounded,
    replace_durably,
)

Text = Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
"""Text of 1 to 10,000 characters."""

Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal, lower case."""

KEPT = MappingProxyType({"kept": True})
"""Context of a stored declaration: newer rules for queries do not apply, as none is run again."""

ReleaseId = Annotated[str, StringConstraints(pattern="^r-[0-9]{8}-[0-9a-f]{8}$")]
"""Id as `storage.files.refs.new_release_id` makes it."""

DatasetName = Annotated[str, StringConstraints(pattern="^[a-z0-9][a-z0-9-]{0,62}$")]
"""Name of a dataset, see `storage.files.refs.check_name`."""


class Record(BaseModel):
    """A part of a document: no unknown field, no change after it was made."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileDigest(Record):
    """SHA-256 of a file, and its size in bytes."""

    sha256: Sha256
    size: Annotated[int, Field(ge=0, lt=2**53)]


def digest_of(content: bytes) -> FileDigest:
    """Return the digest of a content."""
    return FileDigest(sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def has_digest(path: Path, expected: FileDigest) -> bool:
    """Compare a regular file (else IntegrityError) with a digest; another size is not read."""
    with os.fdopen(open_regular(path), "rb") as file:
        same_size = os.fstat(file.fileno()).st_size == expected.size
        return same_size and hashlib.file_digest(file, "sha256").hexdigest() == expected.sha256


class Document(Record):
    """A file of a bundle, read strictly: canonical JSON, a size limit, known fields in range."""

    FILE: ClassVar[str]
    """Name of the file."""

    MAX_BYTES: ClassVar[int]
    """Largest size of the file."""

    CODE: ClassVar[str]
    """Code of the error for a malformed file."""

    REMEDY: ClassVar[str] = "get the release again from its store"
    """Advice to the reader of a bad file."""

    def to_bytes(self) -> bytes:
        """Return the canonical JSON of the document."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file strictly that is neither a link nor a device, pipe or folder."""
        return cls.from_bytes(read_bounded(path, cls.MAX_BYTES))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a file strictly; the IntegrityError names the field that is wrong."""
        problem = f"is larger than {cls.MAX_BYTES:,} bytes"
        if len(content) <= cls.MAX_BYTES:
            try:
                document = cls.model_validate_json(content)
                if document.to_bytes() == content:
                    return document
                problem = "is not in canonical form"
            except ValidationError as error:
                faults = error.errors(include_input=False, include_url=False, include_context=False)
                field = ".".join(str(part) for part in faults[0]["loc"])
                # repr, as the name of an unknown field comes from the file.
                problem = f"field {field[:200]!r}: {faults[0]['msg']}"
            except ConfigurationError as error:
                problem = error.message
        raise IntegrityError(cls.CODE, f"file {cls.FILE} {problem}; {cls.REMEDY}")


def canonical_json(value: Any) -> bytes:
    """Write plain JSON (else ConfigurationError) in the one form that is hashed and compared."""
    if _is_json(value):
        text = json.dumps(
            value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        return text.encode("utf-8", errors="strict")
    raise ConfigurationError(
        "NOT_JSON", "expected text keys, text, finite numbers, booleans, None, lists and dicts"
    )


def strict_json(content: bytes) -> Any:
    """Read JSON in UTF-8 in which no object has a key twice (else ValueError)."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key twice")
        return dict(pairs)

    return json.loads(content.decode("utf-8"), object_pairs_hook=once)


def _is_json(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_is_json(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


_Model = TypeVar("_Model", bound=BaseModel)


def read_kept(path: Path, model: type[_Model], *, damaged: ClustMixError) -> _Model | None:
    """Read a file of `write_kept`; None if there is none, and `damaged` is raised if invalid."""
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        pass
    raise damaged


def write_kept(path: Path, content: BaseModel | str) -> None:
    """Replace a file of mode 0600, a line or JSON, durably; its folder is private."""
    ensure_private_directory(path.parent)
    line = content if isinstance(content, str) else content.model_dump_json(indent=2)
    replace_durably(path, f"{line}\n".encode())


def listed(package: str, file: str) -> dict[str, Any]:
    """Return the content of a TOML file that comes with a package of the program."""
    return tomllib.loads(resources.files(package).joinpath(file).read_text("utf-8"))
