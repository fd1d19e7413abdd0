"""Public clinical ranges of adults: plausible bounds and clinical edges of a quantity.

They help to write a site file: a codebook comes first; a proposal from here is marked as a guess.
"""

import re

from storage.files.documents import Record, listed

# Words of a name that do not change the quantity, as "urine" or "cord" would.
_BESIDE = frozenset(
    "serum plasma blood first last min max mean median avg ave average value val result level "
    "baseline admission at on of the in".split()
)
_SHORT = 2


class ClinicalRange(Record):
    """Bounds, both included, and edges of bins of one quantity in one unit (UCUM).

    `names` and `units` are other spellings, `other_unit` is another one in common use of which no
    range is listed, `decimals` the usual precision, and `sources` are keys of `citations`.
    """

    key: str
    title: str
    names: tuple[str, ...]
    unit: str
    units: tuple[str, ...] = ()
    other_unit: str | None = None
    lower: float
    upper: float
    decimals: int
    edges: tuple[float, ...]
    loinc: str | None = None
    sources: tuple[str, ...]


_LISTED = listed(__package__, "ranges.toml")

CITATIONS: dict[str, str] = _LISTED.pop("sources")
"""Sources of the ranges by their short names."""

CLINICAL_RANGES = tuple(ClinicalRange(key=key, **entry) for key, entry in _LISTED.items())
"""All ranges, in the order of ``ranges.toml``."""


def ranges_named(text: str) -> tuple[ClinicalRange, ...]:
    """Return the ranges of a quantity, one for each unit, by its name.

    Case, blanks, signs and words such as ``serum``, ``first`` and ``max`` are ignored. A part of a
    longer name does not match: ``creatinine_urine`` is not creatinine.
    """
    wanted = _words(text)
    return tuple(
        one
        for one in CLINICAL_RANGES
        for names in [[_words(name) for name in (one.key, *one.names)]]
        if wanted and (wanted in names or "".join(wanted) in map("".join, names))
    )


def range_of(name: str, meaning: str, unit: str) -> ClinicalRange | None:
    """Return the range of a column by its name, else by its meaning, in its unit if that is given.

    None if there is no range in that unit, as one in another unit would mislead. A name of one or
    two letters, such as ``ca``, matches only with a unit.
    """
    named = ranges_named(name) if unit or len(name) > _SHORT else ()
    found = named or ranges_named(meaning)
    if unit:
        known = _unit(unit)
        found = tuple(one for one in found if known in map(_unit, (one.unit, *one.units)))
    return found[0] if found else None


def _words(text: str) -> list[str]:
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).lower()
    return [word for word in re.findall(r"[a-z0-9]+", apart) if word not in _BESIDE]


def _unit(text: str) -> str:
    return re.sub(r"[\s\[\]{}_]", "", text.lower().replace("\u00b5", "u").replace("\u03bc", "u"))
