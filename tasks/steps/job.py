"""What a release is asked to be: the public facts of its site file, in the terms of the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from privacy.calibration import release_mu, release_rho
from privacy.charges import Caps, Charge, Partition, unit_in_words
from privacy.parameters import Adjacency, PrivacyParameters, PrivacyUnit
from storage.files.refs import ReleaseRef
from storage.schema.catalogue_entry import CatalogueEntry
from storage.schema.declarations import Declarations, without_places
from storage.schema.table import TableSchema
from storage.schema.visit_columns import VisitColumns
from storage.sources.declared import Source
from tasks.ingest.encoding import domain_of
from tasks.measurement.method import Synthesizer
from tasks.methods.method_config import MethodConfig
from tasks.methods.registry import build

if TYPE_CHECKING:
    from tasks.ingest.pieces import IngestRules  # which loads the gates


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseJob:
    """Everything public that a release needs, taken from its site file.

    The cohort is the patients whose budget pays, also for other datasets; its lifetime epsilon is
    as declared, the caps are in the currency of the ledger. The partition is the part of the
    patients that is read, None for all; the requester the key id of who asked; the number of
    patients, if any, a declared one. The site is the site file as JSON values.
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
    needs_approval: bool
    requester: str | None
    method: MethodConfig
    rows: int
    soft_labels: bool = False
    patients: int | None = None
    site: dict[str, Any]

    @property
    def mu(self) -> float:
        """Gaussian-DP budget under add or remove of one patient."""
        return release_mu(self.parameters, adjacency=self.adjacency)

    @property
    def charge_rho(self) -> Decimal:
        """What the ledger charges, in rho under add or remove of one patient."""
        return release_rho(self.parameters, adjacency=self.adjacency)

    @property
    def measurement_settings(self) -> dict[str, Any]:
        """What of the site file shapes the measurement: not rows, title, caps or approval."""
        return measurement_settings(self.site, cohort=self.cohort)

    @property
    def declarations(self) -> Declarations:
        """What the rows have to keep."""
        return Declarations.of(self.site)

    @property
    def catalogue(self) -> CatalogueEntry:
        """What catalogues are told beyond the manifest."""
        return CatalogueEntry.model_validate(self.site.get("catalogue") or {})

    @property
    def rules(self) -> IngestRules:
        """What is public of reading the table, and all that a worker has to know."""
        from tasks.ingest.pieces import IngestRules

        return IngestRules(
            schema=self.table_schema,
            unit=self.unit,
            partition=self.partition,
            visits=self.visits,
        )

    @property
    def unit_in_words(self) -> str:
        """What one neighbour adds or removes, and what a record is made of."""
        words = unit_in_words(self.unit, self.partition)
        return words if self.visits is None else f"{words}, {self.visits.words}"

    @property
    def synthesizer(self) -> Synthesizer:
        """The method, bound to the public domain."""
        domain = domain_of(self.table_schema)
        return build(
            self.method,
            replace(domain, rows_per_patient=self.unit.max_rows, patients=self.patients),
        )

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


def measurement_settings(declared: Mapping[str, Any], *, cohort: str) -> dict[str, Any]:
    """Return what shapes a measurement of a site file, see `ReleaseJob.measurement_settings`."""
    kept = ("dataset", "schema", "privacy_unit", "privacy", "method")
    source = without_places(declared["source"])
    # Site files that were sealed earlier declare no number of patients.
    patients = {"patients": declared["patients"]} if declared.get("patients") else {}
    return {key: declared[key] for key in kept} | patients | {"cohort": cohort, "source": source}
