"""The declared table, typed or from a file. Nothing in it is ever inferred from rows."""

from pathlib import Path
from typing import Self

from pydantic import ValidationError

from storage.schema.column_blocks import ImageColumns
from storage.schema.columns import CategoricalColumn, NumericColumn
from storage.schema.labels import Label
from storage.schema.plain_yaml import one_line, read_mapping, refusal
from storage.schema.table import TableSchema

__all__ = ["CategoricalColumn", "ImageColumns", "Label", "NumericColumn", "Schema"]


class Schema(TableSchema):
    """Everything that is declared about one table: `columns`, or `image`, or `items`, and a label.

    Bounds, bins and levels come from a codebook or from clinical knowledge, never from the rows:
    the guarantee does not cover them.

    Parameters
    ----------
    columns
        The feature columns, in the order of the synthetic table: `NumericColumn` and
        `CategoricalColumn`, or mappings with the keys of a site file. The column that names the
        patient is not among them.
    image
        Pixels of images as the feature columns, instead of ``columns``.
    items
        Names of columns of 0 and 1, instead of ``columns``.
    label
        The label column.
    more_labels
        More columns that models are to predict: all labels are measured as one, with a level for
        each of at most 50 combinations.
    ignore
        Columns that the table has and that are not used.
    constraints
        Public rules that every record keeps, as mappings with the keys of a site file.

    Raises
    ------
    pydantic.ValidationError
        If something is declared that is not acceptable.

    Examples
    --------
    >>> from clustmix import CategoricalColumn, Label, NumericColumn, Schema
    >>> schema = Schema(
    ...     columns=(
    ...         NumericColumn(name="age", kind="integer", lower=0, upper=99, bins=5),
    ...         CategoricalColumn(name="ward", kind="categorical", levels=("A", "B")),
    ...     ),
    ...     label=Label(name="died", levels={"no": ("0",), "yes": ("1",)}),
    ... )
    >>> schema.column_names, schema.label.level_names
    (('age', 'ward'), ('no', 'yes'))
    """

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read the schema part of a site file, or a file that is a schema alone.

        Parameters
        ----------
        path
            A YAML file in UTF-8 of at most 1 MB, or the ``schema.json`` of a bundle; of a site file
            the key ``schema`` is read.

        Raises
        ------
        ConfigurationError
            If the file cannot be read, is not plain YAML, or declares something that is not
            acceptable. The message is one printable line that names the key.
        """
        path = Path(path)
        data = read_mapping(path)
        data.pop("measured_bins", None)  # beside the schema in schema.json of a bundle
        declared = data.get("schema", data)
        try:
            return cls.model_validate(declared)
        except ValidationError as error:
            problem = one_line(error, declared if isinstance(declared, dict) else data)
        raise refusal("SCHEMA_INVALID", f"{path.name}: {problem}")
