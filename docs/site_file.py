"""Write docs/site-file.md from the models that read a site file: ``python docs/site_file.py``.

Keys, types, limits and defaults come from the models; meanings from their docstrings and field
descriptions. A test compares the page with what this module writes.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from flows.site.site_file import (
    ArrivalSection,
    BudgetSection,
    PartitionSection,
    PrivacySection,
    SiteFile,
    UnitSection,
    WindowSection,
)
from storage.codebooks.sheets import HEADINGS
from storage.public_data.datasets import table_names
from storage.schema.catalogue import CatalogueEntry
from storage.schema.column_blocks import ImageColumns
from storage.schema.columns import CategoricalColumn, NumericColumn
from storage.schema.constraints import Constraint
from storage.schema.labels import Buckets, Label
from storage.schema.table import TableSchema
from storage.schema.visits import VisitColumns
from storage.sources.declared import (
    CsvSource,
    FhirSource,
    OmopSource,
    ParquetSource,
    SklearnSource,
    SqlSource,
)
from storage.sources.declared_images import (
    DicomSource,
    PngSource,
    Window,
)
from storage.sources.fhir import FhirFeature
from storage.sources.omop import OmopFeature, OmopPopulation
from tasks.synthesizers.registry import METHODS

PAGE = Path(__file__).with_name("site-file.md")


def _text(name: str) -> str:
    """Return a text of the page outside the models: examples, and the head of the page."""
    return (PAGE.parent / "site-file" / name).read_text(encoding="utf-8")


OMOP_EXAMPLE, FHIR_EXAMPLE, EXAMPLE = map(_text, ("omop.md", "fhir.md", "example.yaml"))

# Model -> title of its section, and text beyond the docstring of the model.
SECTIONS: dict[type[BaseModel], tuple[str, str]] = {
    SiteFile: ("The file", ""),
    CsvSource: ("source, kind csv", ""),
    ParquetSource: ("source, kind parquet", ""),
    SqlSource: ("source, kind sql", ""),
    OmopSource: ("source, kind omop", OMOP_EXAMPLE),
    OmopPopulation: ("source.population, kind omop", ""),
    OmopFeature: ("source.features, kind omop", ""),
    FhirSource: ("source, kind fhir", FHIR_EXAMPLE),
    FhirFeature: ("source.features, kind fhir", ""),
    SklearnSource: ("source, kind sklearn", ""),
    PngSource: ("source, kind png", ""),
    DicomSource: ("source, kind dicom", ""),
    Window: ("source.window", ""),
    TableSchema: (
        "schema",
        "Every column of the source is declared: in `columns`, as `label`, in `ignore`, or in "
        "`privacy_unit`, as its column or in its `visits`. A source with another column is "
        "refused. Hundreds of columns of one kind are declared in one key, `image` or `items`.",
    ),
    NumericColumn: ("schema.columns, kind integer or real", ""),
    CategoricalColumn: ("schema.columns, kind categorical", ""),
    ImageColumns: ("schema.image", ""),
    Label: ("schema.label", ""),
    Buckets: ("schema.label.buckets", ""),
    Constraint: (
        "schema.constraints",
        "Rules are asked of values as they are released: levels after `groups` and `other`, "
        "numbers clipped and rounded. So give columns that are compared the same bounds, and a "
        "sum bounds that hold its parts. A released number is drawn inside its bin, among those "
        "that keep the rules: `a + b = c` holds to the last decimal, of columns with equally "
        "many decimals; bins without such numbers are not released together. No other rule "
        "between numbers may connect two columns of a sum: beside `a + b = c` leave out `a <= c`, "
        "which follows from it. A condition may also be one number, "
        "`3`, that has a bin to itself. `mend` is a function of one row, used in the order of "
        "the list; then every rule is asked of the row again. A row that still breaks one fails "
        "`clustmix check`, and a release before its charge; the refusal names the rule and its "
        "columns, and never a value. Rules that leave no record, and rules that connect columns of "
        "more than 200,000 combinations of codes, are refused before the charge. ClustMix samples "
        "such columns as one; other methods throw records away that break a rule.\n\n"
        "Constraints come from a codebook or from knowledge, never from the records: that a check "
        "passes, and that a release exists, tells as an exact fact that no patient breaks a rule "
        "without `mend`. There are none of an `image`, nor with `analysis: published`.",
    ),
    UnitSection: ("privacy_unit", ""),
    VisitColumns: (
        "privacy_unit.visits",
        "The unit is the patient with all visits, as ever:\n\n```yaml\n"
        "privacy_unit:\n  column: patient_id\n  max_rows_per_patient: 1\n"
        "  visits: {first: 2, order: admitted, columns: [weight]}\n"
        "schema:\n  columns:\n"
        "    - {name: weight_1, kind: integer, lower: 30, upper: 200, bins: 17, nullable: true}\n"
        "    - {name: weight_2, kind: integer, lower: 30, upper: 200, bins: 17, nullable: true}\n"
        "```",
    ),
    PartitionSection: (
        "privacy_unit.partition",
        "Releases of different parts of one scheme fall on different patients, so the ledger "
        "counts the largest sum of a part and not the sum over all parts. Different schemes, "
        "numbers of parts, datasets and patient columns cut the same patients anew and add up. "
        "Only with `adjacency: add_remove`.",
    ),
    PrivacySection: ("privacy", ""),
    BudgetSection: ("budget", ""),
    WindowSection: ("budget.window", ""),
    ArrivalSection: (
        "arrival",
        "How a table is announced is in [operate.md](operate.md#new-tables-arrive). The key may be "
        "empty (`arrival: {}`).",
    ),
    CatalogueEntry: (
        "catalogue",
        "Which file says what is in [operate.md](operate.md#a-bundle-in-a-catalogue).",
    ),
}


def _method_sections() -> dict[type[BaseModel], tuple[str, str]]:
    """Return the sections of all methods, each before those that are inside of it."""
    found: dict[type[BaseModel], tuple[str, str]] = {}
    for method in METHODS:
        parts = {
            name: field.annotation
            for name, field in method.config.model_fields.items()
            if inspect.isclass(field.annotation) and issubclass(field.annotation, BaseModel)
        }
        note = "Except `published`, every setting belongs to the proven analysis."
        found[method.config] = (
            f"method, kind {method.kind}",
            note if "published" in parts and method.proven is not None else "",
        )
        for name, model in parts.items():
            # One section of several methods names each of their kinds.
            before = f"{found.pop(model)[0]} or " if model in found else f"method.{name}, kind "
            found[model] = (f"{before}{method.kind}", "")
    return found


SECTIONS |= _method_sections()

# Meanings in the terms of the file, where a docstring uses those of the code.
MEANINGS: dict[tuple[str, str], str] = {
    ("SiteFile", "table_schema"): "The declared table.",
    ("SiteFile", "privacy_unit"): "The unit of protection.",
    ("SiteFile", "privacy"): "The guarantee of one release.",
    ("SiteFile", "budget"): "Caps on all releases together.",
    ("SiteFile", "dataset"): "Name under which releases are published. It is also the name of the "
    "budget where `budget` names no cohort.",
    ("SiteFile", "analysis"): "`proven`; or `published`, which is refused by a release and allowed "
    "only with `public_benchmark_data: true`.",
    ("PrivacySection", "epsilon"): "Bound on the privacy loss of one release.",
    (
        "PrivacySection",
        "delta",
    ): "By how much a probability may exceed what epsilon allows: a public "
    "constant, much smaller than one over the number of patients.",
    ("BudgetSection", "lifetime_epsilon"): "Cap of the cohort over all time, at the delta and the "
    "adjacency of this file; at least `privacy.epsilon`.",
    ("BudgetSection", "dataset_epsilon"): "Cap of this dataset alone, where several datasets share "
    "a cohort; at least `privacy.epsilon`.",
    ("BudgetSection", "window"): "Cap of the cohort within any stretch of days.",
    ("WindowSection", "epsilon"): "Cap at the delta and the adjacency of this file; at least "
    "`privacy.epsilon`.",
    ("PartitionSection", "part"): "The part that is read: from 0, below `parts`.",
    ("NumericColumn", "name"): "Column name.",
    ("NumericColumn", "kind"): "`integer` for whole numbers, else `real`.",
    (
        "NumericColumn",
        "decimals",
    ): "Decimals of a released value: 0 for integers, 2 for reals where "
    "left out. Bounds and edges lie on this grid.",
    ("CategoricalColumn", "name"): "Column name.",
    (
        "Label",
        "levels",
    ): "List of `{name: level, values: [raw values]}`, in the order of the codes; "
    "a mapping of levels to raw values is read in the order of its lines. A level's own name also "
    "stands for itself.",
    ("CategoricalColumn", "other"): "The level that takes every value which is not declared; such "
    "values are refused where there is none.",
    ("UnitSection", "column"): "Column that names the patient; `null` where every row is another "
    "patient, with one row per patient.",
    ("SklearnSource", "dataset"): "The dataset.",
} | {
    (model, "data"): f"Name of a public dataset: {', '.join(table_names())}."
    for model in ("CsvSource", "ParquetSource")
}
MEANINGS |= {
    (method.config.__name__, name): meaning
    for method in METHODS
    for name, meaning in (
        ("shares", "How the budget is split over the stages."),
        ("published", "Parameters of the published analysis."),
    )
}

HEAD = (
    _text("head.md")
    .replace("{headings}", "; ".join(HEADINGS.values()))
    .replace("{example}", EXAMPLE)
)


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(_section(model) for model in SECTIONS)


def _section(model: type[BaseModel]) -> str:
    title, note = SECTIONS[model]
    schema = model.model_json_schema(by_alias=True)
    required = set(schema.get("required", ()))
    meanings = _meanings(model)
    lines = [
        f"\n## {title}\n",
        *(f"\n{text}\n" for text in (_summary(model), note.strip()) if text),
    ]
    lines.append("\n| key | value | default | meaning |\n|---|---|---|---|\n")
    # The kind says which section this is.
    fields = sorted(model.model_fields.items(), key=lambda item: item[0] != "kind")
    for name, field in fields:
        key = field.alias or name
        declared = schema["properties"][key]
        meaning = field.description or meanings.get(name, "")
        meaning = MEANINGS.get((model.__name__, name), meaning)
        if key == "kind":
            meaning = meaning or "The kind of this section."
        if key in required or key == "kind":
            default = "required"
        elif field.default_factory is not None:
            default = "none" if "additionalProperties" in declared else "see its section"
        else:
            default = _default(field.default)
        cells = (f"`{key}`", _value(declared, schema, model), default, _prose(meaning))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return "".join(lines)


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
        return f"mapping of names to ({_value(declared['additionalProperties'], schema, owner)})"
    if kind == "null":
        return "`null`"
    words = {"string": "text", "boolean": "`true` or `false`"}.get(str(kind), str(kind))
    if declared.get("format") in ("path", "date"):
        words = str(declared["format"])
    limits = [
        f"{word} {_number(declared[key])}"
        for key, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("exclusiveMaximum", "below"),
            ("multipleOf", "in steps of"),
        )
        if key in declared
    ]
    return " ".join([words, *limits])


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _link(name: str, owner: type[BaseModel]) -> str:
    """Link the section of a model, by its name and by the model that has it as a part."""
    models = [model for model in SECTIONS if model.__name__ == name]
    if len(models) > 1:  # every method may have shares
        models = [model for model in models if model.__module__ == owner.__module__]
    (model,) = models
    title, _ = SECTIONS[model]
    anchor = re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-")
    return f"[{title}](#{anchor})"


def _default(value: object) -> str:
    return "none" if value in (None, (), {}) else f"`{json.dumps(value)}`"


def _prose(text: str) -> str:
    """Put docstring text on one line, in Markdown."""
    return " ".join(text.replace("``", "`").split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
