"""The manifest: what a release claims, in one canonical JSON file beside the data."""

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from privacy.errors import ConfigurationError, IntegrityError
from storage.refs import ReleaseRef, check_file_name

MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 4_000_000

_Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
_Text = Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MethodRecord(_Record):
    """The synthesis method of a release.

    Attributes
    ----------
    name : str
        Name in the registry of methods.
    settings : dict
        Its public settings.
    """

    name: _Text
    settings: dict[str, JsonValue]


class GateRecord(_Record):
    """One check of the release gate.

    Attributes
    ----------
    check : str
        Name of the check, with its column where it has one.
    passed : bool
        Outcome.
    """

    check: _Text
    passed: bool


class Manifest(_Record):
    """Everything a release says about itself.

    All fields are public: settings, mechanisms and properties of the synthetic rows. There is no
    field for a count, a digest or a score of the source, and an unknown field is refused.

    Attributes
    ----------
    format_version : int
        1.
    dataset, release_id : str
        Address of the release.
    created_on : date
        UTC date. A time of day would tell how long the computation took.
    analysis : str
        ``proven`` or ``published``, see `privacy.parameters.Analysis`.
    guarantee : str
        The guarantee in plain words.
    method : MethodRecord
        Method and settings.
    request : dict
        What was asked for, target epsilon included.
    code_version : str
        Version of the program.
    events : tuple of dict
        Uses of mechanisms in the form of `privacy.events.event_to_dict`.
    accountant : str
        ``gaussian``.
    mu, rho : float
        Total of the events under Gaussian differential privacy; ``rho = mu**2 / 2``.
    epsilon : float
        What the accountant computes from the events at `delta`, under `adjacency`.
    delta : float
        Between 0 and 1.
    replace_one_epsilon : float
        The same for neighbours that differ in the data of one patient, at the same delta.
    adjacency : str
        ``add_remove`` or ``replace_one``.
    privacy_unit : str
        What one neighbour adds or removes, for example the column with the patient's key.
    max_rows_per_patient : int
        Rows of one patient that can influence the release, at least 1.
    ledger_entry : str
        Id of the ledger entry that was charged.
    gate : tuple of GateRecord
        Outcome of the release gate on the synthetic rows.
    rows : int
        Number of synthetic rows, a setting.
    tainted : bool
        True if a noise source for tests was used; such a release cannot be published.
    files : dict of str to str
        SHA-256 of every file of the bundle but the manifest.

    Raises
    ------
    pydantic.ValidationError
        If a field is unknown, missing or out of range.
    ConfigurationError
        If a name is malformed.
    """

    format_version: Literal[1] = 1
    dataset: str
    release_id: str
    created_on: date
    analysis: Literal["proven", "published"]
    guarantee: _Text
    method: MethodRecord
    request: dict[str, JsonValue]
    code_version: _Text
    events: tuple[dict[str, JsonValue], ...] = Field(min_length=1)
    accountant: Literal["gaussian"] = "gaussian"
    mu: _Positive
    rho: _Positive
    epsilon: _Positive
    delta: _Positive = Field(lt=1)
    replace_one_epsilon: _Positive
    adjacency: Literal["add_remove", "replace_one"]
    privacy_unit: _Text
    max_rows_per_patient: int = Field(ge=1)
    ledger_entry: _Text
    gate: tuple[GateRecord, ...]
    rows: int = Field(ge=1)
    tainted: bool
    files: dict[str, _Sha256] = Field(min_length=1)

    @field_validator("files")
    @classmethod
    def _file_names(cls, files: dict[str, str]) -> dict[str, str]:
        for name in files:
            check_file_name(name)
        if MANIFEST_FILE in files:
            raise ValueError("the manifest cannot hold its own digest")
        if len({name.casefold() for name in files}) != len(files):
            raise ValueError("two names in 'files' differ only by upper and lower case")
        return files

    @model_validator(mode="after")
    def _address(self) -> Self:
        _ = self.ref  # refuses a malformed name
        return self

    @property
    def ref(self) -> ReleaseRef:
        """The address of the release."""
        return ReleaseRef(dataset=self.dataset, release_id=self.release_id)

    def to_bytes(self) -> bytes:
        """Return the canonical JSON of the manifest.

        Returns
        -------
        bytes
            The content of the manifest file.
        """
        return canonical_json(self.model_dump(mode="json"))


def parse_manifest(content: bytes) -> Manifest:
    """Read a manifest file strictly.

    Parameters
    ----------
    content : bytes
        Content of the manifest file.

    Returns
    -------
    Manifest
        Validated manifest.

    Raises
    ------
    IntegrityError
        If the content is not canonical JSON (which also excludes repeated keys), has an unknown
        or missing field, or a field is out of range. Names the field.
    """
    problem = "is larger than 4 MB"
    if len(content) <= MAX_MANIFEST_BYTES:
        try:
            manifest = Manifest.model_validate_json(content)
            if manifest.to_bytes() == content:
                return manifest
            problem = "is not in canonical form"
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            problem = f"field '{field}': {first['msg']}"
        except ConfigurationError as error:
            problem = error.message
    raise IntegrityError(
        "MANIFEST_INVALID", f"file {MANIFEST_FILE} {problem}; get the release again from its store"
    )


def canonical_json(value: Any) -> bytes:
    """Serialise a value in the one form that is hashed and compared.

    Parameters
    ----------
    value : object
        JSON value: dicts with text keys, lists, tuples, text, finite numbers, booleans, None.

    Returns
    -------
    bytes
        UTF-8 with sorted keys and without blanks.

    Raises
    ------
    ConfigurationError
        If the value holds NaN, an infinity, a key that is not text, or another type.
    """
    if _is_json(value):
        text = json.dumps(
            value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        return text.encode("utf-8", errors="strict")
    raise ConfigurationError(
        "NOT_JSON", "expected text keys, text, finite numbers, booleans, None, lists and dicts"
    )


def _is_json(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_is_json(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


def file_digests(files: Mapping[str, bytes | Path]) -> dict[str, str]:
    """Compute the `files` field of a manifest.

    Parameters
    ----------
    files : mapping of str to bytes or Path
        Content of each file of the bundle, or where it is.

    Returns
    -------
    dict of str to str
        SHA-256 in hexadecimal by file name.
    """
    digests = {}
    for name, content in files.items():
        if isinstance(content, bytes):
            digests[name] = hashlib.sha256(content).hexdigest()
        else:
            with content.open("rb") as handle:
                digests[name] = hashlib.file_digest(handle, "sha256").hexdigest()
    return digests
