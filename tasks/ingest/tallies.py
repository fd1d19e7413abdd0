"""Counts of the cells of a check that were clipped, missing or undeclared. Private.

They are counted batch by batch on any worker, by the functions of the encoder, and written to the
private workspace; only `tasks.ingest.findings` reads them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from storage.schema.columns import NumericColumn
from storage.sources.cells import distinct
from tasks.ingest.encoding import NO_LABEL, label_codes, level_codes, numbers_of
from tasks.ingest.pieces import IngestRules
from tasks.ingest.violations import Rule, Violation

Tally: TypeAlias = Counter[tuple[str, str, str]]
"""Number of cells by column, kind and text; kind and text of all cells are ``cells`` and empty."""

MAX_TEXTS = 50
"""Most texts of a column and kind that a batch contributes, the most frequent ones."""

WORDS = frozenset(
    "na n/a n.a. #n/a nan null none nil missing unknown unk undefined unspecified . - -- ? x xx xxx"
    " nd nr k.a. unbekannt inconnu desconocido sconosciuto onbekend okänd".split()
) | {"not known", "not recorded", "not available", "keine angabe"}
"""Texts by which tables say that something is missing, in small letters. Public."""


def tally(frame: pd.DataFrame, rules: IngestRules, violations: Sequence[Violation]) -> Tally:
    """Count the cells of a batch by column and kind.

    Kinds are ``low`` and ``high`` (clipped), ``other``, ``missing``, ``outside`` (refused), ``one``
    (by code), ``bottom`` and ``top`` (the outer tenths of the bounds), ``key`` and ``constraint``.
    """
    schema, found = rules.row_schema, Tally()

    def note(name: str, kind: str, where: NDArray[np.bool_], *, texts: bool = False) -> None:
        found[name, kind, ""] += int(where.sum())
        if texts and where.any():
            index, cells = distinct(frame[name][where])
            number = Counter(dict(enumerate(np.bincount(index + 1, minlength=1).tolist())))
            for place, n in number.most_common(MAX_TEXTS):
                found[name, f"{kind} text", "" if place == 0 else cells[place - 1]] += n

    def refuse(name: str, broken: Sequence[Violation], *, other: bool = False) -> NDArray[np.bool_]:
        kinds = {"other": np.zeros(len(frame), np.bool_), "outside": np.zeros(len(frame), np.bool_)}
        for one in broken:
            kinds["other" if other and one.rule == Rule.LEVEL else "outside"][one.rows] = True
        for kind, where in kinds.items():
            note(name, kind, where, texts=True)
        return kinds["other"] | kinds["outside"]

    for column in () if schema.image is not None else schema.columns:
        name, broken = column.name, list[Violation]()
        found[name, "cells", ""] += len(frame)
        if isinstance(column, NumericColumn):
            values, missing = numbers_of(frame[name], column, broken)
            known = ~missing & ~refuse(name, broken)
            note(name, "low", known & (values < column.lower), texts=True)
            note(name, "high", known & (values > column.upper), texts=True)
            tenth = (column.upper - column.lower) / 10.0
            note(name, "bottom", known & (values <= column.lower + tenth))
            note(name, "top", known & (values >= column.upper - tenth))
            codes = np.searchsorted(column.bin_starts[1:], values, side="right")
        else:
            codes = level_codes(frame[name], column.model_copy(update={"other": None}), broken)
            missing = codes == len(column.levels)
            known = ~missing & ~refuse(name, broken, other=column.other is not None)
        note(name, "missing", missing)
        for code, n in enumerate(np.bincount(codes[known]).tolist()):
            found[name, "one", str(code)] += n
    for label in (schema.label, *schema.more_labels):
        broken = []
        found[label.name, "cells", ""] += len(frame)
        note(label.name, "missing", label_codes(frame[label.name], label, broken) == NO_LABEL)
        refuse(label.name, broken)
    for one in violations:
        if one.rule not in frozenset(Rule):
            found[one.column, "constraint", ""] += len(one.rows)
        elif one.column not in schema.released_columns:  # key of a patient, moment of a visit
            found[one.column, "outside", ""] += len(one.rows)
    if rules.visits is not None:
        found[rules.visits.order, "cells", ""] += len(frame)
    if rules.unit.column is not None:
        found[rules.unit.column, "cells", ""] += len(frame)
        index, keys = distinct(frame[rules.unit.column])
        number = Counter(dict(enumerate(np.bincount(index + 1).tolist()[1:])))
        often = {place for place, n in number.most_common(MAX_TEXTS) if n > 1}
        for place in often | {place for place, key in enumerate(keys) if key.lower() in WORDS}:
            found[rules.unit.column, "key", keys[place]] += number[place]
    return found
