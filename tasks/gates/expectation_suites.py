"""Rules of a table, as Great Expectations judges them.

It takes a hundredth of a second for each rule, and more for many rows. A rule of single cells holds
for all cells of a column if it holds for its different texts, or for its smallest and its largest
number: those are what it is asked about. Booleans alone come back, whatever the rows are.
"""

import logging
import os
import warnings
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.errors import ConfigurationError

RESULT_FORMAT = "BOOLEAN_ONLY"
"""The one result format of Great Expectations that carries no value, no count and no bound."""

Cells: TypeAlias = NDArray[Any]
"""Different texts of a column, or its numbers. Private where the rows are."""


@cache
def silent_great_expectations() -> Any:
    """Import Great Expectations (two seconds) with everything that talks switched off."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import great_expectations
        import great_expectations.expectations
    # Its log lines quote expectation arguments and exception texts.
    logger = logging.getLogger("great_expectations")
    logger.setLevel(logging.CRITICAL + 1)
    logger.propagate = False
    return great_expectations


@cache
def batch_definition() -> Any:
    """One in-memory source: nothing on disk, no data docs, no progress bars."""
    context = silent_great_expectations().get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    asset = context.data_sources.add_pandas("rows").add_dataframe_asset("chunk")
    return asset.add_batch_definition_whole_dataframe("whole")


class Rules:
    """The rules of a gate in their order, each with the check and the column that it stands for.

    Names of expectations and arguments are those of Great Expectations.
    """

    def __init__(self) -> None:
        self._checks: list[tuple[str, str | None]] = []
        self._batches: dict[int, tuple[dict[str, Cells], list[Any]]] = {}
        self._passed: dict[int, bool] = {}

    def of_header(
        self, check: str, table: pd.DataFrame, expectation: str, **values: object
    ) -> None:
        """Ask something of the names of the columns."""
        self._passed |= _validate(table.head(0), [self._made(check, None, expectation, values)])

    def of_cells(
        self,
        check: str,
        column: str | None,
        cells: Cells | None,
        expectation: str,
        **values: object,
    ) -> None:
        """Ask something of each text, or ask numbers for an interval or for being there.

        A column that is not there, None, breaks the rule.
        """
        if cells is not None and cells.dtype == np.float64:
            cells = _ends(cells)
        # With columns of about as many cells, as shorter ones are filled up.
        size = 0 if cells is None else len(cells).bit_length() // 8
        columns, expectations = self._batches.setdefault(size, ({}, []))
        place = str(len(self._checks))
        if cells is not None:
            columns[place] = cells
        expectations.append(self._made(check, column, expectation, {**values, "column": place}))

    def found(self, check: str, column: str | None, passed: bool) -> None:
        """Note a rule that needs no expectation: of a type, or of all numbers together."""
        self._passed[len(self._checks)] = passed
        self._checks.append((check, column))

    def judge(self) -> list[tuple[str, str | None, bool]]:
        """Return check, column and whether it holds, for each rule in order."""
        for columns, expectations in self._batches.values():
            height = max(map(len, columns.values()), default=0)
            filled = {place: np.resize(cells, height) for place, cells in columns.items()}
            self._passed |= _validate(pd.DataFrame(filled), expectations)
        return [(*check, self._passed[place]) for place, check in enumerate(self._checks)]

    def _made(
        self, check: str, column: str | None, expectation: str, values: dict[str, Any]
    ) -> Any:
        kind = getattr(silent_great_expectations().expectations, expectation)
        made = kind(**values, meta={"place": len(self._checks)})
        self._checks.append((check, column))
        return made


def _ends(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the smallest and the largest number, and NaN if there is one."""
    known = numbers[~np.isnan(numbers)]
    ends = [known.min(), known.max()] if len(known) else []
    return np.array([*ends, *([np.nan] if len(known) < len(numbers) else [])])


def _validate(frame: pd.DataFrame, expectations: list[Any]) -> dict[int, bool]:
    suite = silent_great_expectations().ExpectationSuite(name="rules", expectations=expectations)
    with warnings.catch_warnings():
        # A warning may quote a value; nothing about the rows leaves by this way.
        warnings.simplefilter("ignore")
        batch = batch_definition().get_batch({"dataframe": frame})
        results = batch.validate(suite, result_format=RESULT_FORMAT).results
    if any(result.result for result in results):
        raise ConfigurationError(
            "RESULT_FORMAT",
            "expected a result without values from Great Expectations; "
            "use the version of the lock file",
        )
    return {r.expectation_config.meta["place"]: bool(r.success) for r in results}
