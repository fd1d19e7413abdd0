"""Write docs/site-file.md from the models that read a site file: ``python docs/site_file.py``.

Sections, keys, types, limits and defaults come from the models; meanings from their docstrings and
field descriptions. A test compares the page with what this module writes.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from flows.site.site_file import SiteFile
from storage.codebooks.sheets import HEADINGS
from storage.public_data.datasets import DATASETS

PAGE = Path(__file__).with_name("site-file.md")


def _text(name: str) -> str:
    """Return a text of the page that no model has: an example, or the first page."""
    return (PAGE.parent / "site-file" / name).read_text(encoding="utf-8")


OMOP_EXAMPLE, FHIR_EXAMPLE, EXAMPLE = map(_text, ("omop.md", "fhir.md", "example.yaml"))

NOTES = {
    "source, kind duckdb": _text("duckdb.md"),
    "source, kind omop": OMOP_EXAMPLE,
    "source, kind fhir": FHIR_EXAMPLE,
    "events": _text("events.md"),
    "schema": "Every column of the source is declared: in `columns`, `derived`, `label`, `ignore`, "
    "`privacy_unit`. A source with another is refused.",
    "schema.constraints": _text("constraints.md"),
    "privacy_unit.partition, by hash": "The ledger counts the largest sum of a part and not the "
    "sum over all parts; other schemes, numbers of parts, datasets, patient columns and forms of "
    "keys add up. Declare `key`. Only with `adjacency: add_remove`.",
    "gate": "[An example](site-file/suite.json).",
    "arrival": "[New tables arrive](operate.md#new-tables-arrive) has the procedure. The key may "
    "be empty (`arrival: {}`).",
}
"""Additions to the docstring of a section, by its title."""

MEANINGS = {
    "SiteFile.table_schema": "The declared table.",
    "SiteFile.privacy_unit": "Unit of protection.",
    "SiteFile.privacy": "Guarantee of one release.",
    "SiteFile.publish": "Bundles beside that of a release.",
    "_Publish.pool": "The last parts together.",
    "SiteFile.budget": "Caps on all releases together.",
    "SiteFile.catalogue": "Facts for catalogue entries.",
    "SiteFile.events": "Tables of events beside one row of each patient.",
    "SiteFile.dataset": "Name under which releases are published, and of the budget if `budget` "
    "names no cohort.",
    "SiteFile.rows": "Number of synthetic rows, public. Without it 250,000, or as many as have "
    "50 million cells.",
    "SiteFile.soft_labels": "Publishes the teacher's probabilities for released images, in "
    "`soft_labels.parquet`; free.",
    "SiteFile.patients": "About how many patients there are: public and rounded. The budget "
    "is split by it; the guarantee does not depend on it. 10,000 without.",
    "SiteFile.approval": "`officer` if a second person has to sign each release. Once on for a "
    "cohort, it stays on.",
    "SiteFile.arrival": "Lets a table in the landing folder replace `source.path` and start a "
    "release, of kind csv or parquet.",
    "_Privacy.epsilon": "Bound on the privacy loss of one release.",
    "_Privacy.delta": "Largest excess of a probability over the bound of epsilon: much "
    "smaller than one over the number of patients.",
    "_Budget.lifetime_epsilon": "Cap of the cohort over all time, at the delta and the "
    "adjacency of this file; at least `privacy.epsilon`, like every cap.",
    "_Budget.dataset_epsilon": "Cap of this dataset alone, where several share a cohort.",
    "_Budget.window": "Cap of the cohort within any stretch of days.",
    "_Window.epsilon": "Cap within the stretch.",
    "_Partition.part": "The part that is read: from 0, below `parts`.",
    "NumericColumn.name": "Column name.",
    "NumericColumn.kind": "Whether released values are whole numbers.",
    "NumericColumn.lower": "Public lower bound, included.",
    "NumericColumn.upper": "Public upper bound, included.",
    "*.decimals": "Decimals of a released value; by default 0 for integers, 2 for "
    "reals. Bounds and edges lie on this grid.",
    "DateColumn.name": "Column name.",
    "CategoricalColumn.name": "Column name.",
    "*.other": "Level of every undeclared value, which is refused without it.",
    "Label.levels": "List of `{name: level, values: [raw values]}`, or a mapping of levels to raw "
    "values, in the order of the codes. A level's own name also stands for itself.",
    "_Event.levels": "As of [any label](#schemalabel).",
    "_Unit.column": "Column that names the patient; `null` if every row is another patient.",
    "_SklearnSource.dataset": "The dataset.",
    "EventTime.column": "A date, or whole days. Its bounds hold for synthetic events.",
    "EventTime.since": "Column of the patient from which days count; of the same kind.",
    "EventTime.not_before": "First day of the patient, such as that of birth.",
    "EventTime.until": "The last one, such as that of death.",
    "EventTime.when_broken": "`mend` leaves other events out.",
    "ValueBins.lower": "Lower bound.",
    "ValueBins.upper": "Upper bound.",
    "ValueBins.bins": "Number of bins, or edges.",
    "EventSource.name": "Name, such as `labs`.",
    "EventSource.columns": "With that of the moment.",
    "EventSource.max_rows_per_patient": "Events that are used, the first ones.",
    "EventSource.at": "The moment.",
    "EventSource.kind": "Column of levels that names the kind.",
    "EventSource.value": "Column of numbers by kind.",
    "EventSource.values": "Bounds and bins by kind; `null` for none.",
    "EventSource.gaps": "Edges in days, from 0, of bins of the time since the event before; 0, "
    "1, 8, 31, 91, 181, 366, 731 if left out.",
    "EventSource.offsets": "Edges in days of bins of the first moment, below 0 before `since`; "
    "wide if left out.",
    "EventSource.share": "Part of the squared budget. By default the rest in equal parts.",
    "EventSource.ignore": "As in [schema](#schema).",
    "ValueBins.decimals": "Decimals.",
    "ImageColumns.height": "Rows of pixels.",
    "ImageColumns.width": "Columns of pixels.",
    "*.table": "CSV file in UTF-8 with a line for each image: `file` (its place below `folder`), "
    "the label, and the patient unless a header names one. Without it the first folder below "
    "`folder` is the column `label`.",
    "*.burned_in": "Text in the pixels: `refuse` takes only files whose BurnedInAnnotation is NO. "
    "A text that many images share can appear in a release.",
    "*.select": "Keep the rows whose columns equal these public values.",
    "*.data": "Name of a [public table](#public-tables).",
    "*.shares": "Split of the budget over the stages.",
    "*.published": "Parameters of the published analysis.",
}
"""Meanings in the words of the file, by model and field, or by field of every model."""


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models of an annotation, in their order."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _sections(model: type[BaseModel], path: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the models below a model, each with the title of its section."""
    for name, field in model.model_fields.items():
        inner = list(dict.fromkeys(_models(field.annotation)))
        key = field.alias or name
        where = f"{path}.{key}" if path else key
        for part in inner:
            forms = {name: part.model_fields.get(name) for name in ("kind", "by")}
            tag = next((n for n, own in forms.items() if own and _is_literal(own.annotation)), None)
            kinds = () if tag is None else get_args(part.model_fields[tag].annotation)
            kind = f", {tag} {' or '.join(map(str, kinds))}" if kinds else ""
            before, _, above = where.partition(", kind ")
            below = above.partition(".")[2]
            title = f"{before}.{below}, kind {above.partition('.')[0]}" if below else where + kind
            yield part, title
            yield from _sections(part, title)


def _is_literal(annotation: Any) -> bool:
    return get_origin(annotation) is Literal


SECTIONS: dict[type[BaseModel], str] = {SiteFile: "The file"}
for _model, _title in _sections(SiteFile):
    SECTIONS.setdefault(_model, _title)


def page() -> str:
    """Return the whole page."""
    headings = [spellings.split(",")[0] for spellings in HEADINGS.values()][:5]
    head = _text("head.md").replace("{headings}", ", ".join(headings))
    head = head.replace("{example}", EXAMPLE).replace("{tables}", ", ".join(sorted(DATASETS)))
    said: dict[str, str] = {}
    return head + "".join(_section(model, said) for model in SECTIONS)


def _section(model: type[BaseModel], said: dict[str, str]) -> str:
    """Return the section of a model. Keys that stand above are named with a link, not repeated."""
    title = SECTIONS[model]
    schema = model.model_json_schema(by_alias=True)
    required = set(schema.get("required", ()))
    meanings = _meanings(model)
    texts = [text for text in (_summary(model), NOTES.get(title, "").strip()) if text]
    keys, known = [], {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key in ("kind", "by") and "const" in schema["properties"][key]:
            continue
        meaning = _prose(field.description or meanings.get(name, ""))
        for place in (f"*.{name}", f"{model.__name__}.{name}"):
            meaning = MEANINGS.get(place, meaning)
        line = f"- `{key}`: {_kind(schema, key, model, required)}. {meaning}\n"
        above = said.setdefault(line, title)
        if above == title:
            keys.append(line)
        else:
            known.setdefault(above, []).append(f"`{key}`")
    repeated = [
        f"- As in [{above}](#{_anchor(above)}): {', '.join(names)}.\n"
        for above, names in known.items()
    ]
    return "".join([f"\n## {title}\n", *(f"\n{text}\n" for text in texts), "\n", *keys, *repeated])


def _kind(schema: dict[str, Any], key: str, model: type[BaseModel], required: set[str]) -> str:
    """Return type and default of a key in words."""
    declared = schema["properties"][key]
    words = _value(declared, schema, model)
    if key in required:
        return f"{words}, required"
    default = declared.get("default")
    if default in (None, [], {}, False):
        return words.removesuffix(" or `null`")
    return f"{words} (`{json.dumps(default)}`)"


def _summary(model: type[BaseModel]) -> str:
    """Return the docstring up to its first section."""
    return _prose(re.split(r"\n\n\w+\n-+\n", inspect.getdoc(model) or "")[0])


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return what the docstrings of a model and of its bases say about each field.

    They are the text below the field, or its entry in the list of parameters of the class.
    """
    found: dict[str, str] = {}
    for base in model.__mro__:
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        for field, text in pairwise(ast.parse(inspect.getsource(base)).body[0].body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found.setdefault(field.target.id, inspect.cleandoc(text.value.value))
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        parts = re.split(r"\n\n(?:Parameters|Attributes)\n-+\n", text)
        if len(parts) < 2:
            continue
        body = re.split(r"\n\n\w+\n-+\n", parts[1])[0]
        for entry in re.split(r"\n(?=\S)", body):
            names, _, meaning = entry.partition("\n")
            for name in names.split(" : ")[0].split(", "):
                found.setdefault(name, inspect.cleandoc("\n" + meaning))
    return found


def _value(declared: dict[str, Any], schema: dict[str, Any], owner: type[BaseModel]) -> str:
    """Say what a key takes, from its JSON schema."""
    if "$ref" in declared:
        name = declared["$ref"].rsplit("/", 1)[-1]
        inner = schema["$defs"][name]
        if "enum" in inner:
            return _value(inner, schema, owner)
        return _link(name, owner)
    for union in ("anyOf", "oneOf"):
        if union in declared:
            titles = [_titled(one["$ref"], owner) for one in declared[union] if "$ref" in one]
            section = titles[0].partition(", kind ")[0] if titles else ""
            if len(titles) > 2:  # all of them are listed below
                return f"a [{section}](#{_anchor(titles[0])}) of any kind"
            return " or ".join(dict.fromkeys(_value(one, schema, owner) for one in declared[union]))
    if "const" in declared:
        return f"`{declared['const']}`"
    if "enum" in declared:
        return " or ".join(f"`{one}`" for one in declared["enum"])
    kind = declared.get("type")
    if kind == "array" and "prefixItems" in declared:
        return "[" + ", ".join(_value(one, schema, owner) for one in declared["prefixItems"]) + "]"
    if kind == "array":
        return f"list of ({_value(declared['items'], schema, owner)})"
    if kind == "object":
        (inner,) = declared.get(
            "patternProperties", {"": declared.get("additionalProperties")}
        ).values()
        return f"mapping of names to ({_value(inner, schema, owner)})"
    if kind == "null":
        return "`null`"
    words = {"string": "text", "boolean": "flag"}.get(str(kind), str(kind))
    if declared.get("format") in ("path", "date"):
        words = str(declared["format"])
    limits = [
        f"{word}{_number(declared[key])}"
        for key, word in (
            ("minimum", "" if "maximum" in declared else "from "),
            ("exclusiveMinimum", "above "),
            ("maximum", "to "),
            ("exclusiveMaximum", "below "),
            ("multipleOf", "in steps of "),
        )
        if key in declared
    ]
    return " ".join([words, *limits])


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _link(name: str, owner: type[BaseModel]) -> str:
    """Link the section of a model, by its name and by the model that has it as a part."""
    title = _titled(name, owner)
    _, found, kind = title.rpartition("kind ")
    return f"[{kind if found and '.' not in title else title}](#{_anchor(title)})"


def _titled(name: str, owner: type[BaseModel]) -> str:
    """Return the title of the section of a model."""
    name = name.rsplit("/", 1)[-1].rsplit("__", 1)[-1]
    models = [model for model in SECTIONS if model.__name__ == name]
    if len(models) > 1:  # every method may have shares
        models = [model for model in models if model.__module__ == owner.__module__]
    (model,) = models
    return SECTIONS[model]


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")


def _prose(text: str) -> str:
    """Put docstring text on one line, in Markdown."""
    return " ".join(text.replace("``", "`").split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
