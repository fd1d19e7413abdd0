"""Summary of a check: the faults of each column, the worst first, with their change as YAML.

For the owner of the table alone. A cell is repeated only where it could be written down without the
table: a usual code for missing, or another spelling of a declared level. Bounds and levels are
never proposed from the rows; a placeholder stands for what the codebook says.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import yaml

from storage.files.documents import listed
from storage.schema.columns import CategoricalColumn, NumericColumn, number_of
from storage.schema.labels import Label
from storage.schema.plain_yaml import PLACEHOLDER
from storage.schema.table import TableSchema
from tasks.ingest.tallies import WORDS, Tally

MANY, FEW = 0.9, 0.01
"""Shares of the cells from which a column is crowded, and from which clipping is a fault."""

_SAID = listed(__package__, "findings.toml")
_CODE = re.compile(r"-?(?:9+[6-9]|8{2,}|7{2,})(?:\.0+|\.9+)?|-[1-9](?:\.0+)?|0(?:\.0+)?")
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:[T ].*)?")
_COMMA = re.compile(r"[+-]?\d+,\d+")
_BOUNDS = dict.fromkeys(("lower", "upper", "bins"), PLACEHOLDER)
_LONGEST = 300
"""Most characters of a declaration that is written whole; of a longer one, the keys that change."""

_Declared: TypeAlias = NumericColumn | CategoricalColumn | Label


class _Fault(NamedTuple):
    """A fault: its kind, its share of the cells, the keys that change, cells of public form."""

    kind: str
    share: float
    change: Mapping[str, Any] = {}
    cells: tuple[str, ...] = ()


class _Cells:
    """The counts of one column as shares of its cells."""

    def __init__(self, found: Tally, name: str) -> None:
        self._own = {key[1:]: n for key, n in found.items() if key[0] == name}
        self.n = self._own[("cells", "")]

    def share(self, *kinds: str) -> float:
        return sum(self._own.get((kind, ""), 0) for kind in kinds) / self.n

    def texts(self, kind: str) -> dict[str, float]:
        return {text: n / self.n for (own, text), n in self._own.items() if own == kind}


def summary_of(found: Tally, schema: TableSchema, patient: str | None) -> list[dict[str, Any]]:
    """Return a record of each column with a fault, the worst first, and one of all the others.

    A record has the shares of the cells, the faults in words, and what would mend them as YAML.
    """
    declared: dict[str, _Declared] = {column.name: column for column in schema.columns}
    declared |= {label.name: label for label in (schema.label, *schema.more_labels)}
    kinds = {"clipped_low": "low", "clipped_high": "high"}
    kinds |= {kind: kind for kind in ("other", "missing", "outside")}
    records, fine = list[tuple[tuple[float, ...], dict[str, Any]]](), dict[str, Any]()
    for name in dict.fromkeys(name for name, kind, _ in found if kind == "cells"):
        cells, column = _Cells(found, name), declared.get(name)
        shares = {title: round(cells.share(kind), 4) for title, kind in kinds.items()}
        if column is not None:
            faults = sorted(_of_column(cells, column), key=lambda one: -one.share)
        else:
            faults = [*_of_key(cells, "no_patient" if name == patient else "order")]
        if not faults:
            fine[name] = shares
            continue
        words = [_SAID[one.kind] for one in faults]
        seen = [
            said["seen"].format(cells=", ".join(one.cells[:3]))
            for said, one in zip(words, faults, strict=True)
        ]
        record = {"column": name, "cells": cells.n, "shares": shares, "seen": "; ".join(seen)}
        record["share"] = round(faults[0].share, 4)
        record["advice"] = "; ".join(said["mend"] for said in words)
        record["change"] = "" if column is None else _yaml(column, faults)
        refused = cells.share("outside", "constraint") > 0.0
        records.append(((not refused, column is not None, -faults[0].share), record))
    records.sort(key=lambda pair: pair[0])
    return [*(record for _, record in records), {"fine": fine}]


def _of_key(cells: _Cells, refused: str) -> Iterator[_Fault]:
    """Yield faults of the key of patients, or of the moment of a visit."""
    if cells.share("outside"):
        yield _Fault(refused, cells.share("outside"))
    keys = {key: share for key, share in cells.texts("key").items() if key}
    if words := tuple(key for key in keys if key.lower() in WORDS):
        yield _Fault("patient_word", sum(keys[word] for word in words), cells=words)
    elif cells.n >= 100 and max(keys.values(), default=0.0) >= 0.05:
        yield _Fault("one_patient", max(keys.values()))


def _of_column(cells: _Cells, column: _Declared) -> Iterator[_Fault]:
    outside = cells.texts("outside text")
    empty = outside.pop("", 0.0)
    if cells.share("constraint"):
        yield _Fault("constraint", cells.share("constraint"))
    if not isinstance(column, Label) and cells.share("missing") + empty > 1.0 - 1e-9:
        yield _Fault("empty", 1.0, {"ignore": [column.name]})
        return
    if empty:
        yield _Fault("absent", empty, {"nullable": True})
    texts = outside | cells.texts("other text")
    if words := tuple(text for text in texts if text.lower() in WORDS):
        yield _Fault("stand_in", sum(texts.pop(w) for w in words), {"missing": words}, words)
    if isinstance(column, NumericColumn):
        yield from _of_texts(texts)
        yield from _of_numbers(cells, column)
    else:
        yield from _of_levels(cells, column, texts)


def _of_texts(texts: dict[str, float]) -> Iterator[_Fault]:
    """Yield faults of cells that are no number of the column."""
    kinds: tuple[tuple[str, Mapping[str, Any], Callable[[str], object]], ...] = (
        ("dates", {}, _DATE.fullmatch),
        ("comma", {"decimal": ","}, _COMMA.fullmatch),
        ("fraction", {"kind": "real", "decimals": PLACEHOLDER}, number_of),
        ("text", {"missing": [PLACEHOLDER]}, str),
    )
    for kind, change, asked in kinds:
        if own := [text for text in texts if asked(text) is not None]:
            yield _Fault(kind, sum(texts.pop(text) for text in own), change)


def _of_numbers(cells: _Cells, column: NumericColumn) -> Iterator[_Fault]:
    """Yield faults of numbers that were clipped, or that crowd at one end."""
    beyond = 0.0
    for end in ("low", "high"):
        texts, clipped = cells.texts(f"{end} text"), cells.share(end)
        codes = tuple(text for text in texts if _CODE.fullmatch(text))
        share = sum(texts.pop(code) for code in codes)
        if codes and (share >= clipped / 2 or share >= 10 * max(texts.values(), default=0.0)):
            clipped -= share
            yield _Fault("stand_in", share, {"missing": codes}, codes)
        kind, low, high = ("short_years", 0, 130) if end == "low" else ("years", 1850, 2100)
        possible = column.lower >= 1500 if end == "low" else column.upper < low
        years = sum(n for text, n in texts.items() if low <= (number_of(text) or -1.0) <= high)
        if possible and clipped >= FEW and years >= sum(texts.values()) / 2:
            yield _Fault(kind, clipped, _BOUNDS)
            return
        beyond = max(beyond, clipped)
    known = sum(cells.texts("one").values())
    if beyond >= known / 2 > 0.0:
        yield _Fault("unit", beyond, _BOUNDS)
    elif max(cells.share("bottom"), cells.share("top")) >= MANY * known > 0.0:
        yield _Fault("crowded", max(cells.share("bottom"), cells.share("top")), _BOUNDS)
    elif beyond >= FEW:
        yield _Fault("clipped", beyond, _BOUNDS)


def _of_levels(
    cells: _Cells, column: CategoricalColumn | Label, texts: dict[str, float]
) -> Iterator[_Fault]:
    """Yield faults of texts of no declared level."""
    is_label = isinstance(column, Label)
    groups = (column.levels or {}) if isinstance(column, Label) else column.groups
    names = column.level_names if isinstance(column, Label) else column.levels
    known = {_folded(level): level for level in names}
    known |= {_folded(value): level for level, values in groups.items() for value in values}
    spelt = {text: known[_folded(text)] for text in texts if _folded(text) in known}
    if spelt:
        more = {level: [*values] for level, values in groups.items()}
        for text, level in spelt.items():
            more.setdefault(level, []).append(text)
        entries = [{"name": level, "values": values} for level, values in more.items()]
        change = {"levels": entries} if is_label else {"groups": more}
        yield _Fault("spelling", sum(texts.pop(text) for text in spelt), change, tuple(spelt))
    if codes := tuple(text for text in texts if _CODE.fullmatch(text)):
        yield _Fault("stand_in", sum(texts.pop(code) for code in codes), {"missing": codes}, codes)
    rest = sum(texts.values())
    if rest and cells.share("outside"):
        yield _Fault("level", rest, {} if is_label else {"other": PLACEHOLDER})
    elif rest >= 0.5:
        yield _Fault("other", rest, {"levels": [*names, PLACEHOLDER]})
    if is_label and cells.share("missing") >= 0.5:
        yield _Fault("unlabelled", cells.share("missing"))
    if not is_label and max(cells.texts("one").values(), default=0.0) >= 1.0:
        yield _Fault("constant", 1.0, {"ignore": [column.name]})


def _folded(text: str) -> str:
    """Return what spellings of one level share: no case, accents, blanks, marks, leading zeros."""
    plain = unicodedata.normalize("NFKD", text).casefold()
    letters = "".join(c for c in plain if c.isalnum() or c in "+-<>")
    return letters.lstrip("0") or letters


def _yaml(column: _Declared, faults: list[_Fault]) -> str:
    """Return a declaration with its changes as one line of YAML."""
    change: dict[str, Any] = {}
    for fault in faults:
        for key, value in fault.change.items():
            known = change.get(key, ()) if key != "missing" else change.get(key, column.missing)
            change[key] = [*known, *value] if key == "missing" else value
    if not change:
        return ""
    for key in ("ignore", "decimal"):
        if key in change:
            return _line({key: change[key]})
    whole = column.model_dump(mode="json", exclude_defaults=True) | change
    line = _line(whole)
    return f"- {line if len(line) <= _LONGEST else _line({'name': column.name, **change})}"


def _line(value: object) -> str:
    return yaml.safe_dump(
        _plain(value), default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
    ).strip()


def _plain(value: object) -> object:
    """Return a value without tuples, and whole numbers without a point."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
