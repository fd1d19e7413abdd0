"""One variable of a codebook, and parsers of its cells."""

import re
from dataclasses import dataclass
from typing import Literal

from privacy.errors import ConfigurationError
from storage.schema.columns import number_of, raw_text
from storage.schema.date_columns import day_of
from storage.schema.plain_yaml import refusal

Kind = Literal["integer", "real", "date", "categorical", "ignore"]
Levels = tuple[tuple[str, str], ...]
"""Raw codes and what they mean, in the order of a codebook."""

# Terms of sheets, REDCap, Frictionless, JSON Schema and LinkML. "text" and "string" have no kind:
# with levels they are categories, and without levels their kind is unknown.
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("integer", "int", "count", "whole", "wholenumber", "slider"), "integer"),
    **dict.fromkeys(("real", "float", "double", "decimal", "number", "numeric"), "real"),
    **dict.fromkeys(("continuous", "calc"), "real"),
    **dict.fromkeys(("categorical", "category", "factor", "nominal", "ordinal"), "categorical"),
    **dict.fromkeys(("enum", "boolean", "bool", "binary", "code", "coded"), "categorical"),
    **dict.fromkeys(("radio", "dropdown", "yesno", "truefalse"), "categorical"),
    **dict.fromkeys(("identifier", "id", "freetext", "notes", "file", "ignore"), "ignore"),
    **dict.fromkeys(("date", "datetime", "timestamp"), "date"),
    **dict.fromkeys(("time", "duration"), "ignore"),
}
_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\s*(?:to|-|\u2013|\.\.+)\s*({_NUMBER})")
_LEVEL = re.compile(r"(.+?)\s*(?<![<>])[=:]\s*(.*)", re.S)
_ABSENT = re.compile(r"(data )?(missing|absent|not (measured|recorded|done|available))", re.I)
_WORDS = re.compile(r"[^\W\d_][\w ,.()/%-]{0,99}")
_MAX_SPELLED_OUT = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One column as a codebook describes it; unknown facts are empty or None.

    `kind` ``"ignore"`` is an identifier or free text; bounds of dates are days; `missing` are raw
    codes; a `required` column has no empty cell; an `optional` one may be left out of a table.
    `derived` is a formula, or names of other columns; `unread` are unknown headings of its sheet.
    """

    name: str
    kind: Kind | None = None
    lower: float | None = None
    upper: float | None = None
    levels: Levels = ()
    missing: tuple[str, ...] = ()
    unit: str = ""
    meaning: str = ""
    required: bool | None = None
    decimals: int | None = None
    optional: bool = False
    derived: str = ""
    unread: tuple[str, ...] = ()

    @property
    def decimals_of_bounds(self) -> int:
        """Decimals with which the bounds are written."""
        texts = [f"{end:.6f}".rstrip("0") for end in (self.lower, self.upper) if end is not None]
        return max((len(text.partition(".")[2]) for text in texts), default=0)

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the levels: what their codes mean, where that is words, else the codes."""
        names = tuple(means for _, means in self.levels)
        are_names = len(set(names)) == len(names) and all(map(_WORDS.fullmatch, names))
        return names if are_names else tuple(code for code, _ in self.levels)


def variable(
    place: str,
    name: str,
    *,
    kind: str = "",
    levels: Levels = (),
    bounds: tuple[object, object] = (None, None),
    missing: tuple[str, ...] = (),
    unit: object = None,
    meaning: object = None,
    required: bool | None = None,
    decimals: int | None = None,
    derived: object = None,
) -> Variable:
    """Return a variable from the parts of a codebook; `place` is named in a refusal.

    A level that means "missing" becomes a missing code, and a range of whole numbers of categories
    becomes a list. A single level is dropped: it is a remark, such as "none stated".
    """
    found = _KINDS.get(re.sub(r"[^a-z]", "", kind.lower()))
    if found == "ignore":
        return Variable(name=name, kind=found, meaning=text_of(meaning))
    if found == "date":
        # None for words such as today, or for nothing.
        lower, upper = (day_of(text_of(value) or "-") for value in bounds)
    else:
        lower, upper = (_bound(value, place) for value in bounds)
    if lower is not None and upper is not None and lower >= upper:
        raise codebook_refusal("BOUNDS", f"{place}: expected the smallest value below the largest")
    absent = tuple(code for code, means in levels if _ABSENT.fullmatch(means))
    kept = tuple((code, means) for code, means in levels if code not in {*absent, *missing})
    if found == "categorical" and not kept and lower is not None and upper is not None:
        if upper - lower < _MAX_SPELLED_OUT and lower.is_integer() and upper.is_integer():
            kept = tuple((str(code), "") for code in range(int(lower), int(upper) + 1))
        lower = upper = None
    if len(kept) == 1 and absent and found == "categorical":
        absent, kept = (), levels  # the column says whether something is missing
    elif len(kept) == 1:
        kept = ()
    if len({code for code, _ in kept}) < len(kept):
        raise codebook_refusal("LEVELS", f"{place}: expected each level once")
    return Variable(
        name=name,
        # Levels decide: a column of numbers with a name for each is categorical.
        kind="categorical" if kept else found,
        lower=lower,
        upper=upper,
        levels=kept,
        missing=tuple(dict.fromkeys((*missing, *absent))),
        unit=text_of(unit),
        meaning=text_of(meaning),
        required=required,
        decimals=decimals,
        derived=text_of(derived),
    )


def text_of(value: object) -> str:
    """Write a cell or a value as one line of printable text."""
    text = "" if value is None else " ".join(raw_text(value).split())
    return "".join(character for character in text if character.isprintable())


def range_in(text: str) -> tuple[str, str] | None:
    """Return the ends of a text such as ``0 to 120`` or ``0-120``, else None."""
    found = _RANGE.fullmatch(text.strip())
    return None if found is None else (found[1], found[2])


def levels_in(text: str, *, comma: bool = False) -> Levels:
    """Read ``1=male; 2=female``, ``M | F`` and the like; a comma is REDCap's sign for "means"."""
    mark = next((mark for mark in "|\n;" if mark in text), "\0" if comma else ",")
    found = []
    for part in (part.strip() for part in text.split(mark)):
        pair = part.partition(",")[::2] if comma else None
        if pair is None:
            matched = _LEVEL.fullmatch(part)
            pair = (part, "") if matched is None else (matched[1], matched[2])
        code = pair[0].strip().strip("\"'")
        if code:
            found.append((raw_text(code), text_of(pair[1])))
    return tuple(found)


def codebook_refusal(code: str, text: str) -> ConfigurationError:
    """Return an error about a codebook, of one printable line."""
    return refusal(f"CODEBOOK_{code}", text)


def _bound(value: object, place: str) -> float | None:
    if value is None or value == "":
        return None
    text = raw_text(value)
    number = None if isinstance(value, bool) else number_of(text)
    if number is None:
        # No other text is repeated: the file may be a table of patients, given by mistake.
        comma = f", found {text!r}; write 0.1 or 1000" if re.fullmatch(r"-?\d+,\d+", text) else ""
        raise codebook_refusal("NUMBER", f"{place}: expected numbers as its bounds{comma}")
    return number
