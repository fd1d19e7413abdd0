"""Proposed declaration of a column for ``clustmix init``, from its name, type and codebook.

Guesses are marked. No value of the table is read, so a proposal reveals nothing about a patient.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import yaml

from storage.codebooks.ranges import ClinicalRange, range_of, ranges_named
from storage.codebooks.variables import Variable, text_of
from storage.schema.columns import MAX_CODES, number_of
from storage.schema.date_columns import iso
from storage.schema.plain_yaml import PLACEHOLDER

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_BINARY = re.compile(r"(is|has|had|was|any|ever) .*|(.* )?(flag|yn|ind|indicator|binary|bool)")
_CODED = re.compile(
    r"(.* )?(code|cd|category|class|group|grp|type|status|stage|grade|icd9?|icd10|atc|zip|region|"
    r"ward|department|dept|sex|gender|race|ethnicity|country)"
)
_UNUSED = re.compile(
    r"(.* )?(date|dt|datetime|timestamp|dob|id|key|uuid|mrn|nbr|notes?|comments?|address|phone)"
)
_DATED = re.compile(r"(.* )?(date|dt|datetime|timestamp|dob)( .*)?|date of .*")
_NUMBER = r"\d+(?:\.\d+)?"
_AROUND = re.compile(r"[\[\](){}$]|^\W*(sum|total)\b( of)?", re.I)
_SUFFIX = re.compile(r"(class|cat|category|group|grp|band|bin|who|mid|midpoint|num|number)s?")
_N_BINS = 10
_ONE_EACH = 20
_MAX_COMMENT = 150


class Line(NamedTuple):
    """A key of a declaration, its value as YAML, and a comment."""

    key: str
    value: str
    comment: str = ""


class Proposal(NamedTuple):
    """A declared column, perhaps with places to fill in, and a comment."""

    name: str
    lines: list[Line]
    comment: str


def proposal(name: str, stored: str | None, described: Variable | None) -> Proposal:
    """Propose the declaration of a column; `stored` is its kind in a Parquet file, else None."""
    known = described or Variable(name=name)
    found = range_of(name, known.meaning, known.unit)
    kind, guessed = _kind(name, stored, known, found)
    # In the range of another unit, all values of the column could fall into one bin.
    units: list[str] = []
    if found is not None and not known.unit:
        units = [*(one.unit for one in ranges_named(found.key)), *filter(None, [found.other_unit])]
    found = None if len(units) > 1 else _usable(found, kind, known)
    comment = ", ".join(text for text in (known.meaning, known.unit) if text)
    if described is None and kind != "date" and _UNUSED.fullmatch(_words(name)):
        comment = "guess by its name: an identifier, a date or free text; the patient, or ignore"
    lines = [Line("kind", kind or PLACEHOLDER, guessed)]
    if kind == "categorical":
        meanings = shown("; ".join(f"{code} {means}" for code, means in known.levels if means))
        listed = _list(code for code, _ in known.levels) if known.levels else PLACEHOLDER
        lines.append(Line("levels", listed, meanings if known.levels else "[.., ..]"))
    elif kind == "date":
        lines += _dates(known)
    elif kind is not None:
        lines += _numbers(kind, known, found, units)
    if known.missing:
        lines.append(Line("missing", _list(known.missing)))
    elif described is not None and stored == "categorical" and kind in ("integer", "real"):
        lines.append(Line("missing", "[]", 'guess: stored as text; is there a code such as "?"'))
    if described is not None and not known.required:
        guess = "guess: the codebook does not say whether a cell may be empty"
        lines.append(Line("nullable", "true", guess if known.required is None else ""))
    return Proposal(name, lines, shown(comment))


def derivation(name: str, described: Mapping[str, Variable], names: Collection[str]) -> str:
    """Propose a derived column's rule from `names` as YAML; empty if codebook and name lack it."""
    known = described.get(name, Variable(name=name))
    parts = re.split(r"\s*[+,]\s*", _AROUND.sub("", known.derived).strip())
    if len(parts) > 1 and {*parts} <= {*names}:
        return f"{{sum: {_list(parts)}}}"
    bases = [one for one in names if re.search(rf"(?<!\w){re.escape(one)}(?!\w)", known.derived)]
    if not known.derived:
        alike = (one for one in names if name.lower().startswith(one.lower()))
        bases = [one for one in alike if _SUFFIX.fullmatch(name[len(one) :].lower().strip(" _.-"))]
    if len(bases) != 1 or re.search(r"[*/^]|datediff|round", known.derived):
        return ""
    starts = [re.findall(_NUMBER, means or code)[:1] for code, means in known.levels]
    edges = [float(one) for own in starts[1:] for one in own]
    if len(edges) < max(len(starts) - 1, 1) or edges != sorted({*edges}):
        edges = []
    levels = described[bases[0]].levels if bases[0] in described else ()
    if levels and not edges:
        mapped = ", ".join(f"{_text(code)}: {PLACEHOLDER}" for code, _ in levels)
        return f"{{from: {quoted(bases[0])}, map: {{{mapped}}}}}"
    cut = f"[{', '.join(f'{edge:g}' for edge in edges)}]" if edges else PLACEHOLDER
    own = _list(code for code, _ in known.levels) if known.levels else PLACEHOLDER
    return f"{{from: {quoted(bases[0])}, edges: {cut}, levels: {own}}}"


def label_lines(described: Variable | None) -> tuple[Line, ...]:
    """Propose the declaration of the label: a level for each code, by its meaning if it has one."""
    if described is None or not described.levels:
        return (Line("levels", PLACEHOLDER, "a list of {name: level, values: [raw values]}"),)
    levels = [
        f"\n      - {{name: {quoted(name)}, values: {_list((code,))}}}"
        for name, (code, _) in zip(described.level_names, described.levels, strict=True)
    ]
    lines = [Line("levels", "".join(levels))]
    if described.missing:
        lines.append(Line("missing", _list(described.missing), "rows without a label are left out"))
    return tuple(lines)


def quoted(name: str) -> str:
    """Return a name for YAML, in quotes unless it is a plain word."""
    if _PLAIN.fullmatch(name) and name.lower() not in _YAML_WORDS:
        return name
    return yaml.safe_dump(name, default_style='"', allow_unicode=True, width=10_000).strip()


def shown(comment: str) -> str:
    """Return a text as a comment of one line."""
    text = text_of(comment)
    return text if len(text) <= _MAX_COMMENT else f"{text[:_MAX_COMMENT]}..."


def _kind(
    name: str, stored: str | None, known: Variable, found: ClinicalRange | None
) -> tuple[str | None, str]:
    """Return a kind and, unless it is declared, the reason of the guess."""
    if known.kind in ("integer", "real", "date", "categorical"):
        return known.kind, ""
    if stored in ("date", "categorical", None) and _DATED.fullmatch(_words(name)):
        return "date", "" if stored == "date" else "guess by its name"
    hints = ((_BINARY, "yes or no"), (_CODED, "a code"))
    by_name = next((text for names, text in hints if names.fullmatch(_words(name))), "")
    if by_name and stored in ("integer", None) and known.lower is None:
        return "categorical", f"guess by its name: {by_name}"
    # Numbers with a code for "missing" are stored as text; a unit or bounds reveal them.
    is_number = bool(known.unit) or known.lower is not None or known.upper is not None
    if stored in ("integer", "real") or (stored is not None and not is_number):
        return stored, ""
    if found is not None:
        return "real" if found.decimals else "integer", "guess by the clinical range"
    if is_number:
        return "real", "guess: it has bounds or a unit; integer if there are whole numbers only"
    return None, "integer, real or date (with lower, upper, bins), or categorical (levels)"


def _usable(found: ClinicalRange | None, kind: str | None, known: Variable) -> ClinicalRange | None:
    """Return a clinical range unless it contradicts the codebook."""
    if found is None or (kind == "integer" and found.decimals):
        return None
    lower = found.lower if known.lower is None else known.lower
    upper = found.upper if known.upper is None else known.upper
    codes = [number for number in map(number_of, known.missing) if number is not None]
    return None if lower >= upper or any(lower <= code <= upper for code in codes) else found


def _dates(known: Variable) -> Iterator[Line]:
    for key, which in (("lower", "first"), ("upper", "last")):
        end = getattr(known, key)
        text = "" if end is not None else f"{which} day that is kept; others are clipped"
        yield Line(key, PLACEHOLDER if end is None else iso(end), text)
    yield Line("bins", "year", "guess: or quarter, or month; or relative_to another date, in days")


def _numbers(
    kind: str, known: Variable, found: ClinicalRange | None, units: list[str]
) -> Iterator[Line]:
    ends: list[float] = []
    for key in ("lower", "upper"):
        end = getattr(known, key)
        comment = ""
        if end is None and found is not None:
            end = getattr(found, key)
            comment = f"guess in {found.unit} ({', '.join(found.sources)})"
        elif end is None:
            comment = "smallest and largest value that are kept; others are clipped"
            if len(units) > 1:
                comment += f"; is the table in {' or '.join(units)}?"
        ends += [] if end is None else [end]
        yield Line(key, PLACEHOLDER if end is None else f"{end:.12g}", comment)
    decimals = max(known.decimals_of_bounds, found.decimals if found else 1)
    decimals = 0 if kind == "integer" else decimals if known.decimals is None else known.decimals
    if len(ends) == 2:
        yield _bins(ends[0], ends[1], decimals, found)
    else:
        yield Line("bins", PLACEHOLDER, "a number of bins of equal width, or the edges [.., ..]")
    if kind == "real":
        guess = "guess: decimals of a released value" if known.decimals is None else ""
        yield Line("decimals", str(decimals), guess)


def _bins(lower: float, upper: float, decimals: int, found: ClinicalRange | None) -> Line:
    inner = [] if found is None else [edge for edge in found.edges[1:-1] if lower < edge < upper]
    if found is not None and len(inner) > 1:
        edges = ", ".join(f"{edge:.12g}" for edge in (lower, *inner, upper))
        return Line("bins", f"[{edges}]", f"guess: clustmix init --ranges {found.key}")
    n_values = min(int((upper - lower) * 10**decimals) + 1, MAX_CODES)
    if n_values <= _ONE_EACH:
        return Line("bins", str(max(n_values, 1)), "guess: one for each value")
    return Line("bins", str(_N_BINS), "guess: of equal width; clinical edges are better")


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(_text(text) for text in texts)}]"


def _text(text: str) -> str:
    """Return a level or a code for YAML; whole numbers need no quotes."""
    return text if re.fullmatch(r"0|-?[1-9][0-9]{0,14}", text) else quoted(text)


def _words(name: str) -> str:
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return " ".join(re.findall(r"[a-z]+\d*", apart.lower()))
