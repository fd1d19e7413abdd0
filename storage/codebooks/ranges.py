"""Public clinical ranges of adults: what may be believed of a quantity, and edges that matter.

They are a help for whoever writes a site file, and the last word on nothing: a hospital's own
codebook comes first, and what is proposed from here is marked as a guess.
"""

import re
from functools import cache
from typing import Any

from storage.files.documents import Record
from storage.files.lists import listed

# Words of a name that do not change what is measured. "urine" or "cord" would.
_BESIDE = frozenset(
    "serum plasma blood first last min max mean median avg ave average value val result level "
    "baseline admission at on of the in".split()
)
_SHORT = 2


class ClinicalRange(Record):
    """Bounds, both included, and edges of bins of one quantity in one unit (UCUM).

    `names` and `units` are other spellings, `decimals` is how exactly it is usually written, and
    `sources` are keys of `citations`.
    """

    key: str
    title: str
    names: tuple[str, ...]
    unit: str
    units: tuple[str, ...] = ()
    lower: float
    upper: float
    decimals: int
    edges: tuple[float, ...]
    loinc: str | None = None
    sources: tuple[str, ...]


@cache
def clinical_ranges() -> tuple[ClinicalRange, ...]:
    """Return all ranges, in the order of ``ranges.toml``."""
    entries = {key: entry for key, entry in _entries().items() if key != "sources"}
    return tuple(ClinicalRange(key=key, **entry) for key, entry in entries.items())


def citations() -> dict[str, str]:
    """Return the sources of all ranges: whole citations by the short names that ranges have."""
    return dict(_entries()["sources"])


@cache
def _entries() -> dict[str, dict[str, Any]]:
    return listed(__package__, "ranges.toml")


def ranges_named(text: str) -> tuple[ClinicalRange, ...]:
    """Return the ranges of a quantity, one for each unit, by its name as a column or in words.

    Case, blanks, signs and words such as ``serum``, ``first`` and ``max`` do not count. No part of
    a longer name is enough: ``creatinine_urine`` is not creatinine.
    """
    wanted = _words(text)
    return tuple(
        one
        for one in clinical_ranges()
        for names in [[_words(name) for name in (one.key, *one.names)]]
        if wanted and (wanted in names or "".join(wanted) in map("".join, names))
    )


def range_of(name: str, meaning: str, unit: str) -> ClinicalRange | None:
    """Return the range of a column by its name, else by what it means, in its unit if that is said.

    None if there is none, or none in that unit: a range in another unit would be worse than none.
    A name of one or two letters, such as ``ca``, counts with a unit only.
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
