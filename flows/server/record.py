"""What a start of the local server has made, kept beside the logs of its parts."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from privacy.errors import ClustMixError
from storage.files.documents import Record, read_kept, write_kept

RECORD_FILE = "parts.json"


class ServerError(ClustMixError):
    """The local server cannot be started or stopped as asked."""

    exit_code = 1


class Part(Record):
    """A part that was started.

    `created` is when the operating system made the process, in seconds since 1970; the address is
    empty for a part that nobody calls. `mark` is `flows.server.processes.MARK` in its environment,
    empty for the database of a server that an earlier version has started.
    """

    name: str
    pid: int
    created: float
    address: str
    log: Path
    mark: str


class ServerRecord(BaseModel):
    """What a start of the server has made. Earlier versions have written more.

    `mark` is a random text in the environment of every process; the parts are in the order of their
    start, and it is ready when all of them have answered.
    """

    model_config = ConfigDict(frozen=True)

    mark: str
    parts: tuple[Part, ...] = ()
    ready: bool = False

    def part(self, name: str) -> Part:
        """Return the part of this name, which was started."""
        return next(part for part in self.parts if part.name == name)

    def address(self, name: str) -> str:
        """Return where a part answers; empty where it was not started."""
        return next((part.address for part in self.parts if part.name == name), "")


def read_record(folder: Path) -> ServerRecord | None:
    """Return the record (ServerError if it is damaged), None where nothing was started."""
    path = folder / RECORD_FILE
    damaged = ServerError(
        "SERVER_RECORD_INVALID",
        f"expected the record of the started parts in {path}, found something else; end the "
        "processes of the server by hand and delete the file",
    )
    return read_kept(path, ServerRecord, damaged=damaged)


def write_record(folder: Path, record: ServerRecord) -> None:
    """Keep a record in the folder of the server, in the place of the earlier one."""
    write_kept(folder / RECORD_FILE, record)


def remove_record(folder: Path) -> None:
    """Forget what was started, once it has ended."""
    (folder / RECORD_FILE).unlink(missing_ok=True)
