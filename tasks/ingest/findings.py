"""Summary of a check: the faults of each column, the worst first, with their change as YAML.

Clipped, missing or undeclared cells are counted by batch on any worker, by the encoder's functions;
counts are private, the summary is for the owner alone. A cell is repeated only if it could be
written without the table: a usual missing code, or another spelling of a declared level. Bounds and
levels are never proposed from rows; a placeholder stands for the codebook's value.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel

from storage.files.documents import listed
from storage.schema.columns import CategoricalColumn, NumericColumn, number_of
from storage.schema.date_columns import iso
from storage.schema.event_tables import EventDeclaration, ValueBins
from storage.schema.labels import Label, SurvivalLabel
from storage.schema.table import TableSchema
from storage.sources.cells import distinct
from tasks.ingest.encoding import NO_LABEL, encode_chunk, label_codes, level_codes, numbers_of
from tasks.ingest.pieces import IngestRules
from tasks.ingest.violations import Rule, Violation, rows_of

Tally: TypeAlias = Counter[tuple[str, str, str]]
"""Number of cells by column, kind and text; the text is empty for all cells of a kind."""

_Declared: TypeAlias = NumericColumn | CategoricalColumn | Label

MAX_TEXTS = 50
"""Most texts of a column and kind that a batch contributes, the most frequent ones."""


def tally(frame: pd.DataFrame, rules: IngestRules, violations: Sequence[Violation]) -> Tally:
    """Count the cells of a batch by column and kind.

    Kinds are ``cells`` (all), ``low`` and ``high`` (clipped), ``other``, ``missing``, ``outside``
    (refused), ``known`` (the rest), ``bottom`` and ``top`` (in the outer tenths of the bounds),
    ``constraint``, ``broken`` (of derived columns), those of `_LEAST`, ``key`` and, with
    their texts, ``low text`` and so on.
    """
    schema, found = cast("Any", rules.row_schema), Tally()
    if isinstance(schema, EventDeclaration):
        _count_events(frame, schema, found, violations)
    else:
        columns = schema.columns if schema.image is None else ()
        for column in (*columns, *schema.all_labels):
            _count(found, frame[column.name], _kinds(frame, column, schema))
    for name in (rules.unit.column, None if rules.visits is None else rules.visits.order):
        if name is not None:
            own = [one for one in violations if one.column == name]
            _count(found, frame[name], {"outside": rows_of(own, len(frame))})
    unlike = encode_chunk(frame, schema, mend=False).violations if schema.derived else ()
    for name in (one for one in schema.derived if one in frame):
        own = [one for one in unlike if one.column == name]
        _count(found, frame[name], {"broken": rows_of(own, len(frame))})
    for one in violations:
        if one.rule not in frozenset(Rule):
            found[one.column, "constraint", ""] += len(one.rows)
    if rules.unit.column is not None:
        index, keys = distinct(frame[rules.unit.column])
        number = Counter(dict(enumerate(np.bincount(index[index >= 0]).tolist())))
        often = [place for place, n in number.most_common(MAX_TEXTS) if n > 1]
        for place in {*often, *(place for place, key in enumerate(keys) if key.lower() in _WORDS)}:
            found[rules.unit.column, "key", keys[place]] += number[place]
    return Tally({(name + rules.of_table, a, b): n for (name, a, b), n in found.items()})


def _count_events(
    frame: pd.DataFrame, table: EventDeclaration, found: Tally, violations: Sequence[Violation]
) -> None:
    """Count the cells of a batch of events, those of a value by the kinds of the events."""
    kind = np.zeros(len(frame), dtype=np.int64)
    for column in table.columns:
        if column.name != table.value:
            _count(found, frame[column.name], _kinds(frame, column, None))
        if isinstance(column, CategoricalColumn) and column.name == table.kind:
            codes = level_codes(frame[column.name], column, broken := list[Violation]())
            kind = np.where(rows_of(broken, len(frame)), -1, codes)
    full = rows_of((one for one in violations if one.column == table.value), len(frame))
    for number, (title, values) in enumerate(table.by_kind.items()):
        own, valued = frame[kind == number], full[kind == number]
        kinds = {"with_value": valued} if values is None else _kinds(own, values, None)
        _count(found, own[table.value].rename(title), kinds)


def _kinds(
    frame: pd.DataFrame, column: _Declared, schema: TableSchema | None
) -> dict[str, NDArray[np.bool_]]:
    broken, cells = list[Violation](), frame[column.name]
    if isinstance(column, Label):
        missing = label_codes(cells, column, broken) == NO_LABEL
        return {"missing": missing, "outside": rows_of(broken, len(cells))}
    if isinstance(column, CategoricalColumn):
        codes = level_codes(cells, column.model_copy(update={"other": None}), broken)
        opened = [one for one in broken if one.rule == Rule.LEVEL and column.other is not None]
        other = rows_of(opened, len(cells))
        outside = rows_of(broken, len(cells)) & ~other
        return {"missing": codes == len(column.levels), "other": other, "outside": outside}
    values, missing = numbers_of(frame, column, schema, broken)
    outside, tenth = rows_of(broken, len(cells)), (column.upper - column.lower) / 10.0
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


def _count(found: Tally, cells: pd.Series, kinds: dict[str, NDArray[np.bool_]]) -> None:
    name = str(cells.name)
    found[name, "cells", ""] += len(cells)
    for kind, rows in kinds.items():
        found[name, kind, ""] += int(rows.sum())
        if kind in ("low", "high", "other", "outside") and rows.any():
            index, texts = distinct(cells[rows])
            for place, n in Counter(index.tolist()).most_common(MAX_TEXTS):
                found[name, f"{kind} text", texts[place] if place >= 0 else ""] += n


MANY, FEW = 0.9, 0.01
"""Shares of the cells from which a column is crowded, and from which clipping is a fault."""

_SAID = listed(__package__, "findings.toml")
_WORDS = frozenset(word.replace("_", " ") for word in _SAID["cells"]["words"].split())
_CODE, _FORMS = re.compile(_SAID["cells"]["code"]), _SAID["cells"]["forms"]
_CLOCK = re.compile(r"[1-9]\d?:|:.*[1-9]")
_SHARES = {"clipped_low": "low", "clipped_high": "high"} | {
    kind: kind for kind in ("other", "missing", "outside")
}
_LEAST = {"with_value": 0, "beyond": 0, "before_offsets": FEW, "without_patient": FEW, "cut": 0.1}


class _Fault(NamedTuple):
    """A fault: its kind, its share of the cells, cells of public form, keys that change."""

    kind: str
    share: float
    cells: tuple[str, ...] = ()
    change: Mapping[str, Any] | None = None


class _Cells:
    """The counts of one column as shares of its cells."""

    def __init__(self, found: Tally, name: str) -> None:
        self.n = max(found[name, "cells", ""], 1)
        self._own = {key[1:]: n / self.n for key, n in found.items() if key[0] == name}

    def share(self, kind: str) -> float:
        return self._own.get((kind, ""), 0.0)

    def texts(self, kind: str) -> dict[str, float]:
        return {text: share for (own, text), share in self._own.items() if own == kind}


def summary_of(
    found: Tally, schema: TableSchema, patient: str | None, events: Sequence[EventDeclaration] = ()
) -> list[dict[str, Any]]:
    """Return a record of each column with a fault, the worst first, and one of all the others.

    A record has the shares of the cells, the faults in words, and a correction as YAML. Columns of
    a table of events end in its name, and those of a value have its kind.
    """
    declared: dict[str, Any] = {one.name: one for one in (*schema.columns, *schema.all_labels)}
    kinds = dict[str, str]()
    for table in events:
        of_table = f" of {table.name}"
        own = {one.name: one for one in table.columns} | table.by_kind
        declared |= {name + of_table: column for name, column in own.items()}
        kinds |= {
            one + of_table: kind for one, kind in zip(table.by_kind, table.kinds, strict=False)
        }
    written = {name: one for name, one in declared.items() if one is not None and not schema.items}
    if isinstance(schema.label, SurvivalLabel):
        written |= {one.column: one for one in (schema.label.time, schema.label.event)}
    records, fine = list[tuple[tuple[float, ...], dict[str, Any]]](), dict[str, Any]()
    for name in [name for name, kind, _ in found if kind == "cells"]:
        cells, column = _Cells(found, name), declared.get(name)
        own_shares = _SHARES | {kind: kind for kind in _LEAST if cells.share(kind)}
        shares = {title: round(cells.share(kind), 4) for title, kind in own_shares.items()}
        faults = [_Fault(k, cells.share(k)) for k, n in _LEAST.items() if cells.share(k) > n]
        of_key = name == patient or bool(events)  # which have no visits
        faults += _of_key(cells, of_key) if column is None else _of(cells, column)
        faults.sort(key=lambda one: -one.share)
        if not faults:
            fine[name] = shares
            continue
        record = {
            "column": name,
            "cells": cells.n,
            "shares": shares,
            "share": round(faults[0].share, 4),
            "seen": "; ".join(
                _SAID[one.kind]["seen"].format(cells=", ".join(one.cells[:3])) for one in faults
            ),
            "advice": "; ".join(_SAID[one.kind]["mend"] for one in faults),
            "change": _yaml(written[name], faults, kinds.get(name)) if name in written else "",
        }
        passes = sum(map(cells.share, ("outside", "constraint", "with_value", "beyond"))) == 0.0
        records.append(((passes, column is not None, -faults[0].share), record))
    return [*(one for _, one in sorted(records, key=lambda pair: pair[0])), {"fine": fine}]


def _of_key(cells: _Cells, is_patient: bool) -> Iterator[_Fault]:
    """Yield faults of the key of patients, of the moments of visits, or of a derived column."""
    keys = {key: share for key, share in cells.texts("key").items() if key}
    words = tuple(key for key in keys if key.lower() in _WORDS)
    if cells.share("outside"):
        yield _Fault("no_patient" if is_patient else "order", cells.share("outside"))
    if broken := cells.share("broken"):
        yield _Fault("derived" if cells.share("constraint") else "mended", broken)
    if words:
        yield _Fault("patient_word", sum(keys[word] for word in words), words)
    elif cells.n >= 100 and max(keys.values(), default=0.0) >= 0.05:
        yield _Fault("one_patient", max(keys.values()))


def _of(cells: _Cells, column: _Declared) -> Iterator[_Fault]:
    texts = cells.texts("outside text") | cells.texts("other text")
    empty = texts.pop("", 0.0)
    words = tuple(text for text in texts if text.lower() in _WORDS)
    if cells.share("constraint"):
        yield _Fault("constraint", cells.share("constraint"))
    if not isinstance(column, Label) and cells.share("missing") + empty > 1.0 - 1e-9:
        yield _Fault("empty", 1.0, change={"ignore": [column.name]})
        return
    if empty:
        yield _Fault("absent", empty)
    if words:
        yield _Fault("stand_in", sum(texts.pop(w) for w in words), words, {"missing": words})
    if isinstance(column, NumericColumn):
        yield from (_of_dates if column.is_date else _of_numbers)(cells, column, texts)
    else:
        yield from _of_levels(cells, column, texts)


def _of_numbers(cells: _Cells, column: NumericColumn, texts: dict[str, float]) -> Iterator[_Fault]:
    """Yield faults of cells that are no number, that were clipped, or that crowd at one end."""
    for kind, form in _FORMS.items():
        if own := [text for text in texts if re.fullmatch(form, text)]:
            yield _Fault(kind, sum(texts.pop(text) for text in own))
    beyond = 0.0
    for end, kind, low, high in (("low", "short_years", 0, 130), ("high", "years", 1850, 2100)):
        texts, clipped = cells.texts(f"{end} text"), cells.share(end)
        codes = tuple(text for text in texts if _CODE.fullmatch(text))
        share = sum(texts.pop(code) for code in codes)
        if codes and (share >= clipped / 2 or share >= 10 * max(texts.values(), default=0.0)):
            clipped -= share
            yield _Fault("stand_in", share, codes, {"missing": codes})
        possible = column.lower >= 1500 if end == "low" else column.upper < low
        years = sum(n for text, n in texts.items() if low <= (number_of(text) or -1.0) <= high)
        if possible and clipped >= FEW and years >= sum(texts.values()) / 2:
            yield _Fault(kind, clipped)
            return
        beyond = max(beyond, clipped)
    known, crowd = cells.share("known"), max(cells.share("bottom"), cells.share("top"))
    if beyond >= known / 2 > 0.0:
        yield _Fault("unit", beyond)
    elif crowd >= MANY * known > 0.0:
        yield _Fault("crowded", crowd)
    elif beyond >= FEW:
        yield _Fault("clipped", beyond)


def _of_dates(cells: _Cells, column: NumericColumn, texts: dict[str, float]) -> Iterator[_Fault]:
    """Yield faults of cells that are no date, or of no possible year, or beyond the bounds."""
    for kind, form in _SAID["cells"]["dates"].items():
        if own := [text for text in texts if re.fullmatch(form, text)]:
            yield _Fault(kind, sum(texts.pop(text) for text in own))
    clipped = cells.share("low") + cells.share("high")
    beyond = {} if column.base else cells.texts("low text") | cells.texts("high text")
    for kind in ("stand_in", "impossible_year"):
        # A time of day is no public part of a code.
        days = {t: iso(column.read(t) or 0.0) + " at" * bool(_CLOCK.search(t)) for t in beyond}
        if found := tuple(t for t in days if re.fullmatch(_SAID["cells"][kind], days[t])):
            clipped -= (share := sum(beyond.pop(text) for text in found))
            yield _Fault(kind, share, found, {"missing": found} if kind == "stand_in" else None)
    if clipped >= FEW:
        yield _Fault("clipped", clipped)


def _of_levels(
    cells: _Cells, column: CategoricalColumn | Label, texts: dict[str, float]
) -> Iterator[_Fault]:
    is_label = isinstance(column, Label)
    # A bucket has no raw values.
    groups = (column.levels or {}) if isinstance(column, Label) else column.groups
    names = tuple(groups) if isinstance(column, Label) else column.levels
    more = {level: [*groups.get(level, ())] for level in names}
    known = {_folded(text): level for level in names for text in (level, *more[level])}
    if spelt := tuple(text for text in texts if _folded(text) in known):
        for text in spelt:
            more[known[_folded(text)]].append(text)
        entries = [{"name": level, "values": values} for level, values in more.items()]
        grouped = {level: values for level, values in more.items() if values}
        change = {"levels": entries} if is_label else {"groups": grouped}
        yield _Fault("spelling", sum(texts.pop(text) for text in spelt), spelt, change)
    if codes := tuple(text for text in texts if _CODE.fullmatch(text)):
        yield _Fault("stand_in", sum(texts.pop(c) for c in codes), codes, {"missing": codes})
    rest = sum(texts.values())
    if rest and cells.share("outside"):
        yield _Fault("label" if is_label else "level", rest)
    elif rest >= 0.5:
        yield _Fault("other", rest)
    if is_label and cells.share("missing") >= 0.5:
        yield _Fault("unlabelled", cells.share("missing"))


def _folded(text: str) -> str:
    """Reduce a text to letters, digits and ``+-<>``, without case, accents and leading zeros."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    letters = "".join(c for c in plain if c.isalnum() or c in "+-<>")
    return letters.lstrip("0") or letters


def _yaml(column: BaseModel, faults: list[_Fault], of_kind: str | None) -> str:
    """Return a declaration with its changes, or an entry elsewhere, as one line of YAML."""
    change: dict[str, Any] = {}
    for one in faults:
        for key, value in (one.change or _SAID[one.kind].get("change", {})).items():
            known = change.get(key, getattr(column, key)) if key == "missing" else ()
            change[key] = [*known, *value] if isinstance(value, tuple | list) else value
    elsewhere: dict[str, Any] = {key: change[key] for key in ("ignore", "decimal") if key in change}
    if of_kind and {*change} <= {"ignore", *ValueBins.model_fields}:
        elsewhere = {"values": {of_kind: None if "ignore" in change else change}} if change else {}
    whole = column.model_dump(mode="json", exclude_defaults=True) | change
    line = yaml.safe_dump(
        elsewhere or whole, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1e9
    )
    line = re.sub(r"(?<=\d)\.0(?=[],}])", "", line.strip())  # 110.0 was 110
    return "" if not change else line[1:-1] if elsewhere else f"- {line}"
