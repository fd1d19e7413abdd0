"""The two gates of a release: what the source must be, and what a release must be.

Both are Great Expectations suites built from the declared schema alone. The input gate reads
private rows, so only booleans leave it: the one result format that carries no value, no count
and no bound is ``BOOLEAN_ONLY``, and the gate refuses to run with another. The output gate reads
synthetic rows, which are post-processing, and says in full what it found.

The input gate never fails on what the encoder mends by a declared rule (an undeclared category
where a level takes such values, a number outside the bounds). Whether it passed depends on
private rows. A refusal stays with the operators and keeps its charge; that a release exists at all
tells that the table kept the declared rules, and the guarantee does not cover that one bit.

Pixels of images and items of sets are hundreds of columns of one kind: each gate asks the rules of
all of them in one check, see `tasks.gates.block_checks`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.errors import ConfigurationError
from storage.schema.table import NumericColumn, TableSchema
from storage.sources.cells import distinct
from tasks.gates.block_checks import block_check, block_is_readable, undeclared_values
from tasks.gates.expectation_suites import batch_definition, input_suite, output_suite

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuite

BOOLEAN_ONLY = "BOOLEAN_ONLY"
# What a detail of the output gate quotes at most.
DETAIL_VALUES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    """One named check.

    Parameters
    ----------
    name
        What was checked, from a fixed vocabulary.
    column
        The declared column, or None for the table.
    passed
        Whether the rule holds.
    detail
        What was found instead; None when the check passed, and always None on private rows.
    distance, bound
        Of a comparison of synthetic rows with what was sealed: how far they are apart, and how
        far they may be.
    unseen
        Faults that such a comparison need not find.
    """

    name: str
    column: str | None
    passed: bool
    detail: str | None = None
    distance: float | None = None
    bound: float | None = None
    unseen: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name of the check, with its column where it has one."""
        return self.name if self.column is None else f"{self.name}: {self.column}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The checks of one gate, in a fixed order."""

    checks: tuple[GateCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed; a gate without checks did not."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def records(self) -> list[dict[str, Any]]:
        """Return what a `storage.releases.manifest.GateRecord` holds of each check."""
        return [
            {"check": check.title, "passed": check.passed}
            | ({} if check.bound is None else {"distance": check.distance, "bound": check.bound})
            | ({"unseen": check.unseen} if check.unseen else {})
            for check in self.checks
        ]

    @property
    def failed_checks(self) -> tuple[GateCheck, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)


def merge(reports: Iterable[GateReport]) -> GateReport:
    """Combine the reports of the chunks of one table: a check passes if it passed everywhere.

    Parameters
    ----------
    reports
        One report per chunk.

    Raises
    ------
    ConfigurationError
        If there is no report: a source without a chunk was not checked.
    """
    merged: dict[tuple[str, str | None], GateCheck] = {}
    for report in reports:
        for check in report.checks:
            known = merged.setdefault((check.name, check.column), check)
            if known.passed and not check.passed:
                merged[check.name, check.column] = check
    if not merged:
        raise ConfigurationError(
            "GATE_EMPTY", "expected the report of one chunk or more, found none; check the source"
        )
    return GateReport(checks=tuple(merged.values()))


def input_gate(
    frame: pd.DataFrame,
    schema: TableSchema,
    *,
    patient_column: str | None = None,
    result_format: str = BOOLEAN_ONLY,
) -> GateReport:
    """Check one chunk of the source against the declared schema.

    Parameters
    ----------
    frame
        One chunk of private rows, as text or as native types.
    schema
        The public schema.
    patient_column
        Column that names the patient, if a patient has several rows; it may not be empty.
    result_format
        Great Expectations result format. Only ``"BOOLEAN_ONLY"`` is accepted.

    Returns
    -------
    GateReport
        Check names, declared columns and booleans; no detail.

    Raises
    ------
    ConfigurationError
        If another result format is asked for.

    Privacy
    -------
    Reads private rows. The result is internal: it is not differentially private, and a failure
    ends the run before any noise is drawn.
    """
    if result_format != BOOLEAN_ONLY:
        raise ConfigurationError(
            "RESULT_FORMAT",
            f"expected result_format {BOOLEAN_ONLY} on private rows, found {result_format!r}; "
            "other formats list values",
        )
    used = frame[[name for name in frame.columns if name not in schema.ignore]]
    expected = [*schema.released_columns, *([] if patient_column is None else [patient_column])]
    if not used.columns.is_unique or any(not isinstance(name, str) for name in used.columns):
        return GateReport(checks=(GateCheck(name="columns", column=None, passed=False),))
    prepared, native = _prepare_input(used, schema, patient_column)
    block = block_check(schema)
    suite = input_suite(
        schema.model_dump_json(), patient_column, tuple(sorted(native)), tuple(sorted(expected))
    )
    results = _validate(prepared, suite, result_format=BOOLEAN_ONLY)
    checks = []
    if block is not None:
        readable = block_is_readable(used, schema)
        checks.append(GateCheck(name=block, column=None, passed=readable))
    for result in results:
        if result.result:
            raise ConfigurationError(
                "RESULT_FORMAT",
                "expected a result without values from Great Expectations; "
                "use the version of the lock file",
            )
        meta = result.expectation_config.meta
        checks.append(
            GateCheck(name=meta["check"], column=meta["column"], passed=bool(result.success))
        )
    return GateReport(checks=tuple(checks))


def output_gate(frame: pd.DataFrame, schema: TableSchema, rows: int) -> GateReport:
    """Check a synthetic table against the schema, in full detail.

    Parameters
    ----------
    frame
        Synthetic rows, as decoded.
    schema
        The public schema.
    rows
        Number of synthetic rows that the site file asks for. A public number, never the number
        of source rows.

    Returns
    -------
    GateReport
        Column order, row count, types, domain membership, bounds, grid of the declared decimals,
        finite values, missing values only where declared, label levels. A label level may be
        absent from the rows; a value that is no label level may not occur.

    Privacy
    -------
    Post-processing: reads synthetic rows and public declarations only.
    """
    if not frame.columns.is_unique:
        return GateReport(
            checks=(
                GateCheck(
                    name="columns", column=None, passed=False, detail="a column occurs twice"
                ),
            )
        )
    prepared: dict[str, pd.Series] = {}
    checks: list[GateCheck] = []
    block = block_check(schema)
    if block is not None:
        wrong = undeclared_values(frame, schema, limit=DETAIL_VALUES + 1)
        checks.append(_check(block, None, not wrong, f"found {_quote(wrong)}"))
    for column in schema.columns:
        if column.name not in frame or block is not None:
            continue
        series = frame[column.name]
        if isinstance(column, NumericColumn):
            values, unreadable = _released_numbers(series, column)
            prepared[column.name] = pd.Series(values)
            detail = f"not numbers: {_quote(unreadable)}"
            checks.append(_check("number", column.name, not unreadable, detail))
            checks.append(_grid_check(values, column))
        else:
            prepared[column.name] = _as_text(series)
    if schema.label.name in frame:
        prepared[schema.label.name] = _as_text(frame[schema.label.name])
    for name in frame.columns:
        prepared.setdefault(name, frame[name])
    columns = {name: prepared[name].reset_index(drop=True) for name in frame.columns}
    ordered = pd.DataFrame(columns, index=range(len(frame)))
    suite = output_suite(schema.model_dump_json(), rows)
    for result in _validate(ordered, suite, result_format="BASIC"):
        meta = result.expectation_config.meta
        check = _check(
            meta["check"], meta["column"], bool(result.success), _gx_detail(result.result)
        )
        checks.append(check)
    order = {name: i for i, name in enumerate((None, *schema.released_columns))}
    return GateReport(checks=tuple(sorted(checks, key=lambda check: order[check.column])))


# ---- preparation ---------------------------------------------------------------------------


def _as_text(series: pd.Series) -> pd.Series:
    """Text as the schema compares it; an empty cell becomes the empty text."""
    if isinstance(series.dtype, pd.StringDtype):
        return series.fillna("").str.strip()
    index, texts = distinct(series)
    return pd.Series(np.array([*texts, ""], dtype=object)[index], dtype="str")


def _is_number(series: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series)


def _prepare_input(
    frame: pd.DataFrame, schema: TableSchema, patient_column: str | None
) -> tuple[pd.DataFrame, set[str]]:
    """Bring every declared column into the form that its expectations read."""
    native = {
        column.name
        for column in schema.columns
        if isinstance(column, NumericColumn)
        and column.name in frame
        and _is_number(frame[column.name])
    }
    declared = {*schema.released_columns, patient_column} - native
    if block_check(schema) is not None:
        native, declared = set(), {schema.label.name, patient_column}
    aligned = frame.reset_index(drop=True)
    columns = {
        name: _as_text(aligned[name]) if name in declared else aligned[name] for name in aligned
    }
    return pd.DataFrame(columns, index=aligned.index, copy=False), native


def _released_numbers(
    series: pd.Series, column: NumericColumn
) -> tuple[NDArray[np.float64], list[str]]:
    """Numbers of a released column, and texts that are neither a number nor a missing code.

    A missing code is replaced by the lower bound, so that NaN stands for an empty cell alone.
    """
    if _is_number(series):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
        coded = np.zeros(len(values), dtype=np.bool_)
        unreadable: list[str] = []
    else:
        texts = _as_text(series)
        values = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, copy=True)
        coded = texts.isin(column.missing).to_numpy()
        wrong = np.isnan(values) & ~coded & (texts != "").to_numpy()
        unreadable = sorted(set(texts[wrong].tolist()))
    values[coded | np.isin(values, column.missing_numbers)] = column.lower
    return values, unreadable


# ---- checks of the output gate -------------------------------------------------------------


def _check(name: str, column: str | None, passed: bool, detail: str) -> GateCheck:
    return GateCheck(name=name, column=column, passed=passed, detail=None if passed else detail)


def _grid_check(values: NDArray[np.float64], column: NumericColumn) -> GateCheck:
    finite = values[np.isfinite(values)]
    off = finite[np.round(finite, column.grid_decimals) != finite]
    wanted = "whole numbers" if column.grid_decimals == 0 else f"{column.grid_decimals} decimals"
    quoted = _quote(sorted({f"{value:g}" for value in off}))
    return _check("grid", column.name, not len(off), f"expected {wanted}, found {quoted}")


def _quote(values: Sequence[object]) -> str:
    shown = ", ".join(str(value) for value in values[:DETAIL_VALUES])
    return f"{shown}, ..." if len(values) > DETAIL_VALUES else shown


def _gx_detail(result: Mapping[str, Any]) -> str:
    if "observed_value" in result:
        return f"found {result['observed_value']}"
    unexpected = sorted({str(value) for value in result.get("partial_unexpected_list") or ()})
    if unexpected:
        return f"{result['unexpected_count']} rows, such as {_quote(unexpected)}"
    if result.get("unexpected_count"):
        return f"{result['unexpected_count']} rows"
    return "the check could not be made"


def _validate(frame: pd.DataFrame, suite: ExpectationSuite, *, result_format: str) -> list[Any]:
    with warnings.catch_warnings():
        # A warning may quote a value; nothing about the rows leaves by this way.
        warnings.simplefilter("ignore")
        batch = batch_definition().get_batch({"dataframe": frame})
        results: list[Any] = batch.validate(suite, result_format=result_format).results
    # Great Expectations puts the ones that could not be made first.
    return sorted(results, key=lambda result: result.expectation_config.meta["position"])
