"""The `events` section of a site file: tables of events, each with a source of its own."""

from collections.abc import Iterator
from functools import partial
from typing import Self

from storage.schema.columns import Name, did_you_mean, left_out
from storage.schema.event_tables import EventDeclaration
from storage.sources.declared import Source, check_source_unit

_FILES = ("rows", "synthetic", "tables", "draws", "distilled")


class EventSource(EventDeclaration):
    """Rows of a patient in order of time, in one plan, charge and measurement with the patients.

    ``NAME.parquet`` and ``NAME.csv`` of the bundle name patients of ``synthetic.parquet``. A row of
    no patient of the release is left out.
    """

    key: Name = left_out("")
    """That of ``privacy_unit`` if left out."""
    source: Source
    """Source of its rows."""

    def of(self, unit: str) -> Self:
        """Return the table with its key; the unit is the column that names the patient."""
        return self.model_copy(update={"key": self.key or unit})

    @property
    def columns_to_read(self) -> tuple[str, ...]:
        """Source columns, with the key."""
        return (self.key, *self.measured_columns)

    def faults(self) -> Iterator[str]:
        """Give the faults of name, key and source, in words; see `of`."""
        known = {*self.measured_columns, *self.ignore}
        if self.name in _FILES or self.name.startswith("omop_"):
            yield f"expected another name than {', '.join(_FILES)}, and none with omop_"
        if self.key in known:
            yield "key: expected a column outside columns and ignore, as it is never released"
        if stray := sorted(set(self.source.select) - known):
            yield (
                f"source.select: expected declared columns, found {', '.join(stray)}; list them "
                f"under ignore{did_you_mean(stray[0], known)}"
            )
        if self.source.kind == "fhir" and self.source.each is None:
            yield "source: expected a row for each event; give each, an expression of its resources"
        of_unit = partial(check_source_unit, self.source, self.key)
        for check in (of_unit, partial(self.source.check_image, None)):
            try:
                check()
            except ValueError as error:
                yield str(error).replace("privacy_unit.column", "key")


EventTables = tuple[EventSource, ...]
