"""Counts of the cells of a check that were clipped, missing or undeclared. Private.

They are counted batch by batch on any worker, by the functions of the encoder, and written to the
private workspace; only `tasks.ingest.findings` reads them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from storage.files.documents import listed
from storage.schema.columns import CategoricalColumn, NumericColumn
from storage.schema.labels import Label
from storage.sources.cells import distinct
from tasks.ingest.encoding import NO_LABEL, label_codes, level_codes, numbers_of
from tasks.ingest.pieces import IngestRules
from tasks.ingest.violations import Rule, Violation

Tally: TypeAlias = Counter[tuple[str, str, str]]
"""Number of cells by column, kind and text; the text is empty for all cells of a kind."""

MAX_TEXTS = 50
"""Most texts of a column and kind that a batch contributes, the most frequent ones."""

_WORDS = listed(__package__, "findings.toml")["cells"]["words"].split()
WORDS = frozenset(word.replace("_", " ") for word in _WORDS)
"""Texts by which tables say that something is missing, in small letters. Public."""


def tally(frame: pd.DataFrame, rules: IngestRules, violations: Sequence[Violation]) -> Tally:
    """Count the cells of a batch by column and kind.

    Kinds are ``cells`` (all), ``low`` and ``high`` (clipped), ``other``, ``missing``, ``outside``
    (refused), ``known`` (the rest), ``bottom`` and ``top`` (in the outer tenths of the bounds),
    ``constraint``, ``key`` and, with their texts, ``low text`` and so on.
    """
    schema, found = rules.row_schema, Tally()
    columns = schema.columns if schema.image is None else ()
    for column in (*columns, *schema.all_labels):
        _count(found, frame[column.name], _kinds(frame[column.name], column))
    for name in (rules.unit.column, None if rules.visits is None else rules.visits.order):
        if name is not None:
            own = [one for one in violations if one.column == name]
            _count(found, frame[name], {"outside": _rows(own, len(frame))})
    for one in violations:
        if one.rule not in frozenset(Rule):
            found[one.column, "constraint", ""] += len(one.rows)
    if rules.unit.column is not None:
        index, keys = distinct(frame[rules.unit.column])
        number = Counter(dict(enumerate(np.bincount(index[index >= 0]).tolist())))
        often = [place for place, n in number.most_common(MAX_TEXTS) if n > 1]
        for place in {*often, *(place for place, key in enumerate(keys) if key.lower() in WORDS)}:
            found[rules.unit.column, "key", keys[place]] += number[place]
    return found


def _kinds(
    cells: pd.Series, column: NumericColumn | CategoricalColumn | Label
) -> dict[str, NDArray[np.bool_]]:
    broken: list[Violation] = []
    if isinstance(column, Label):
        missing = label_codes(cells, column, broken) == NO_LABEL
        return {"missing": missing, "outside": _rows(broken, len(cells))}
    if isinstance(column, CategoricalColumn):
        codes = level_codes(cells, column.model_copy(update={"other": None}), broken)
        opened = [one for one in broken if one.rule == Rule.LEVEL and column.other is not None]
        other = _rows(opened, len(cells))
        outside = _rows(broken, len(cells)) & ~other
        return {"missing": codes == len(column.levels), "other": other, "outside": outside}
    values, missing = numbers_of(cells, column, broken)
    outside, tenth = _rows(broken, len(cells)), (column.upper - column.lower) / 10.0
    known = ~missing & ~outside
    return {
        "missing": missing,
        "outside": outside,
        "known": known,
        "low": known & (values < column.lower),
        "high": known & (values > column.upper),
        "bottom": known & (values <= column.lower + tenth),
        "top": known & (values >= column.upper - tenth),
    }


def _rows(broken: Iterable[Violation], n_rows: int) -> NDArray[np.bool_]:
    rows = np.zeros(n_rows, dtype=np.bool_)
    for one in broken:
        rows[one.rows] = True
    return rows


def _count(found: Tally, cells: pd.Series, kinds: dict[str, NDArray[np.bool_]]) -> None:
    name = str(cells.name)
    found[name, "cells", ""] += len(cells)
    for kind, rows in kinds.items():
        found[name, kind, ""] += int(rows.sum())
        if kind in ("low", "high", "other", "outside") and rows.any():
            index, texts = distinct(cells[rows])
            for place, n in Counter(index.tolist()).most_common(MAX_TEXTS):
                found[name, f"{kind} text", texts[place] if place >= 0 else ""] += n
