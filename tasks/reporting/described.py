"""A release in the terms of data catalogues, shared by all catalogue entries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from storage.files.documents import FileDigest
from storage.releases.manifest import Manifest
from storage.schema.catalogue_entry import CatalogueEntry
from storage.schema.columns import NumericColumn, number_of
from storage.schema.table import TableSchema
from tasks.reporting.claim import Claim
from tasks.reporting.facts import described_column, origin

NOT_DECLARED = "not declared in the site file"


class ReleasedColumn(NamedTuple):
    """A released column: text, integer or number, with levels or bounds.

    ``missing`` is the missing code, None if missing values are empty cells or do not occur.
    """

    name: str
    kind: str
    about: str
    levels: tuple[str, ...]
    bounds: tuple[float, float] | None
    missing: str | None
    may_be_empty: bool

    @property
    def in_parquet(self) -> str:
        """Kind in the Parquet file, in which a code such as ``?`` makes numbers text."""
        return self.kind if self.missing is None or number_of(self.missing) is not None else "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Facts about a release for catalogues.

    ``patients`` is the declared number; ``public`` data are available to anybody. ``files`` are the
    files of the bundle that ``words.yaml`` describes.
    """

    manifest: Manifest
    schema: TableSchema
    title: str
    declared: CatalogueEntry
    patients: int | None
    public: bool
    files: Mapping[str, FileDigest]

    @property
    def name(self) -> str:
        """Title and release in one line."""
        return f"{self.title}: synthetic release {self.manifest.release_id}"

    @property
    def description(self) -> str:
        """Description of the rows, and the guarantee with its numbers."""
        return (
            f"{self.manifest.rows} synthetic rows in the form of the table {self.manifest.dataset} "
            f"({self.title}). {''.join(f'{text} ' for text in origin(self.manifest))}The number of "
            f"rows was chosen. {Claim(self.manifest).statement} No row is that of a person."
        )

    @property
    def purpose(self) -> str:
        """Intended use, declared or as in the report."""
        return self.declared.purpose or (
            "To explore, to teach, to build and test software, and to plan a study; every finding "
            "is to be confirmed on data of record."
        )

    @property
    def keywords(self) -> list[str]:
        """Declared keywords, and two for every release."""
        return list(
            dict.fromkeys([*self.declared.keywords, "synthetic data", "differential privacy"])
        )

    def columns(self) -> Iterator[ReleasedColumn]:
        """Return every released column, the labels last."""
        pixels = self.schema.image is not None
        for column in self.schema.columns:
            about = "gray level of a pixel" if pixels else described_column(column)
            code = None if column.nullable or not column.missing else column.missing[0]
            shared = (code, column.nullable)
            if isinstance(column, NumericColumn):
                kind = "integer" if column.kind == "integer" else "number"
                yield ReleasedColumn(
                    column.name, kind, about, (), (column.lower, column.upper), *shared
                )
            else:
                yield ReleasedColumn(column.name, "text", about, column.levels, None, *shared)
        for label in (self.schema.label, *self.schema.more_labels):
            yield ReleasedColumn(label.name, "text", "label", label.level_names, None, None, False)
