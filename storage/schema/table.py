"""The public schema of one table: declared columns, bounds, bins, levels and the label.

Everything in a schema comes from public knowledge (a codebook, a data dictionary, a clinical
range) and is written down before a record is read. Nothing here is ever inferred from rows, so
whatever is derived from a schema alone costs no privacy budget.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from privacy.errors import InputError
from storage.schema.column_blocks import ImageColumns, item_columns
from storage.schema.columns import (
    MAX_CODES,
    Column,
    Declaration,
    Finite,
    Level,
    Name,
    RawValue,
    number_of,
    raw_text,
    refuse_duplicates,
)
from storage.schema.constraints import Constraint, require_declared

MAX_LISTED_NAMES = 20
"""Column names that a message lists."""


def _of_entries(value: object) -> object:
    """Read ``[{name: ..., values: ...}, ...]`` as a mapping in that order."""
    if not isinstance(value, list | tuple):
        return value
    if any(not isinstance(entry, dict) or set(entry) != {"name", "values"} for entry in value):
        raise ValueError("expected a list of entries with the keys name and values")
    if len({raw_text(entry["name"]) for entry in value}) != len(value):
        raise ValueError("expected each level once")
    return {entry["name"]: entry["values"] for entry in value}


def _as_entries(levels: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "values": values} for name, values in levels.items()]


# The order of label levels is the order of their codes. It is written as a list, because JSON with
# sorted keys, and most who read and write it, lose the order of a mapping. What a person writes as
# a mapping is read in the order of the lines.
_Levels = Annotated[
    dict[Level, tuple[RawValue, ...]], BeforeValidator(_of_entries), PlainSerializer(_as_entries)
]


class Buckets(Declaration):
    """Label levels cut out of a number: ``levels[i]`` holds ``edges[i-1] <= value < edges[i]``."""

    edges: Annotated[tuple[Finite, ...], Field(min_length=1)]
    """Inner edges, increasing; the first bucket has no lower end and the last no upper end."""
    levels: tuple[Level, ...]
    """Names of the buckets, one more than edges."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if any(a >= b for a, b in pairwise(self.edges)):
            raise ValueError("expected edges in increasing order")
        if len(self.levels) != len(self.edges) + 1:
            raise ValueError("expected one level more than edges")
        if any(number_of(level) is not None for level in self.levels):
            raise ValueError("expected names of buckets that are not numbers")
        return self


class Label(Declaration):
    """The column that a model trained on the release is to predict.

    Examples
    --------
    >>> from storage.schema.table import Label
    >>> Label(name="died", levels={"no": ("0",), "yes": ("1",)}).level_names
    ('no', 'yes')
    >>> Label(name="days", buckets={"edges": (7,), "levels": ("short", "long")}).level_names
    ('short', 'long')
    """

    name: Name
    """Column name."""
    levels: _Levels | None = None
    """Raw values by level, in the order of their codes: a list of ``{name, values}``. A level's own
    name also stands for itself."""
    buckets: Buckets | None = None
    """Levels cut out of a numeric label; instead of ``levels``."""
    positive: Level | None = None
    """The level that a two-level label counts as positive, if any."""
    missing: tuple[RawValue, ...] = ()
    """Raw codes that mean "no label". Such rows are left out, a rule on that row alone."""
    nullable: bool = False
    """Whether an empty cell is allowed and means "no label"."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.levels is None) == (self.buckets is None):
            raise ValueError("expected exactly one of levels and buckets")
        if len(self.level_names) < 2:
            raise ValueError("expected two or more label levels")
        raw = [
            value
            for level, values in (self.levels or {}).items()
            for value in values
            if value != level
        ]
        refuse_duplicates((*self.level_names, *raw, *self.missing))
        if self.positive is not None and self.positive not in self.level_names:
            raise ValueError("expected positive to name a label level")
        return self

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the label levels, in the order of their codes."""
        return tuple(self.levels or ()) if self.buckets is None else self.buckets.levels


class TableSchema(Declaration):
    """All that is declared about one table: `columns`, or `image`, or `items`, and a label."""

    columns: Annotated[tuple[Column, ...], Field(min_length=1)] = ()
    """The feature columns, in the order of the release. The column that names the patient is not
    among them: it is never released."""
    image: ImageColumns | None = Field(default=None, exclude_if=lambda image: image is None)
    """Pixels of images as the feature columns, instead of ``columns``."""
    items: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_CODES)] | None = Field(
        default=None, exclude_if=lambda items: items is None
    )
    """Names of columns of 0 and 1, which say whether the record has an item: the feature columns,
    instead of ``columns``."""
    label: Label
    """The label column."""
    ignore: tuple[Name, ...] = ()
    """Columns that the source has and that are not used."""
    constraints: tuple[Constraint, ...] = Field(
        default=(), exclude_if=lambda constraints: not constraints
    )
    """Public rules that every record keeps, of the source and of a release. A row of the source
    that breaks one fails the check, before anything is charged, or is mended as the rule says."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(bool(part) for part in (self.columns, self.image, self.items)) != 1:
            raise ValueError("expected exactly one of columns, image and items")
        if self.image is not None:
            object.__setattr__(self, "columns", self.image.columns)
        if self.items is not None:
            object.__setattr__(self, "columns", item_columns(self.items))
        names = [*self.column_names, self.label.name, *self.ignore]
        if len(set(names)) != len(names):
            raise ValueError("expected each column once in columns, label and ignore")
        if self.constraints and self.image is not None:
            raise ValueError("constraints: expected none of an image")
        label = self.label
        require_declared(self.constraints, self.columns, label.name, label.level_names)
        return self

    @model_serializer(mode="wrap")
    def _as_declared(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Columns of an image or of items are not written: a schema has one form, and a short one.
        written: dict[str, Any] = write(self)
        if self.image is not None or self.items is not None:
            written.pop("columns", None)
        return written

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the feature columns."""
        return tuple(column.name for column in self.columns)

    @property
    def released_columns(self) -> tuple[str, ...]:
        """Names of the columns of a release: the features, then the label."""
        return (*self.column_names, self.label.name)

    def check_header(self, header: Sequence[str], *, also: Iterable[str] = ()) -> None:
        """Compare a header with the columns of the schema and those in `also` (InputError)."""
        declared = {*self.released_columns, *self.ignore, *also}
        absent = sorted(declared.difference(header))
        unknown = [name for name in header if name not in declared]
        if absent:
            # What stands there instead is not said: without a header it is a patient's row.
            raise InputError(
                "HEADER_MISMATCH",
                f"expected the declared columns, found none named {_listed(absent)}; "
                "check the delimiter and the names in the schema",
            )
        if unknown:
            raise InputError(
                "HEADER_MISMATCH",
                f"expected declared columns only, found {_listed(unknown)}; "
                "declare them in the schema or list them under ignore",
            )


def check_names(names: Sequence[str]) -> None:
    """Refuse a header with a column that has no name, or the name of another (InputError)."""
    # By place, not by name: a text file without a header has a patient in its first line.
    firsts: dict[str, int] = {}
    for place, name in enumerate(names, start=1):
        if not name.strip():
            raise InputError(
                "HEADER_EMPTY_NAME",
                f"every column needs a name; column {place} of the header has none: add it",
            )
        first = firsts.setdefault(name, place)
        if first < place:
            raise InputError(
                "HEADER_DUPLICATE",
                f"every column needs a name of its own; columns {first} and {place} of the "
                "header have the same: rename one of them",
            )


def _listed(names: Sequence[str]) -> str:
    """Write names as a list, shortened where there are many, such as those of pixels."""
    shown = ", ".join(names[:MAX_LISTED_NAMES])
    more = len(names) - MAX_LISTED_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
