"""A measurement as a file: the released arrays, and their guarantee.

An uncompressed zip file of ``model.json`` (canonical JSON) and ``released.npz``: no code, no row.
"""

import hashlib
import io
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from numpy.typing import NDArray
from pydantic import BaseModel, JsonValue, model_validator

from clustmix.guarantee import Charged, Guarantee
from clustmix.methods import METHODS
from clustmix.schema import Schema
from privacy.errors import ClustMixError, refusals
from privacy.events import Event, event_from_dict, event_to_dict
from privacy.parameters import Adjacency
from storage.files.documents import Document, Sha256, Text
from storage.releases.manifest import MethodRecord
from storage.releases.measurements import RELEASED_FILE, arrays_of_bytes, arrays_to_bytes
from storage.schema.vocabulary import Vocabulary
from tasks.methods.registry import method_entry

refusal = refusals(__package__)


class ModelRecord(Document):
    """The record of a measurement in its file.

    The notice is the guarantee in plain words, and whether a ledger counts it. Epsilon and delta
    are those requested under the adjacency, patients those declared. Events are the draws as they
    happened, as `privacy.events.event_to_dict` writes them; ``tainted`` means that the noise can be
    drawn again. The vocabulary names the codes of the arrays, ``released`` is their digest.
    """

    FILE: ClassVar[str] = "model.json"
    MAX_BYTES: ClassVar[int] = 16_000_000
    CODE: ClassVar[str] = "MODEL_INVALID"
    REMEDY: ClassVar[str] = "use another copy of the model"

    format_version: Literal[1] = 1
    notice: Text
    method: MethodRecord
    table_schema: dict[str, JsonValue]
    epsilon: float
    delta: float
    adjacency: Adjacency
    patient_column: str | None
    max_rows_per_patient: int
    patients: int | None = None
    parts: int = 1
    events: tuple[dict[str, JsonValue], ...]
    charged: Charged | None
    tainted: bool
    vocabulary: Vocabulary
    code_version: Text
    released: Sha256

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.method.name not in {one.kind for one in METHODS}:
            raise ValueError("expected a registered method")
        try:
            self.vocabulary.require(Schema.model_validate(self.table_schema))
            _ = self.settings, self.drawn  # which raise where they cannot be read
        except ClustMixError as error:
            raise ValueError(error.message) from None
        return self

    @property
    def settings(self) -> BaseModel:
        """The settings of the method."""
        return method_entry(self.method.name).config.model_validate(self.method.settings)

    @property
    def drawn(self) -> tuple[Event, ...]:
        """The events."""
        return tuple(event_from_dict(event) for event in self.events)


def written(model: Any, guarantee: Guarantee, released: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the file of a measurement and its guarantee; the same input gives the same bytes."""
    arrays = arrays_to_bytes(released)
    settings = model._settings().model_dump(mode="json", exclude={"kind"})
    record = ModelRecord(
        **model._target().model_dump(),
        notice=guarantee.statement,
        method=MethodRecord(name=model.kind, settings=settings),
        table_schema=model.schema.model_dump(mode="json"),
        events=tuple(map(event_to_dict, guarantee.events)),
        charged=guarantee.charged,
        tainted=guarantee.tainted,
        vocabulary=Vocabulary.of(model.schema),
        code_version=version("clustmix"),
        released=hashlib.sha256(arrays).hexdigest(),
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in ((ModelRecord.FILE, record.to_bytes()), (RELEASED_FILE, arrays)):
            # With a fixed date, so that the bytes do not depend on the clock.
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def read(path: Path) -> tuple[bytes, ModelRecord, dict[str, NDArray[Any]]]:
    """Read bytes, record and arrays of a file of `written` (IntegrityError if it is none)."""
    try:
        content = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # Uncompressed: what is read is no larger than the file.
            kept = [(info.filename, info.compress_type) for info in archive.infolist()]
            if kept != [(name, zipfile.ZIP_STORED) for name in (ModelRecord.FILE, RELEASED_FILE)]:
                raise refusal("MODEL_INVALID", path=path)
            text, arrays = (archive.read(name) for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, NotImplementedError, EOFError, ValueError):
        raise refusal("MODEL_INVALID", path=path) from None
    record = ModelRecord.from_bytes(text)
    if hashlib.sha256(arrays).hexdigest() != record.released:
        raise refusal("MODEL_INVALID", path=path)
    try:
        return content, record, arrays_of_bytes(arrays)
    except ValueError:
        raise refusal("MODEL_INVALID", path=path) from None


def write_new(path: Path, content: bytes | None) -> None:
    """Write a file that is not there yet (else it is a ConfigurationError); a pool has none."""
    if content is None:
        raise refusal("POOL_NOT_SAVED")
    try:
        with path.open("xb") as file:
            file.write(content)
    except OSError as error:
        raise refusal("FILE_NOT_MADE", path=path, fault=error.strerror) from None
