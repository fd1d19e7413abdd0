"""The first visits of a patient as columns of one row, as declared."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, model_validator

from storage.schema.columns import Column, Declaration, Name
from storage.schema.table import TableSchema, in_short


class VisitColumns(Declaration):
    """Makes one row of a patient's first visits, where the source has a row for each visit.

    The column ``weight`` becomes ``weight_1``, ``weight_2`` and so on, which `schema.columns`
    declares, all alike; they follow the visits in time. A patient with fewer visits has none of the
    later ones, so these columns are nullable or have a code in ``missing``. All other columns, and
    the labels, are those of the first visit. A row without a label is no visit; two identical rows
    are two visits.

    ``max_rows_per_patient`` is 1. The schema has neither ``weight`` nor the column of the order.
    Constraints may name no column of a visit, and are asked of every row of the source. Visits are
    refused with ``analysis: published``, and of a source of kind omop or fhir, which makes the rows
    of patients itself.

    Examples
    --------
    >>> from storage.schema.visit_columns import VisitColumns
    >>> visits = VisitColumns(first=3, order="admitted", columns=("weight",))
    >>> visits.places("weight")
    ('weight_1', 'weight_2', 'weight_3')
    """

    first: Annotated[StrictInt, Field(ge=2, le=50)]
    """How many visits of a patient are used, the earliest ones."""
    order: Name
    """Column that orders a patient's visits. It is read and never released. Visits of one moment
    are ordered by a digest of the patient and the row."""
    order_by: Literal["dates", "numbers"] = "dates"
    """What that column holds: ``dates``, with or without a time of day, as ISO 8601 writes them, to
    the microsecond; or ``numbers`` below 2^53."""
    columns: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Columns of the source that every visit has its own of."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = (self.order, *self.columns)
        if len(set(names)) != len(names):
            raise ValueError("expected each column once in order and columns")
        return self

    @property
    def words(self) -> str:
        """What a record is made of."""
        return f"with the first {self.first} visits by column {self.order} as one record"

    def places(self, column: str) -> tuple[str, ...]:
        """Return the released columns that a column of the source becomes."""
        return tuple(f"{column}_{visit}" for visit in range(1, self.first + 1))

    @property
    def released(self) -> tuple[str, ...]:
        """All columns of the release that are of one visit."""
        return tuple(name for column in self.columns for name in self.places(column))

    def row_schema(self, schema: TableSchema) -> TableSchema:
        """Return the schema of a row of the source; `check_schema` has passed."""
        own = {name: column for column in self.columns for name in self.places(column)}
        columns = dict[str, Column]()
        for column in schema.columns:
            name = own.get(column.name, column.name)
            columns.setdefault(name, column.model_copy(update={"name": name}))
        return schema.model_copy(update={"columns": tuple(columns.values())})

    def source_columns(self, schema: TableSchema) -> tuple[str, ...]:
        """Return the columns of the source that make the released ones, with the order."""
        return (*self.row_schema(schema).released_columns, self.order)

    def check_schema(self, schema: TableSchema) -> None:
        """Refuse (ValueError) a schema that does not declare these columns, or them alone."""
        declared = {column.name: column for column in schema.columns}
        problem = None
        if absent := [name for name in self.released if name not in declared]:
            problem = f"expected schema.columns to declare {in_short(absent)}"
        elif unlike := [
            column
            for column in self.columns
            if len({repr(declared[n].model_copy(update={"name": ""})) for n in self.places(column)})
            > 1
        ]:
            problem = f"expected the columns of {in_short(unlike)} to be declared alike"
        elif never := [c for c in self.columns if not declared[self.places(c)[0]].has_missing]:
            problem = (
                f"expected the columns of {in_short(never)} to be nullable or to have missing "
                "codes, as a patient may have fewer visits"
            )
        elif twice := sorted(
            {*schema.released_columns, *schema.ignore} & {self.order, *self.columns}
        ):
            problem = f"expected {in_short(twice)} here alone, and not in the schema"
        elif ruled := sorted(
            {n for rule in schema.constraints for n in (*rule.columns, *(rule.mend or ()))}
            & {*self.released}
        ):
            problem = f"expected no constraint of {in_short(ruled)}"
        if problem is not None:
            raise ValueError(f"privacy_unit.visits: {problem}")
