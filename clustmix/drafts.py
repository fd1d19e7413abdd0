"""Schemas that a person finishes: from names and types of columns, or from a codebook."""

from pathlib import Path
from typing import Any

from clustmix.frames import types_of
from clustmix.schema import CategoricalColumn, DateColumn, IntegerColumn, Label, RealColumn, Schema
from privacy.errors import refusals
from storage.codebooks.codebook_files import read_codebook
from storage.codebooks.variables import Variable
from storage.schema.columns import raw_text
from storage.schema.date_columns import iso
from storage.schema.plain_yaml import PLACEHOLDER

refusal = refusals(__package__)

_ONE_EACH = 20
_N_BINS = 10
_FORMS = {"integer": IntegerColumn, "real": RealColumn, "date": DateColumn}


def of_frame(frame: Any, *, label: str, patient: str | None) -> Schema:
    """Return a draft by the names and types of a table's columns."""
    variables = {
        # Empty cells are refused until a person allows them.
        name: Variable(
            name=name, kind=kind, levels=tuple((raw_text(one), "") for one in levels), required=True
        )
        for name, (kind, levels) in types_of(frame).items()
    }
    return _draft(variables, label=label, patient=patient)


def of_codebook(path: Path, *, label: str, patient: str | None) -> Schema:
    """Return a draft by a codebook's descriptions of the columns."""
    found = {name: one for name, one in read_codebook(path).items() if not one.optional}
    return _draft(found, label=label, patient=patient)


def _draft(variables: dict[str, Variable], *, label: str, patient: str | None) -> Schema:
    for name in (label, patient):
        if name is not None and name not in variables:
            raise refusal("COLUMN_MISSING", name=name)
    features = [one for name, one in variables.items() if name not in (label, patient)]
    columns = [_column(one) for one in features if one.kind != "ignore"]
    facts: dict[str, Any] = {
        "columns": tuple(columns),
        "label": _label(variables[label]),
        "ignore": tuple(one.name for one in features if one.kind == "ignore"),
    }
    is_whole = all(PLACEHOLDER not in dict(one).values() for one in (*columns, facts["label"]))
    return Schema(**facts) if is_whole else Schema.model_construct(**facts)


def _column(known: Variable) -> Any:
    """Return a declared column, or one with a placeholder where nothing is known."""
    facts = {"name": known.name, "missing": known.missing, "nullable": not known.required}
    CategoricalColumn(**facts, levels=("-",))  # name and missing codes are checked in any case
    form: Any = _FORMS.get(known.kind or "", CategoricalColumn)
    if known.kind in _FORMS:
        facts |= _numbers(known)
    elif known.kind is None:
        facts["kind"] = PLACEHOLDER
    else:
        facts["levels"] = tuple(code for code, _ in known.levels) or PLACEHOLDER
    return form.model_construct(**facts) if PLACEHOLDER in facts.values() else form(**facts)


def _numbers(known: Variable) -> dict[str, Any]:
    if known.kind == "date":
        lower, upper = (end if end is None else iso(end) for end in (known.lower, known.upper))
        return {"lower": lower or PLACEHOLDER, "upper": upper or PLACEHOLDER, "bins": "year"}
    guess = max(known.decimals_of_bounds, 1) if known.kind == "real" else 0
    decimals = guess if known.decimals is None else known.decimals
    own = {"decimals": decimals} if known.kind == "real" else {}
    if known.lower is None or known.upper is None:
        given = {"lower": known.lower, "upper": known.upper, "bins": None}
        return {key: PLACEHOLDER if value is None else value for key, value in given.items()} | own
    n_values = int((known.upper - known.lower) * 10**decimals) + 1
    bins = n_values if n_values <= _ONE_EACH else _N_BINS
    return {"lower": known.lower, "upper": known.upper, "bins": bins} | own


def _label(known: Variable) -> Label:
    if not known.levels:
        checked = Label(name=known.name, levels={"no": (), "yes": ()})
        return checked.model_copy(update={"levels": PLACEHOLDER})
    levels = {
        name: () if name == code else (code,)
        for name, (code, _) in zip(known.level_names, known.levels, strict=True)
    }
    return Label(name=known.name, levels=levels, missing=known.missing)
