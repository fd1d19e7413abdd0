"""What a start of the local server has made, kept beside the logs of its parts."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from flows.server.processes import Part, ServerError
from storage.files.private import replace_durably

RECORD_FILE = "parts.json"


class ServerRecord(BaseModel):
    """What a start of the server has made.

    Attributes
    ----------
    mark : str
        Random text in the environment of every process.
    parts : tuple of Part
        The parts, in the order of their start.
    ready : bool
        Whether all of them have answered.
    port : int
        Port of the orchestrator's page and API.
    scheduler : str
        Address of the Dask scheduler; empty for one that is not ours.
    pages : str
        Address of the release store; empty for one that is not ours.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mark: str
    parts: tuple[Part, ...] = ()
    ready: bool = False
    port: int = 0
    scheduler: str = ""
    pages: str = ""

    def part(self, name: str) -> Part:
        """Return the part of this name, which was started."""
        return next(part for part in self.parts if part.name == name)


def read_record(folder: Path) -> ServerRecord | None:
    """Return what was written by `write_record`, or None.

    Parameters
    ----------
    folder
        Folder of the server.

    Raises
    ------
    ServerError
        If the file holds something else.
    """
    path = folder / RECORD_FILE
    try:
        return ServerRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        pass
    raise ServerError(
        "SERVER_RECORD_INVALID",
        f"expected the record of the started parts in {path}, found something else; end the "
        "processes of the server by hand and delete the file",
    )


def write_record(folder: Path, record: ServerRecord) -> None:
    """Keep a record in the place of the earlier one, with mode 0600.

    Parameters
    ----------
    folder
        Folder of the server.
    record
        What was made until now.
    """
    replace_durably(folder / RECORD_FILE, record.model_dump_json(indent=2).encode("utf-8"))


def remove_record(folder: Path) -> None:
    """Forget what was started, once it has ended."""
    (folder / RECORD_FILE).unlink(missing_ok=True)
