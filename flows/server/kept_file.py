"""Files of the local server and its watcher: private, and replaced as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from privacy.errors import ClustMixError
from storage.files.private import ensure_private_directory, replace_durably

_Model = TypeVar("_Model", bound=BaseModel)


def read_kept(path: Path, model: type[_Model], *, damaged: ClustMixError) -> _Model | None:
    """Return what `write_kept` has written, or None before the first time.

    `damaged` is raised if it holds anything else.
    """
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        pass
    raise damaged


def write_kept(path: Path, content: BaseModel | str) -> None:
    """Put a file of mode 0600, a line or JSON, in the place of an earlier one; on disk afterwards.

    Its folder is made with mode 0700 if missing.
    """
    ensure_private_directory(path.parent)
    line = content if isinstance(content, str) else content.model_dump_json(indent=2)
    replace_durably(path, f"{line}\n".encode())
