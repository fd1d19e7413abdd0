"""The request for a release: the public facts of its site file, in the terms of the steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BaseModel, Field

from privacy.calibration import release_mu, release_rho
from privacy.charges import Caps, Charge, Partition, unit_in_words
from privacy.parameters import Adjacency, PrivacyParameters, PrivacyUnit
from storage.files.refs import ReleaseRef
from storage.schema.declarations import CatalogueEntry, Declarations, sources_of
from storage.schema.table import TableSchema
from storage.schema.visit_columns import PERIOD_KEY, ByEntry, VisitColumns
from storage.sources.declared import Source
from tasks.ingest.encoding import domain_of
from tasks.measurement.method import Synthesizer
from tasks.methods.registry import METHODS, build, method_entry

if TYPE_CHECKING:
    from tasks.ingest.pieces import IngestRules  # which loads the gates

    class MethodConfig(BaseModel):
        """Settings of a method of any kind, for type checkers."""

        kind: str

else:
    MethodConfig = Annotated[
        Union[tuple(entry.config for entry in METHODS)],  # noqa: UP007 - of a list
        Field(discriminator="kind"),
    ]
    """Settings of any registered method, distinguished by ``kind``, as a site file holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAsked:
    """Rows and gate of a request, which shape no measurement; its caps set the budget left."""

    rows: int
    soft_labels: bool
    points: int | None
    caps: Caps
    gate: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseJob:
    """Everything public that a release needs, taken from its site file.

    The cohort is the patients whose budget pays, also for other datasets; its lifetime epsilon is
    as declared, the caps are in the currency of the ledger. The partition is the part of the
    patients that is read, None for all; entry is its rule, if it has periods. `requester` is the
    key id of the person who asked, `patients` their declared number, `parts` the number of parts of
    a pool, and `points` those of a distillation. Events are the tables beside that of the patients,
    each with its source (`tasks.histories.event_sources`). `site` has the values of the site file.
    """

    ref: ReleaseRef
    title: str
    source: Source
    table_schema: TableSchema
    columns_to_read: tuple[str, ...]
    unit: PrivacyUnit
    visits: VisitColumns | None = None
    parameters: PrivacyParameters
    adjacency: Adjacency
    cohort: str
    lifetime_epsilon: float
    caps: Caps
    partition: Partition | None
    entry: ByEntry | None = None
    needs_approval: bool
    requester: str | None
    method: MethodConfig
    rows: int
    soft_labels: bool = False
    points: int | None = None
    patients: int | None = None
    parts: int = 1
    pool_last: int | None = None
    events: tuple[Any, ...] = ()
    site: dict[str, Any]

    @property
    def mu(self) -> float:
        """Gaussian-DP budget under add or remove of one patient."""
        return release_mu(self.parameters, adjacency=self.adjacency)

    @property
    def charge_rho(self) -> Decimal:
        """The charge to the ledger, in rho under add or remove of one patient."""
        return release_rho(self.parameters, adjacency=self.adjacency)

    @property
    def period(self) -> str | None:
        """Period of the patients who are read, if by entry."""
        return None if self.partition is None else self.partition.period

    @property
    def measurement_settings(self) -> dict[str, Any]:
        """Settings of the site file that shape the measurement: not rows, title, caps or approval.

        A key that is new in a later version and left out has to be left out here as well, by
        ``exclude_if`` of its field: otherwise an upgrade measures, and charges, every table again.
        """
        kept = ("dataset", "schema", "privacy_unit", "privacy", "method", "patients")
        settings = {key: self.site[key] for key in kept if key in self.site}
        if self.period is not None:
            settings[PERIOD_KEY] = self.period
        if self.parts > 1:
            settings["parts"] = self.parts
        return settings | {"cohort": self.cohort, **sources_of(self.site)}

    @property
    def asked(self) -> RowsAsked:
        """The part of the job that shapes no measurement."""
        gate = self.site.get("gate", {})
        more: dict[str, Any] = {"soft_labels": self.soft_labels, "points": self.points}
        return RowsAsked(rows=self.rows, caps=self.caps, gate=gate, **more)

    def reading(self, table: Path | None) -> ReleaseJob:
        """Return the job with another file as its table; None leaves it as it is."""
        if table is None:
            return self
        return replace(self, source=self.source.model_copy(update={"path": table, "data": None}))

    @property
    def method_version(self) -> int:
        """Version of the method: it changes with what is drawn for the same settings."""
        return method_entry(self.method.kind).version

    @property
    def identity(self) -> dict[str, Any]:
        """Settings and version that shape the measurement, as `Tables.key` takes them."""
        return {"settings": self.measurement_settings, "method_version": self.method_version}

    @property
    def declarations(self) -> Declarations:
        """The declarations that the rows have to keep."""
        return Declarations.of(self.site)

    @property
    def catalogue(self) -> CatalogueEntry:
        """Facts for catalogues beyond the manifest."""
        return CatalogueEntry.model_validate(self.site.get("catalogue") or {})

    @property
    def rules(self) -> IngestRules:
        """Public rules for reading the table: all that a worker needs."""
        from tasks.ingest.pieces import IngestRules, NumberMarks

        source = self.source
        marks = NumberMarks(source.decimal, source.thousands) if source.kind == "csv" else None
        return IngestRules(
            marks=marks,
            schema=self.table_schema,
            unit=self.unit,
            partition=self.partition,
            entry=self.entry,
            visits=self.visits,
            suite=self.asked.gate.get("expectations"),
            histories=self.histories,
            coder=self.histories and self.histories.people,
        )

    @property
    def histories(self) -> Any:
        """The tables of events beside the patients, or None; see `tasks.histories.event_shards`."""
        if not self.events:
            return None
        return import_module("tasks.histories.event_shards").Histories(
            schema=self.table_schema, tables=self.events, release=self.synthesizer
        )

    @property
    def caution(self) -> str | None:
        """A warning where parts rest on the spelling of keys, and no form of a key is declared."""
        if self.partition is None or self.unit.key_pattern is not None:
            return None
        return (
            "patients are divided by their keys as they are written: one who is 7 in one table and "
            "07 in another can be in two parts, which count too little; declare privacy_unit.key"
        )

    @property
    def parts_declare(self) -> dict[str, Any]:
        """The declarations that parts of a pool have alike."""
        return {
            "method": {**self.method.model_dump(mode="json"), "version": self.method_version},
            "schema": self.table_schema.model_dump(mode="json"),
            "max_rows_per_patient": self.unit.max_rows,
            "visits": None if self.visits is None else self.visits.model_dump(mode="json"),
            "delta": self.parameters.delta,
            "adjacency": self.adjacency.value,
        }

    @property
    def unit_in_words(self) -> str:
        """The unit that one neighbour adds or removes, and the makeup of a record, in words."""
        words = [unit_in_words(self.unit, self.partition)]
        words += [] if self.visits is None else [self.visits.words]
        names = " and ".join(table.name for table in self.events)
        return ", ".join([*words, *([f"with that patient's rows of {names}"] if names else [])])

    @property
    def synthesizer(self) -> Synthesizer:
        """The method, bound to the public domain."""
        domain = domain_of(self.table_schema)
        given: dict[str, Any] = {"patients": self.patients, "parts": self.parts}
        domain = replace(domain, rows_per_patient=self.unit.max_rows, **given)
        if not self.events:
            return build(self.method, domain)
        found: Synthesizer = import_module("tasks.histories.event_frames").event_release(
            self.table_schema, self.events, domain
        )
        return found

    def charge(self, request_key: str, *, owner: str) -> Charge:
        """Return what this release, run by an installation, is to be charged for its request."""
        return Charge(
            cohort=self.cohort,
            dataset=self.ref.dataset,
            release_id=self.ref.release_id,
            request_key=request_key,
            rho=self.charge_rho,
            epsilon=self.parameters.epsilon,
            delta=self.parameters.delta,
            adjacency=self.adjacency,
            unit=self.unit_in_words,
            caps=self.caps,
            partition=self.partition,
            owner=owner,
            requester=self.requester,
            needs_approval=self.needs_approval,
        )
