"""The declared table, typed or from a file. Nothing in it is ever inferred from rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import ModelWrapValidatorHandler, ValidationError, ValidationInfo, model_validator

from clustmix.target import in_one_line
from privacy.errors import refusals
from storage.schema import column_blocks, columns, date_columns, event_tables, labels
from storage.schema.columns import Declaration
from storage.schema.faults import require_filled_in
from storage.schema.plain_yaml import read_mapping
from storage.schema.table import TableSchema

refusal = refusals(__package__)


class _Declared(Declaration):
    """A declaration that is refused in one line, as an error of this package."""

    @model_validator(mode="wrap")
    @classmethod
    def _refused_in_one_line(
        cls, declared: Any, check: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        try:
            return check(declared)
        except ValidationError as error:
            given = declared if isinstance(declared, dict) else {}
            place = (info.context or {}).get("file", "")
            refused = in_one_line("SCHEMA_INVALID", error, given, of=cls.__name__, place=place)
        raise refused


class IntegerColumn(_Declared, columns.NumericColumn):
    """A column of whole numbers, with public bounds and bins.

    Parameters
    ----------
    name : str
        Name of the column.
    lower, upper : int
        Public bounds, both included; a value outside is clipped.
    bins : int or sequence of int
        Number of bins of equal width, or their edges from `lower` to `upper` or ``upper + 1``.
    missing : sequence of str, default ()
        Raw codes that mean "missing", such as ``?`` or ``-1``.
    nullable : bool, default False
        Whether an empty cell is allowed, and means "missing".

    Examples
    --------
    >>> from clustmix import IntegerColumn
    >>> IntegerColumn(name="age", lower=0, upper=99, bins=(0, 18, 65, 100)).n_bins
    3
    """

    kind: Literal["integer"] = "integer"


class RealColumn(_Declared, columns.NumericColumn):
    """A column of numbers with decimals; other parameters are those of `IntegerColumn`.

    Parameters
    ----------
    lower, upper, bins : float
        Bounds, and the number or the edges of bins, with `decimals` decimals at most.
    decimals : int from 0 to 6, default 2
        Decimals of a synthetic value.

    Examples
    --------
    >>> from clustmix import RealColumn
    >>> RealColumn(name="potassium", lower=1.0, upper=9.0, bins=8, decimals=1).bin_starts[:2]
    (1.0, 2.0)
    """

    kind: Literal["real"] = "real"


class DateColumn(_Declared, date_columns.DateColumn):
    """A column of dates; other parameters are those of `IntegerColumn`.

    Parameters
    ----------
    lower, upper, bins : str
        First and last day (``2015-01-31``); ``year``, ``quarter``, ``month``, a number, or edges.
    relative_to, format, timezone : str, optional
        Column from which this one is counted, in days; form of the cells, such as ``%d.%m.%Y``;
        zone whose day counts for moments with an offset.

    Examples
    --------
    >>> from clustmix import DateColumn
    >>> DateColumn(name="born", lower="1920-01-01", upper="2025-12-31", bins="year").n_bins
    106
    """

    kind: Literal["date"] = "date"


class CategoricalColumn(_Declared, columns.CategoricalColumn):
    """A column of public levels. A value that is none of them is refused, or becomes `other`.

    Parameters
    ----------
    name : str
        Name of the column.
    levels : sequence of str
        Levels of the synthetic column.
    other : str, optional
        The level of every value that is not declared.
    groups, prefixes, numeric_ranges : mapping, default {}
        Raw values, their beginnings, and ranges ``(lower, upper)`` of numbers, by their level.
    missing : sequence of str, default ()
        Raw codes that mean "missing", such as ``?``.
    nullable : bool, default False
        Whether an empty cell is allowed, and means "missing".

    Examples
    --------
    >>> from clustmix import CategoricalColumn
    >>> CategoricalColumn(name="ward", levels=("A", "B", "other"), other="other").n_codes
    3
    """

    kind: Literal["categorical"] = "categorical"


class Label(_Declared, labels.Label):
    """A column that models trained on synthetic rows are to predict.

    Parameters
    ----------
    name : str
        Name of the column.
    levels : mapping of str to sequence of str
        Raw values by level, in the order of the levels; a level's own name stands for itself.
    buckets : mapping, optional
        Instead of `levels`: ``edges`` that cut a number into as many ``levels`` and one more.
    prefixes : mapping of str to sequence of str, default {}
        Beginnings of raw values, such as those of ICD codes, by level.
    other : str, optional
        The level of every value that is not declared.
    positive : str, optional
        The positive level of two.
    missing : sequence of str, default ()
        Raw codes that mean "no label"; such rows are left out.
    nullable : bool, default False
        Whether an empty cell is allowed, and means "no label".

    Examples
    --------
    >>> from clustmix import Label
    >>> Label(name="died", levels={"no": ("0",), "yes": ("1",)}).level_names
    ('no', 'yes')
    """


class ImageColumns(_Declared, column_blocks.ImageColumns):
    """Images: a column ``pixel_ROW_COLUMN`` of whole numbers from 0 to 255 for each pixel.

    Parameters
    ----------
    height, width : int from 1 to 64
        Rows and columns of pixels.
    channels : 1 or 3, default 1
        Gray images, or red, green and blue.
    gray_levels : int from 2 to 256, default 256
        Levels of a channel, in equal parts of the range.
    threshold : int from 1 to 255, optional
        With two levels: the smallest value of a white pixel, a public number such as 128.

    Examples
    --------
    >>> from clustmix import ImageColumns
    >>> ImageColumns(height=28, width=28, gray_levels=2, threshold=128).levels
    (0, 255)
    """


class EventTable(_Declared, event_tables.EventDeclaration):
    """A table of events beside the patients: any number of rows of a patient, in order of time.

    Parameters
    ----------
    name, key : str
        Name of the table, and its column that names the patient.
    at : mapping
        ``column`` of the moment, a date or whole days; columns of the patient: ``since``, from
        which days count, ``not_before`` and ``until``, between which events lie.
    max_rows_per_patient : int from 1 to 1,000
        Events of a patient that are used: the first ones.
    columns : sequence of IntegerColumn, RealColumn, DateColumn and CategoricalColumn
        Columns of an event, with that of its moment.
    kind, value, label : str, optional
        Columns of the kind of an event and of its number, and a column of levels to predict.
    values : mapping, default {}
        ``lower``, ``upper`` and ``bins`` of the number by kind, None for a kind that has none.
    gaps, offsets : sequence of float, optional
        Edges in days of bins of the time since the event before, and of the first moment.
    share : float, optional
        Part of the squared budget; by default an equal part of the rest.
    ignore : sequence of str, default ()
        Columns that are not used.

    Examples
    --------
    >>> from clustmix import CategoricalColumn, EventTable, IntegerColumn
    >>> visits = EventTable(
    ...     name="visits", key="patient", at={"column": "day"}, max_rows_per_patient=10,
    ...     columns=(IntegerColumn(name="day", lower=0, upper=365, bins=12),
    ...              CategoricalColumn(name="ward", levels=("A", "B"))), kind="ward",
    ... )
    >>> visits.gap_edges
    (0.0, 1.0, 8.0, 31.0, 91.0, 181.0)
    """


class Schema(_Declared, TableSchema):
    """Everything that is declared about one table: `columns`, or `image`, or `items`, and a label.

    Bounds, bins and levels come from a codebook or from clinical knowledge, never from the rows:
    the guarantee does not cover them. A refusal is a ConfigurationError that names the key.

    Parameters
    ----------
    columns : sequence of IntegerColumn, RealColumn, DateColumn and CategoricalColumn
        The feature columns, in the order of the synthetic table, without that of the patient.
    image : ImageColumns, optional
        Pixels of images as the feature columns, instead of `columns`.
    items : sequence of str, optional
        Names of columns of 0 and 1, instead of `columns`.
    label : Label or mapping
        The label column; or a time to an event, with the keys of ``kind: survival`` in a site file.
    more_labels : sequence of Label, default ()
        More columns that models are to predict. All labels are measured as one, with a level for
        each of at most 50 combinations.
    ignore : sequence of str, default ()
        Columns that the table has and that are not used.
    derived : mapping, default {}
        Rules of columns that follow from features, with the keys of a site file: not measured.
    constraints : sequence of mapping, default ()
        Public rules that every record keeps, with the keys of a site file.
    events : sequence of EventTable, default ()
        Tables of events of the same patients.

    Examples
    --------
    >>> from clustmix import CategoricalColumn, IntegerColumn, Label, Schema
    >>> schema = Schema(
    ...     columns=(
    ...         IntegerColumn(name="age", lower=0, upper=99, bins=5),
    ...         CategoricalColumn(name="ward", levels=("A", "B")),
    ...     ),
    ...     label=Label(name="died", levels={"no": ("0",), "yes": ("1",)}),
    ... )
    >>> schema.column_names, schema.label.level_names
    (('age', 'ward'), ('no', 'yes'))
    """

    events: tuple[EventTable, ...] = columns.left_out(())

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read the key ``schema`` of a site file, or a file that is a schema alone.

        That is plain YAML (UTF-8, at most 1 MB), or the ``schema.json`` of a bundle. Anything else,
        a FILL_IN, and a bad declaration are a ConfigurationError of one line that names the keys.
        """
        path = Path(path)
        data = read_mapping(path)
        data.pop("measured_bins", None)  # beside the schema in schema.json of a bundle
        declared = data.get("schema", data)
        require_filled_in("SCHEMA_INCOMPLETE", declared, path.name)
        return cls.model_validate(declared, context={"file": path.name})

    @staticmethod
    def from_frame(frame: Any, *, label: str, patient: str | None = None) -> Schema:
        """Draft a schema from the names and types of columns. No cell is read.

        Levels of a categorical type (of pandas, polars or Arrow) and of truth values are taken
        over; every other bound, bin and level is FILL_IN, for a person with a codebook to replace:
        write the draft with `to_yaml`, and read the finished file with `from_yaml`.

        Parameters
        ----------
        frame
            A table as of `clustmix.Synthesizer.fit`.
        label, patient
            Columns that models are to predict, and that names the patient, which is left out.

        Raises
        ------
        ConfigurationError
            If a named column is not in the table, or a column cannot be declared.

        Privacy
        -------
        Take care that a categorical type was declared by a person: one that was made from the rows
        has the levels of the rows, and the guarantee does not cover them.
        """
        from clustmix.drafts import of_frame

        return of_frame(frame, label=label, patient=patient)

    @staticmethod
    def from_codebook(path: str | Path, *, label: str, patient: str | None = None) -> Schema:
        """Draft a schema from a codebook, as ``clustmix init`` reads it, as `from_frame` does.

        Numbers with bounds have a bin for each of up to 20 values, else 10 of equal width; dates
        have one a year. Empty cells are allowed unless it excludes them. Identifiers and free text
        are ignored. FILL_IN marks each fact that it lacks. Another file is a ConfigurationError.
        """
        from clustmix.drafts import of_codebook

        return of_codebook(Path(path), label=label, patient=patient)

    def to_yaml(self, path: str | Path | None = None) -> str:
        """Return the schema as YAML that `from_yaml` and site files read; write it to a new file.

        It is a ConfigurationError if there is a file of this name, or none can be made there.
        """
        from clustmix.saved import write_new

        text = yaml.safe_dump(self._written(), sort_keys=False, allow_unicode=True)
        if path is not None:
            write_new(Path(path), text.encode("utf-8"))
        return text

    def _written(self) -> dict[str, Any]:
        # A draft has text in the place of numbers, of which the serializer would warn.
        options: dict[str, Any] = {"mode": "json", "exclude_defaults": True, "warnings": False}
        written = self.model_dump(**options)
        if "columns" in written:
            written["columns"] = [
                {"name": column.name, "kind": column.kind, **column.model_dump(**options)}
                for column in self.columns
            ]
        if self.events:
            written["events"] = [table.model_dump(mode="json") for table in self.events]
        return written


def require_schema(schema: object) -> None:
    """Refuse (ConfigurationError) what is no schema, and a draft in which a placeholder is left."""
    if not isinstance(schema, Schema):
        raise refusal("SCHEMA_INVALID", kind=schema.__class__.__name__)
    require_filled_in("SCHEMA_INCOMPLETE", schema._written(), "schema")
