"""The manifest: what a release claims, in one canonical JSON file beside the data."""

from collections.abc import Mapping
from datetime import date
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from storage.files.documents import Document, FileDigest, Record, ReleaseId, Sha256, Text, digest_of
from storage.files.refs import ReleaseRef, check_file_name
from storage.keys.keys import KeyId

MANIFEST_FILE = "manifest.json"


_RESERVED = frozenset({MANIFEST_FILE, "signature.json", "approval.json"})
"""Files that a manifest cannot list: `storage.releases.signatures` writes the other two."""


def _is_none(value: object) -> bool:
    return value is None


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class MethodRecord(Record):
    """The synthesis method of a release: its name in the registry and its public settings."""

    name: Text
    settings: dict[str, JsonValue]


class GateRecord(Record):
    """One check of the release gate, with its column in the name where it has one.

    A comparison with the sealed measurement passes if `distance` is at most `bound`; `unseen` lists
    the faults that it cannot detect.
    """

    check: Text
    passed: bool
    distance: float | None = Field(default=None, ge=0, allow_inf_nan=False, exclude_if=_is_none)
    bound: float | None = Field(default=None, ge=0, allow_inf_nan=False, exclude_if=_is_none)
    unseen: tuple[Text, ...] = Field(default=(), exclude_if=lambda unseen: not unseen)


class Manifest(Document):
    """The public claims of a release.

    All fields are public: settings, mechanisms and properties of the synthetic rows. There is no
    field for a count, a digest or a score of the source, and an unknown field is refused.

    The date is in UTC: a time of day would give away the length of the computation. Events are in
    the form of `privacy.events.event_to_dict`; mu is their total under Gaussian differential
    privacy, and ``rho = mu**2 / 2``. Epsilon follows from it at `delta` under `adjacency`, and
    `replace_one_epsilon` for neighbours that differ in the data of one patient. The privacy unit is
    the data that one neighbour adds or removes. A release `tainted` by a noise source for tests
    cannot be published. The digests are those of the sealed measurement and of every file of the
    bundle but manifest and signatures. The requester is the key id of the person who asked for the
    measurement, known where approval is needed. A resample may be restricted to a level by column;
    it names the release that paid, whose measurement it uses. `pooled` are the parts of a pool,
    each a signed document of `storage.releases.signatures`. `corrected_after_checks` counts the
    checks of the table by other declarations of the dataset before this request.
    """

    FILE: ClassVar[str] = MANIFEST_FILE
    MAX_BYTES: ClassVar[int] = 4_000_000
    CODE: ClassVar[str] = "MANIFEST_INVALID"

    format_version: Literal[1] = 1
    dataset: str
    release_id: str
    created_on: date
    guarantee: Text
    method: MethodRecord
    request: dict[str, JsonValue]
    code_version: Text
    events: tuple[dict[str, JsonValue], ...] = Field(min_length=1)
    mu: _Positive
    rho: _Positive
    epsilon: _Positive
    delta: _Positive = Field(lt=1)
    replace_one_epsilon: _Positive
    adjacency: Literal["add_remove", "replace_one"]
    privacy_unit: Text
    max_rows_per_patient: int = Field(ge=1)
    ledger_entry: Text
    gate: tuple[GateRecord, ...]
    rows: int = Field(ge=1)
    tainted: bool
    measurement_sha256: Sha256
    needs_approval: bool
    requester: KeyId | None
    conditions: dict[Text, Text] = Field(default_factory=dict)
    resampled_from: ReleaseId | None = None
    corrected_after_checks: int = Field(default=0, ge=0, exclude_if=lambda checks: not checks)
    pooled: tuple[dict[str, JsonValue], ...] = Field(default=(), exclude_if=lambda parts: not parts)
    files: dict[str, FileDigest] = Field(min_length=1)

    @field_validator("files")
    @classmethod
    def _file_names(cls, files: dict[str, FileDigest]) -> dict[str, FileDigest]:
        for name in files:
            check_file_name(name)
        folded = {name.casefold() for name in files}
        if not folded.isdisjoint(_RESERVED):
            raise ValueError("the manifest cannot hold its own digest or that of a signature")
        if len(folded) != len(files):
            raise ValueError("two names in 'files' differ only by upper and lower case")
        return files

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _ = self.ref  # refuses a malformed name
        if self.needs_approval and self.requester is None:
            raise ValueError("expected a requester where needs_approval is true")
        if self.conditions and self.resampled_from is None:
            raise ValueError("expected conditions only where resampled_from is given")
        if self.resampled_from == self.release_id:
            raise ValueError("expected resampled_from to be another release")
        return self

    @property
    def parts(self) -> tuple[str, ...]:
        """The releases that a pool was made of."""
        return tuple(str(part["release_id"]) for part in self.pooled)

    @property
    def ref(self) -> ReleaseRef:
        """The address of the release."""
        return ReleaseRef(dataset=self.dataset, release_id=self.release_id)


def file_digests(files: Mapping[str, bytes]) -> dict[str, FileDigest]:
    """Compute the `files` field of a manifest."""
    return {name: digest_of(content) for name, content in files.items()}
