"""The first visits of a patient as columns of one row, as declared."""

from typing import Annotated, Self

from pydantic import Field, StrictInt, model_validator

from storage.schema.columns import Declaration, Name
from storage.schema.table import TableSchema


class VisitColumns(Declaration):
    """Makes one row of a patient's first visits, where the source has a row for each visit.

    The column ``weight`` becomes ``weight_1``, ``weight_2`` and so on, which `schema.columns`
    declares, each by itself; they follow the visits in time. A patient with fewer visits has none
    of the later ones, so these are nullable or have a code in ``missing``. All other columns, and
    the labels, are those of the first visit. A row without a label is no visit.

    The schema has neither ``weight`` nor the column of the order. Constraints may name no column of
    a visit, and are asked of every row of the source. There are none with ``analysis: published``.

    Examples
    --------
    >>> from storage.schema.visits import VisitColumns
    >>> visits = VisitColumns(first=3, order="admitted", columns=("weight",))
    >>> visits.places("weight")
    ('weight_1', 'weight_2', 'weight_3')
    """

    first: Annotated[StrictInt, Field(ge=2, le=50)]
    """How many visits of a patient are used, the earliest ones."""
    order: Name
    """Column that orders a patient's visits: numbers, or dates and times as ISO 8601 writes them.
    It is read and never released. What falls on one moment is ordered by a digest of the row."""
    columns: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Columns of the source that every visit has its own of."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = (self.order, *self.columns)
        if len(set(names)) != len(names):
            raise ValueError("expected each column once in order and columns")
        return self

    def places(self, column: str) -> tuple[str, ...]:
        """Return the released columns that a column of the source becomes."""
        return tuple(f"{column}_{visit}" for visit in range(1, self.first + 1))

    @property
    def released(self) -> frozenset[str]:
        """All columns of the release that are of one visit."""
        return frozenset(name for column in self.columns for name in self.places(column))

    @property
    def words(self) -> str:
        """What a record is made of."""
        return f"a record has the first {self.first} visits by column {self.order}"

    def source_columns(self, schema: TableSchema) -> tuple[str, ...]:
        """Return the columns of the source that make the released ones, with the order."""
        alike = [name for name in schema.released_columns if name not in self.released]
        return (*alike, *self.columns, self.order)

    def check_schema(self, schema: TableSchema) -> None:
        """Refuse (ValueError) a schema that does not declare these columns, or them alone."""
        declared = {column.name: column for column in schema.columns}
        absent = sorted(self.released - declared.keys())
        if absent:
            raise ValueError(f"visits: expected schema.columns to declare {', '.join(absent)}")
        later = [name for column in self.columns for name in self.places(column)[1:]]
        never = [name for name in later if not declared[name].has_missing]
        if never:
            raise ValueError(
                f"visits: expected {', '.join(never)} to be nullable or to have missing codes, as "
                "a patient may have fewer visits"
            )
        twice = {*schema.released_columns, *schema.ignore} & {self.order, *self.columns}
        if twice:
            raise ValueError(
                f"visits: expected {', '.join(sorted(twice))} in visits alone, and not in the "
                "schema, which declares what is released"
            )
        rules = schema.constraints
        ruled = {name for rule in rules for name in (*rule.columns, *(rule.mend or ()))}
        ruled &= self.released
        if ruled:
            raise ValueError(
                f"schema.constraints: expected none of {', '.join(sorted(ruled))}, a column of one "
                "visit; rules are asked of the rows of the source"
            )
