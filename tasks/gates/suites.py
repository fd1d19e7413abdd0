"""A hospital's own suite of Great Expectations: rows at the input, any expectation at the output.

Both gates see a declared number as a number, an empty cell or missing code as null, and any other
cell as text (dates in ISO 8601), so one suite holds for the source and the published file.
"""

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Indices
from privacy.errors import ClustMixError
from storage.files.documents import canonical_json, digest_of, listed, strict_json
from storage.files.private import read_bounded
from storage.releases.manifest import GateRecord
from storage.schema.columns import Column, NumericColumn, raw_text
from storage.schema.date_columns import iso
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from storage.sources.cells import distinct, number_cells
from tasks.gates.table_rules import silent_great_expectations, validated

Suite: TypeAlias = Mapping[str, Any]
"""JSON of a suite or of an expectation, as Great Expectations writes it."""

Cells: TypeAlias = Mapping[str, Column | Label | None]
"""Columns of a gate with their declarations; None for one that is text by its role."""

PAGE_FILE = "expectations.html"
MAX_BYTES = 200_000

_LISTED = listed(__package__, "suites.toml")
_KINDS = {
    f"expect_{name}": (cells, scope == "rows")
    for scope in ("rows", "tables")
    for cells, names in _LISTED[scope].items()
    for name in names
}
_KEYS = {"type", "kwargs", "meta", "id", "notes", "description", "severity", "rendered_content"}
_REFUSED = ("row_condition", "condition_parser", "windows")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}")
_COMPLETE = {"result_format": "COMPLETE", "include_unexpected_rows": False}


def read_suite(path: Path) -> dict[str, Any]:
    """Read strict JSON: an object, no key twice, finite numbers (else ValueError)."""
    with suppress(OSError, ValueError, RecursionError, ClustMixError):
        content = read_bounded(path, MAX_BYTES)
        suite = strict_json(content[:MAX_BYTES])
        canonical_json(suite)  # refuses NaN and infinity
        if isinstance(suite, dict) and len(content) <= MAX_BYTES:
            return suite
    raise ValueError(
        f"expected a suite in JSON at {path}, of at most {MAX_BYTES:,} bytes, no key twice, finite "
        "numbers"
    )


def gate_stated(gate: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statement of a manifest on the section `gate`: digest of the suite, and page."""
    if not gate:
        return {}
    digest = digest_of(canonical_json(gate["expectations"])).sha256
    return {"gate": {"expectations": digest, "page": gate["page"]}}


def cells_of(schema: TableSchema, *texts: str | None) -> Cells:
    """Return the columns of a source and further ones of text, or those of a release."""
    columns = (*schema.columns, *(() if texts else schema.derived_columns), *schema.all_labels)
    further = dict.fromkeys(name for name in texts if name is not None)
    return {**{one.name: getattr(one, "number", None) or one for one in columns}, **further}


def refusals(suite: Suite, *, read: Cells, released: Cells) -> Iterator[str]:
    """Yield the faults of a suite, one for each expectation that no gate can judge.

    ``read`` are columns of the source and ``released`` those of the published file. No row is read.
    """
    parts, name = suite.get("expectations"), suite.get("name")
    stray = set(suite) - {"name", "expectations", "id", "meta", "notes"}
    if stray or not isinstance(parts, list) or not parts or not _NAME.fullmatch(str(name)):
        yield "expected name (letters and digits) and expectations, as Great Expectations writes it"
        return
    for place, one in enumerate(parts, start=1):
        if problem := _problem(one, read, released):
            kind = str(one.get("type") if isinstance(one, dict) else None)[:80]
            yield f"{kind} (no. {place} of the suite): {problem}"


def unexpected_rows(
    frame: pd.DataFrame, suite: Suite, cells: Cells
) -> Iterator[tuple[str, str, Indices]]:
    """Yield rule, column and rows of each broken expectation that a row alone can break.

    Privacy
    -------
    Reads private rows, each by itself. The rows are positions in the frame, for the restricted file
    alone; without a broken expectation only booleans leave the library.
    """
    asked = _asked(suite, "input", cells)
    for (title, one), holds in zip(asked.items(), _judged(frame, asked, cells), strict=True):
        if not holds.success:
            [found] = _judged(frame, {title: one}, cells, _COMPLETE)
            rows = found.result.get("unexpected_index_list") or []
            yield f"{title} to hold", _columns(one)[0], np.array(rows, dtype=np.intp)


def suite_checks(frame: pd.DataFrame, suite: Suite, cells: Cells) -> list[GateRecord]:
    """Judge the expectations of the output gate on the rows of the file to be published.

    Privacy
    -------
    Post-processing: reads synthetic rows and public declarations only.
    """
    asked = _asked(suite, "output", cells)
    return [
        GateRecord(
            check=": ".join(filter(None, (title, ", ".join(_columns(one))))), passed=holds.success
        )
        for (title, one), holds in zip(asked.items(), _judged(frame, asked, cells), strict=True)
    ]


def suite_page(frame: pd.DataFrame, suite: Suite, cells: Cells) -> bytes:
    """Return the documentation page of the output gate: no script, no request, no time of day."""
    results = _judged(frame, _asked(suite, "output", cells), cells, "SUMMARY")
    from great_expectations.core import ExpectationSuiteValidationResult
    from great_expectations.render.renderer import ValidationResultsPageRenderer
    from great_expectations.render.view import DefaultJinjaPageView

    for result in results:
        # The renderers show no number of numpy.
        result.result = json.loads(json.dumps(result.to_json_dict()["result"], default=str))
    passed = sum(bool(result.success) for result in results)
    counts = {"evaluated_expectations": len(results), "successful_expectations": passed}
    failed = {"unsuccessful_expectations": len(results) - passed}
    validation = ExpectationSuiteValidationResult(
        success=passed == len(results),
        results=results,
        suite_name=suite["name"],
        statistics={**counts, **failed, "success_percent": 100 * passed / max(len(results), 1)},
    )
    document = ValidationResultsPageRenderer(run_info_at_end=True).render(validation)
    page = DefaultJinjaPageView().render(document)
    page = re.sub(r"(?s)<(script|footer|nav)\b.*?</\1>|<(link|img)\b[^>]*>", "", page)
    page = re.sub(r'\b(href|src)="(?!#)[^"]*"|url\([^)]*\)', "", page)
    return page.replace("<head>", f"<head>{_LISTED['page']['head']}", 1).encode("utf-8")


def _problem(one: Any, read: Cells, released: Cells) -> str:
    """Return the fault of an expectation, or the empty text."""
    meta = one.get("meta") or {} if isinstance(one, dict) else None
    if not isinstance(meta, dict) or not isinstance(one.get("kwargs"), dict):
        return "expected an object with type, kwargs and meta"
    if str(one.get("type")) not in _KINDS:
        return "expected an expectation of Great Expectations 1.24 on the rows of one table"
    if stray := [*sorted(set(one) - _KEYS), *(k for k in _REFUSED if one["kwargs"].get(k))]:
        return f"{stray[0][:80]} is refused; leave it out"
    if '"$PARAMETER"' in json.dumps(one["kwargs"]):
        return "expected values instead of $PARAMETER"
    if unknown := [name for name in _columns(one) if name not in {*read, *released}]:
        return f"expected columns that are read or released, found {', '.join(unknown)[:200]}"
    gates = _gates(one, read, released)
    if not gates or meta.get("gate") not in (None, *gates):
        return "expected columns, and meta.gate, of a gate that can judge it; the input judges rows"
    for declared in [read] * ("input" in gates) + [released] * ("output" in gates):
        if problem := _trial(one, declared):
            return problem
    return ""


def _trial(one: Suite, cells: Cells) -> str:
    """Judge two made-up rows; return the fault of an expectation, or the empty text."""
    kind, rows = _KINDS[one["type"]][0], pd.DataFrame(index=[0, 1])
    for name in _columns(one):
        is_number = not getattr(cells[name], "is_date", True)
        if kind not in ("any", "number" if is_number else "text"):
            return f"expected columns of {kind}s, found {name}"
        rows[name] = [0.25, 0.75] if is_number else ["a", "b"]
    try:
        for pattern in (one["kwargs"].get("regex") or "", *one["kwargs"].get("regex_list", ())):
            re.compile(pattern)
        [result] = _judged(rows, {"": one}, cells)
    except Exception as error:  # pydantic's, of patterns, of numbers: all of them are public
        keys = {str(e["loc"][0]) for e in error.errors()} if hasattr(error, "errors") else ()
        return f"expected other arguments {', '.join(sorted(keys))}".strip()
    raised = "'raised_exception': True" in str(result.exception_info)
    return "its arguments contradict each other" if raised else ""


def _columns(one: Suite) -> list[str]:
    kwargs = one["kwargs"]
    several = kwargs.get("column_list") or kwargs.get("column_set") or []
    named = [kwargs[key] for key in ("column", "column_A", "column_B") if key in kwargs]
    return [*map(str, (*named, *(several if isinstance(several, list) else [several])))]


def _gates(one: Suite, read: Cells, released: Cells) -> list[str]:
    """Return the gates that judge an expectation: one of rows both, unless its meta names one.

    With ``mostly`` below 1 the other rows decide whether a row is accepted.
    """
    names, asked = set(_columns(one)), (one.get("meta") or {}).get("gate")
    by_row = _KINDS[one["type"]][1] and one["kwargs"].get("mostly", 1) == 1
    able = {"input": by_row and names <= set(read), "output": names <= set(released)}
    return [gate for gate in able if able[gate] and asked in (None, gate)]


def _asked(suite: Suite, gate: str, cells: Cells) -> dict[str, Suite]:
    """Return the expectations that a gate judges, by their titles."""
    tables = (cells, {}) if gate == "input" else ({}, cells)
    return {
        f"{one['type']} (no. {place} of the suite)": one
        for place, one in enumerate(suite["expectations"], start=1)
        if gate in _gates(one, *tables)
    }


def _judged(
    frame: pd.DataFrame,
    asked: Mapping[str, Suite],
    cells: Cells,
    result_format: str | dict[str, Any] | None = None,
) -> list[Any]:
    if not asked:
        return []
    gx = silent_great_expectations()
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    whole = any("_table_" in one["type"] or "_exist" in one["type"] for one in asked.values())
    names = {*frame} if whole else {name for one in asked.values() for name in _columns(one)}
    columns = {str(n): _converted(frame, str(n), cells.get(str(n))) for n in frame if n in names}
    rows = pd.DataFrame(columns, index=range(len(frame)))
    parts = [
        ExpectationConfiguration(one["type"], _arguments(one, cells), {"place": place})
        for place, one in enumerate(asked.values())
    ]
    with warnings.catch_warnings(action="ignore"):
        suite = gx.ExpectationSuite("suite", [part.to_domain_obj() for part in parts])
    found = validated(rows, suite, result_format)
    by_place = {result.expectation_config.meta["place"]: result for result in found}
    return [by_place[place] for place in range(len(asked))]


def _arguments(one: Suite, cells: Cells) -> dict[str, Any]:
    """Return the arguments; numbers in a set of levels become the texts that levels are."""
    refused = ("result_format", "catch_exceptions", "batch_id")  # ours hold
    kwargs = {key: value for key, value in one["kwargs"].items() if key not in refused}

    def member(value: Any, name: str) -> Any:
        is_text = getattr(cells.get(name), "is_date", True)
        return raw_text(value) if is_text and isinstance(value, int | float) else value

    if isinstance(values := kwargs.get("value_set"), list):
        kwargs["value_set"] = [member(value, kwargs["column"]) for value in values]
    if isinstance(pairs := kwargs.get("value_pairs_set"), list):
        kwargs["value_pairs_set"] = [[*map(member, pair, _columns(one))] for pair in pairs]
    return kwargs


def _converted(frame: pd.DataFrame, name: str, declared: Column | Label | None) -> NDArray[Any]:
    """Return a column as both gates see it; a cell depends on that cell alone."""
    if not isinstance(declared, NumericColumn):
        index, texts = distinct(frame[name])
        absent = {"", *(() if declared is None else declared.missing)}
        table = [*(None if text in absent else text for text in texts), None]
        return np.array(table, dtype=object)[index]
    numbers, _, missing, _ = number_cells(frame[name], declared)
    values = np.where(missing, np.nan, numbers)
    if declared.is_date:
        return np.array([None if np.isnan(day) else iso(day) for day in values], dtype=object)
    whole = declared.is_whole and not declared.has_missing
    if whole and np.all((values == np.rint(values)) & (np.abs(values) < 2**53)):
        return values.astype(np.int64)
    return values
