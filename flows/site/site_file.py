"""The site file: the public declaration of one release in YAML."""

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictInt,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from privacy.errors import ConfigurationError
from privacy.parameters import Adjacency, PrivacyParameters, PrivacyUnit
from storage.files.documents import KEPT, listed
from storage.schema.columns import (
    Declaration,
    PrintableText,
    did_you_mean,
    left_out,
    refuse_together,
)
from storage.schema.date_columns import TimeZone
from storage.schema.declarations import CatalogueEntry
from storage.schema.faults import read_declared
from storage.schema.table import TableSchema
from storage.schema.visit_columns import AnyPartition, ByEntry, PublicName, VisitColumns
from storage.sources.declared import Source, check_source_unit
from tasks.ingest.encoding import domain_of
from tasks.steps.job import MethodConfig

if TYPE_CHECKING:
    _EventTables = tuple[Any, ...]
else:
    _EventTables = import_module("tasks.histories.event_sources").EventTables

_FAULTS = listed(__package__, "faults.toml")
_MOST_ROWS, _MOST_VALUES = 250_000, 50_000_000
"""Default limits. Rows cost no privacy, and many rows average out the chance in a label."""

_MOST_CODES = 16_000  # of a distilled point, which has a feature for each level and bin


class _Key(Declaration):
    """Form of a patient's key, where tables may spell it in several ways."""

    pattern: re.Pattern[str]
    """Regular expression of a whole key after these steps; others are refused."""
    normal: tuple[Literal["nfc", "lower", "strip_zeros"], ...] = ()
    """Composed accents, lower case, no leading zeros."""


class _Unit(Declaration):
    """The unit of protection."""

    column: Annotated[str, Field(min_length=1)] | None
    """Column that names the patient; None if every row is another patient."""
    max_rows_per_patient: Annotated[StrictInt, Field(ge=1, le=10_000)]
    """Most rows of one patient that are used. A digest of patient and row chooses among more."""
    key: _Key | None = left_out()
    """Its form; without it ``7`` and ``07`` are two patients."""
    partition: AnyPartition | None = None
    """Part of the patients that is read."""
    visits: VisitColumns | None = left_out()
    """The first visits of a patient as columns of one row."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.column is None and (self.partition or self.key) is not None:
            raise ValueError(_FAULTS["unnamed"])
        if self.column is None and self.max_rows_per_patient != 1:
            raise ValueError(_FAULTS["unnamed_rows"])
        if self.visits is not None and (self.column is None or self.max_rows_per_patient != 1):
            raise ValueError(_FAULTS["visits_unit"])
        return self


class _Privacy(Declaration):
    """The guarantee of one release."""

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(gt=0, lt=1e-3, allow_inf_nan=False)]
    """Parameters of the guarantee, see `PrivacyParameters`."""
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    """Relation of neighbouring tables."""


class _Window(Declaration):
    """Cap within any stretch of days."""

    days: Annotated[StrictInt, Field(ge=1, le=36_500)]
    """Length of the period before the moment of a release."""
    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Cap at the delta of a release."""


class _Budget(Declaration):
    """Caps on all releases together. The ledger keeps the smallest caps it was ever given."""

    lifetime_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Cap of the cohort over all time, at the delta of a release."""
    cohort: PublicName | None = None
    """Name of the patients whose budget this is, the same in all files about them; the dataset's
    own name if left out."""
    dataset_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Cap of this dataset alone, if several datasets share a cohort."""
    window: _Window | None = None
    """Cap of the cohort within any period of days."""


class _Schedule(Declaration):
    """Times of releases by the orchestrator; ``clustmix deploy`` registers them."""

    cron: Annotated[str, Field(pattern=r"^\S+( \S+){4}$")]
    """Minute, hour, day, month and day of the week, as cron has them."""
    timezone: TimeZone = "UTC"
    """Zone of these times."""


class _Arrival(Declaration):
    """Rules for a table that arrives in the landing folder."""

    max_age_hours: Annotated[StrictInt, Field(ge=1, le=720)] = 24
    """Largest age of an announcement, counted from its signature."""


def _suite_of(value: object) -> object:
    from tasks.gates.suites import read_suite  # which loads pandas

    return read_suite(Path(value)) if isinstance(value, str) else value


class _Gate(Declaration):
    """Your own expectations, a suite as Great Expectations 1.24 stores it.

    Those of single rows, without ``mostly``, are rules of the source. All run on the synthetic
    rows: a failure withholds the release. ``meta: {gate: input}`` or ``output`` of an expectation
    chooses one gate. Both read a declared number as a number, other cells as text and missing codes
    as null. SQL, code, conditions, parameters and other tables are refused.
    """

    expectations: Annotated[
        dict[str, JsonValue],
        BeforeValidator(_suite_of),
        WithJsonSchema({"type": "string", "format": "path"}),
    ]
    """JSON file of the suite. Relative paths start at the current directory."""
    page: StrictBool = False
    """Add its documentation page of the synthetic rows, ``expectations.html``."""


class _Distill(Declaration):
    """Few points with soft labels from which a model learns as from the released rows.

    `distilled.parquet` of the bundle: computed from its rows, so that it costs no budget. Needs
    the extra ``distill``.
    """

    points: Annotated[StrictInt, Field(ge=10, le=2_000)]
    """Number of points."""


class _Pool(Declaration):
    """The last parts of a partition as one more bundle, after each release. It costs no budget."""

    last: Annotated[StrictInt, Field(ge=2, le=1000)]
    """Number of parts; before there are so many there is no pool."""


class _Publish(Declaration):
    """Bundles beside that of a release."""

    pool: _Pool


class SiteFile(Declaration):
    """A site file."""

    model_config = ConfigDict(validate_by_name=True)

    dataset: PublicName
    """Name of the releases, and of the budget if ``budget`` names no cohort."""
    title: Annotated[PrintableText, Field(min_length=1, max_length=200)]
    """One line for the data card."""
    source: Source
    """Source of the cohort."""
    table_schema: TableSchema = Field(alias="schema")
    """The declared table; key ``schema`` of the file."""
    events: _EventTables = left_out(())
    """Tables of events of the same patients, who have one row each."""
    privacy_unit: _Unit
    privacy: _Privacy
    budget: _Budget
    """The guarantee and its limits."""
    method: MethodConfig
    """Synthesizer and its settings."""
    rows: Annotated[StrictInt, Field(ge=1, le=10_000_000)] | None = None
    """Number of synthetic rows; public, and no function of the size of the cohort. If left out,
    250,000, or with more than 200 columns as many rows as have 50 million cells."""
    soft_labels: StrictBool = False
    """Release the teacher's probability of every label of each image in ``soft_labels.parquet``,
    for images by ``clustmix``. It costs no budget and is no part of the measurement."""
    distill: _Distill | None = left_out()
    """Points that stand for the rows."""
    patients: Annotated[StrictInt, Field(ge=1, le=10_000_000_000)] | None = left_out()
    """Approximate number of patients: public, rounded, and no count of the table. It sets the split
    of the budget, 10,000 if left out; the guarantee does not depend on it."""
    parts: Annotated[StrictInt, Field(ge=1, le=1000)] | None = left_out()
    """Number of releases, this one included, that a pool adds up. The budget is split by it;
    ``publish.pool.last``, or 1, if left out."""
    public_benchmark_data: StrictBool = False
    """Declare the data public, which allows experiments without a guarantee."""
    approval: Literal["none", "officer"] = "none"
    """``officer`` requires a second person to sign each release before it is published. Once a
    cohort was released under it, no site file can turn it off."""
    catalogue: CatalogueEntry | None = left_out()
    """Facts about the table and its publisher for the catalogue entries of a bundle."""
    gate: _Gate | None = left_out()
    """Expectations of your own at both gates."""
    publish: _Publish | None = left_out()
    schedule: _Schedule | None = left_out()
    """Times of releases by the orchestrator."""
    arrival: _Arrival | None = None
    """Accept tables in the landing folder: each replaces ``source.path`` and starts a release, for
    kinds csv and parquet. Arrivals are refused if left out."""

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        schema, visits = self.table_schema, self.privacy_unit.visits
        if visits is not None:
            visits.check_schema(schema)
        kept = info.context == KEPT
        refuse_together((*self._faults(kept=kept), *self._faults_of_events(kept=kept)))
        return self

    def _faults(self, *, kept: bool) -> Iterator[str]:
        """Yield a message for each contradiction between parts of the file."""
        schema = self.table_schema
        if self.privacy_unit.visits is not None and self.source.kind in ("fhir", "omop"):
            yield _FAULTS["visits"]
        declared = {*self._source_columns, *schema.released_columns, *schema.ignore}
        if self.privacy_unit.column in declared:
            yield _FAULTS["column"]
        if not kept:
            yield from _fault_of(check_source_unit, self.source, self.privacy_unit.column)
            if self.patients is not None and self.privacy.delta * self.patients >= 1.0:
                yield _FAULTS["delta"]
        yield from _fault_of(self.source.check_image, schema.image)
        known = {*self._source_columns, *schema.ignore}
        if stray := sorted(set(self.source.select) - known):
            hint = did_you_mean(stray[0], known)
            yield _FAULTS["select"].format(found=", ".join(stray), hint=hint)
        yield from self._faults_of_caps()
        adds_up = self.method.kind in ("clustmix", "naive_bayes") and schema.image is None
        if self.publish is not None and not (adds_up and self.privacy_unit.partition):
            yield _FAULTS["pool"]
        if self.privacy_unit.partition and self.privacy.adjacency is not Adjacency.ADD_REMOVE:
            yield _FAULTS["partition"]
        if self.soft_labels and (schema.image is None or self.method.kind != "clustmix"):
            yield _FAULTS["soft_labels"]
        if self.distill is not None and schema.image is None:
            n_codes = sum(column.n_codes for column in schema.columns)
            if n_codes > _MOST_CODES:
                yield _FAULTS["distill"].format(most=_MOST_CODES, found=n_codes)
        if self.gate is not None and not kept:
            from tasks.gates.suites import cells_of, refusals

            unit, visits = self.privacy_unit.column, self.privacy_unit.visits
            rows = schema if visits is None else visits.row_schema(schema)
            read = cells_of(rows, unit, None if visits is None else visits.order)
            for fault in refusals(self.gate.expectations, read=read, released=cells_of(schema)):
                yield f"gate.expectations: {fault}"
        if self.arrival is not None and self.source.kind not in ("csv", "parquet"):
            yield _FAULTS["arrival"]

    def _faults_of_events(self, *, kept: bool) -> Iterator[str]:
        schema, unit = self.table_schema, self.privacy_unit
        if not self.events:
            return
        one_row = unit.column and unit.max_rows_per_patient == 1 and unit.visits is None
        if not one_row or schema.image is not None or self.method.kind != "clustmix":
            yield _FAULTS["events"]
        elif single := [k for k in ("publish", "arrival", "parts") if getattr(self, k) is not None]:
            yield _FAULTS["events_single"].format(found=", ".join(single))
        elif not kept:
            try:
                _ = import_module("tasks.histories.event_frames").event_release(
                    schema, self.event_tables, domain_of(schema)
                )
            except ConfigurationError as error:
                yield f"events: {error.message}"
            for table in self.event_tables:
                yield from (f"events, {table.name}: {fault}" for fault in table.faults())

    def _faults_of_caps(self) -> Iterator[str]:
        window = self.budget.window
        for key, cap in (
            ("lifetime_epsilon", self.budget.lifetime_epsilon),
            ("dataset_epsilon", self.budget.dataset_epsilon),
            ("window.epsilon", None if window is None else window.epsilon),
        ):
            if cap is not None and cap < self.privacy.epsilon:
                yield _FAULTS["cap"].format(key=key)

    @property
    def parameters(self) -> PrivacyParameters:
        """Epsilon and delta of one release."""
        return PrivacyParameters(epsilon=self.privacy.epsilon, delta=self.privacy.delta)

    @property
    def n_rows(self) -> int:
        """Number of synthetic rows, declared or by the public rule."""
        n_columns = len(self.table_schema.columns)
        return self.rows or min(_MOST_ROWS, max(_MOST_VALUES // n_columns, 10_000))

    @property
    def cohort(self) -> str:
        """Name of the patients' budget in the ledger."""
        return self.budget.cohort or self.dataset

    @property
    def unit(self) -> PrivacyUnit:
        """The privacy unit."""
        declared, key = self.privacy_unit, self.privacy_unit.key
        return PrivacyUnit(
            column=declared.column,
            max_rows=declared.max_rows_per_patient,
            key_pattern=None if key is None else key.pattern.pattern,
            key_normal=() if key is None else tuple(sorted(set(key.normal))),
        )

    @property
    def event_tables(self) -> _EventTables:
        """The tables of events, each with the column that names the patient."""
        return tuple(table.of(str(self.privacy_unit.column)) for table in self.events)

    @property
    def columns_to_read(self) -> tuple[str, ...]:
        """Source columns of a release: features, labels, patient, date of entry."""
        unit, entry = self.privacy_unit.column, self.entry
        own = (unit, None if entry is None else entry.column)
        return tuple(dict.fromkeys((*self._source_columns, *(name for name in own if name))))

    @property
    def entry(self) -> ByEntry | None:
        """The rule of periods, if patients are read by entry."""
        declared = self.privacy_unit.partition
        return declared if isinstance(declared, ByEntry) else None

    @property
    def _source_columns(self) -> tuple[str, ...]:
        visits, schema = self.privacy_unit.visits, self.table_schema
        return schema.measured_columns if visits is None else visits.source_columns(schema)


def load_site(path: Path) -> SiteFile:
    """Read and check a site file; a ConfigurationError has all faults, with their places."""
    return read_declared(path, SiteFile, code="SITE")


def _fault_of(check: Callable[..., None], *about: Any) -> Iterator[str]:
    try:
        check(*about)
    except ValueError as error:
        yield str(error)
