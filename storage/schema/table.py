"""The public schema of one table: declared columns, bounds, bins, levels and the label.

A schema comes from public knowledge (codebook, data dictionary, clinical range) and is written
before a record is read. Nothing is inferred from rows, so functions of it cost no privacy budget.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from privacy.errors import refusals
from storage.schema.column_blocks import DerivedColumns, ImageColumns, derived_faults, item_columns
from storage.schema.columns import (
    MAX_CODES,
    CategoricalColumn,
    Column,
    Declaration,
    Name,
    NumericColumn,
    in_short,
    left_out,
    refuse_together,
)
from storage.schema.constraints import Constraint, bases_of, require_declared
from storage.schema.date_columns import DateColumn
from storage.schema.labels import AnyLabel, Label, Labels, SurvivalLabel

refusal = refusals(__package__)

_AnyColumn = Annotated[NumericColumn | DateColumn | CategoricalColumn, Field(discriminator="kind")]
_Items = Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_CODES)]


class TableSchema(Declaration):
    """The declaration of one table: `columns`, `image` or `items`, and a label."""

    columns: Annotated[tuple[_AnyColumn, ...], Field(min_length=1)] = ()
    """The feature columns, in the order of the release, without that of the patient."""
    image: ImageColumns | None = left_out()
    """Pixels as feature columns, instead of ``columns``."""
    items: _Items | None = left_out()
    """Names of columns of 0 and 1, one for each item that a record may have, instead of
    ``columns``."""
    label: AnyLabel
    """The label column, or a time to an event."""
    more_labels: tuple[Label, ...] = left_out(())
    """Further columns to predict. All labels are measured as one, with a level for each of at most
    50 combinations; the noise of a bin grows with the square root of their number (`clustmix
    plan`). A row without one of the labels is left out."""
    ignore: tuple[Name, ...] = ()
    """Columns of the source that are not used; each has to be there."""
    derived: DerivedColumns = left_out({})
    """Functions of columns by the codebook."""
    constraints: tuple[Constraint, ...] = left_out(())
    """Public rules that every record of the source and of a release keeps."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(bool(part) for part in (self.columns, self.image, self.items)) != 1:
            raise ValueError("expected exactly one of columns, image and items")
        if self.image is not None:
            object.__setattr__(self, "columns", self.image.columns)
        if self.items is not None:
            object.__setattr__(self, "columns", item_columns(self.items))
        names = [*self.released_columns, *self.ignore]
        faults = []
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            faults.append(
                "expected each column once in columns, labels and ignore, or derived, found "
                f"{in_short(twice)} again"
            )
        several = len(self.all_labels) > 1
        if self.image is not None and (self.constraints or several or self.derived):
            key = "constraints" if self.constraints else "derived, more_labels or kind: survival"
            raise ValueError(f"{key}: expected none of an image")
        levels = {label.name: label.level_names for label in self.all_labels}
        try:
            refuse_together(derived_faults(self.derived, self.columns, self.constraints))
            require_declared(self.rules, self.columns, levels)
        except ValueError as error:
            faults.append(str(error))
        refuse_together(faults)
        together = self.labels  # refuses too many levels
        if several and (
            len(set(together.level_names)) < len(together.level_names)
            or together.name in (*names, *self.label_names)
        ):
            raise ValueError(
                "more_labels: expected names that distinguish combinations of levels, and no "
                f"column {together.name!r}; leave ', ' and '=' out of names and levels of labels"
            )
        return self

    @model_serializer(mode="wrap")
    def _as_declared(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Columns of an image or of items are not written, so that a schema has one short form.
        written: dict[str, Any] = write(self)
        if self.image is not None or self.items is not None:
            written.pop("columns", None)
        return written

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the feature columns."""
        return tuple(column.name for column in self.columns)

    @property
    def bases(self) -> dict[int, int]:
        """Base of each relative date, by places; a base comes before its dependents."""
        return bases_of(self.columns)

    def base_of(self, column: NumericColumn) -> NumericColumn | None:
        """Return the column from which a column counts, None for 0."""
        every = self.columns if column.base is not None else ()
        named = (one for one in every if one.name == column.base)
        return next((one for one in named if isinstance(one, NumericColumn)), None)

    @property
    def rules(self) -> tuple[Constraint, ...]:
        """The constraints, and one for each relative date: missing where its base is missing."""
        pairs = [(self.columns[own], self.columns[base]) for own, base in self.bases.items()]
        return self.constraints + tuple(
            Constraint(when={base.name: (None,)}, then={own.name: (None,)})
            for own, base in pairs
            if base.has_missing
        )

    @property
    def labels(self) -> Labels:
        """The labels together."""
        return Labels(self.all_labels)

    @property
    def all_labels(self) -> tuple[Label, ...]:
        """The label columns: first the outcome and the time of a survival label."""
        first = self.label.labels if isinstance(self.label, SurvivalLabel) else (self.label,)
        return (*first, *self.more_labels)

    @property
    def first_label(self) -> Label:
        """The label that comes first."""
        return self.all_labels[0]

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the label columns."""
        return tuple(label.name for label in self.all_labels)

    @property
    def measured_columns(self) -> tuple[str, ...]:
        """Names of the columns that are read and measured: features, then labels."""
        return (*self.column_names, *self.label_names)

    @property
    def released_columns(self) -> tuple[str, ...]:
        """Names of the released columns: features, derived columns, labels."""
        return (*self.column_names, *self.derived, *self.label_names)

    @property
    def derived_columns(self) -> tuple[Column, ...]:
        """The derived columns, as they are released."""
        return tuple(rule.column(name, self.columns) for name, rule in self.derived.items())

    def check_header(self, header: Sequence[str], needed: Iterable[str]) -> None:
        """Refuse a header (InputError); see `check_header`."""
        check_header(header, needed, self.ignore)


def check_header(header: Sequence[str], needed: Iterable[str], ignore: Iterable[str]) -> None:
    """Refuse (InputError) a header that lacks a column or has one that is not declared."""
    declared = {*needed, *ignore}
    absent = sorted(declared.difference(header))
    unknown = [name for name in header if name not in declared]
    if absent:
        # Found names are not shown: in a file without a header they are the row of a patient.
        raise refusal("HEADER_MISMATCH absent", names=in_short(absent))
    if unknown:
        raise refusal("HEADER_MISMATCH unknown", names=in_short(unknown))


def check_names(names: Sequence[str]) -> None:
    """Refuse (InputError) a header with empty or repeated names."""
    # By place, not by name: the first line of a text file without a header is a patient.
    firsts: dict[str, int] = {}
    for place, name in enumerate(names, start=1):
        if not name.strip():
            raise refusal("HEADER_EMPTY_NAME", place=place)
        first = firsts.setdefault(name, place)
        if first < place:
            raise refusal("HEADER_DUPLICATE", first=first, place=place)
