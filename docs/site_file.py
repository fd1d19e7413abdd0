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
from storage.public_data.image_datasets import IMAGE_DATASETS
from storage.schema.catalogue import CatalogueEntry
from storage.schema.column_blocks import ImageColumns
from storage.schema.columns import CategoricalColumn, NumericColumn
from storage.schema.constraints import Constraint
from storage.schema.table import Buckets, Label, TableSchema
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
    IdxSource,
    MedmnistSource,
    PngSource,
    Window,
)
from storage.sources.fhir import FhirFeature
from storage.sources.omop import OmopFeature, OmopPopulation
from tasks.synthesizers.registry import METHODS

PAGE = Path(__file__).with_name("site-file.md")

OMOP_EXAMPLE = """\
The first stay of each adult, sodium of its first 48 hours, and death within 30 days as the label:

```yaml
source:
  kind: omop
  url_env: CDM_URL
  population: {visit: 9201, descendants: true, take: first, age: [18, 110]}
  window: [-365d, 0d]
  features:
    - {column: age, person: age}
    - {column: sex, person: gender}
    - {column: sodium, measurement: 3019550, take: last, window: [0, 48h], unit: 8753}
    - {column: diabetes, condition: 201826, take: any, descendants: true}
    - {column: died, death: true, take: any, window: [0d, 30d]}
privacy_unit: {column: person_id, max_rows_per_patient: 1}
schema:
  columns:
    - {name: age, kind: integer, lower: 18, upper: 110, bins: [18, 40, 50, 60, 70, 80, 111]}
    - {name: sex, kind: categorical, levels: [FEMALE, MALE, other], other: other, nullable: true}
    - {name: sodium, kind: real, lower: 100, upper: 180, decimals: 0, nullable: true,
       bins: [100, 125, 130, 135, 140, 145, 150, 180]}
    - {name: diabetes, kind: categorical, levels: [0, 1]}
  label:
    name: died
    levels: [{name: alive, values: [0]}, {name: died, values: [1]}]
    positive: died
```
"""

FHIR_EXAMPLE = """\
```yaml
source:
  kind: fhir
  path: export
  features:
    - {column: sex, expression: Patient.gender}
    - {column: sodium, expression: "Observation.where(code.coding.exists(system = 'http://loinc.org'
       and code = '2951-2')).last().value.value"}
    - {column: diabetes, expression: "Condition.code.coding.exists(code = '73211009')"}
privacy_unit: {column: patient, max_rows_per_patient: 1}
schema:
  columns:
    - {name: sex, kind: categorical, levels: [female, male, other, unknown], nullable: true}
    - {name: sodium, kind: real, lower: 100, upper: 180, decimals: 0, nullable: true,
       bins: [100, 125, 130, 135, 140, 145, 150, 180]}
  label:
    name: diabetes
    levels: [{name: without, values: ["false"]}, {name: diabetes, values: ["true"]}]
    positive: diabetes
```
"""

# Model -> title of its section, and what the docstring of the model does not say.
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
    IdxSource: ("source, kind idx", ""),
    PngSource: ("source, kind png", ""),
    DicomSource: ("source, kind dicom", ""),
    Window: ("source.window", ""),
    MedmnistSource: ("source, kind medmnist", ""),
    TableSchema: (
        "schema",
        "Every column of the source is declared: in `columns`, as `label`, in `ignore`, or as the "
        "column of `privacy_unit`. A source with another column is refused. Hundreds of columns of "
        "one kind are declared in one key, `image` or `items`.",
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

# What a docstring says in the words of the code, said in the words of the file.
MEANINGS: dict[tuple[str, str], str] = {
    ("IdxSource", "data"): f"Name of a public dataset: {', '.join(sorted(IMAGE_DATASETS))}.",
    ("SiteFile", "table_schema"): "The declared table.",
    ("SiteFile", "privacy_unit"): "Whom privacy protects.",
    ("SiteFile", "privacy"): "The guarantee of one release.",
    ("SiteFile", "budget"): "What all releases together may cost.",
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
    ("NumericColumn", "kind"): "Whether released values are whole numbers.",
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

EXAMPLE = """\
dataset: ward-admissions
title: Admissions to the medical ward
source: {kind: csv, path: admissions.csv}
privacy_unit: {column: patient_id, max_rows_per_patient: 3}
privacy: {epsilon: 1.0, delta: 1.0e-6}
budget: {lifetime_epsilon: 3.0, window: {days: 365, epsilon: 1.5}}
method: {kind: clustmix}
rows: 20000
approval: none
schema:
  columns:
    - {name: age, kind: integer, lower: 0, upper: 110, bins: 11}
    - {name: creatinine, kind: real, lower: 0.1, upper: 15.0, bins: [0.1, 0.7, 1.3, 2.0, 4.0, 15.0],
       decimals: 1, nullable: true}
    - {name: sex, kind: categorical, levels: [female, male, unknown], other: unknown}
    - {name: pregnant, kind: categorical, levels: ["no", "yes"], nullable: true}
    - {name: days, kind: integer, lower: 0, upper: 90, bins: [0, 1, 3, 7, 14, 91]}
    - {name: days_on_icu, kind: integer, lower: 0, upper: 90, bins: [0, 1, 3, 7, 14, 91]}
  constraints:
    - {holds: days_on_icu <= days}
    - {never: {sex: male, pregnant: "yes"}, mend: {pregnant: null}}
    - {when: {age: 50..110}, then: {pregnant: ["no", null]}}
  label:
    name: readmitted
    levels:
      - {name: "no", values: ["0"]}
      - {name: "yes", values: ["1"]}
    positive: "yes"
  ignore: [admission_id, admitted_at]
"""

HEAD = f"""\
# The site file

A site file is one YAML file that says everything about the releases of one dataset: where the table
is, what it is declared to hold, whom privacy protects, what a release guarantees and what all
releases together may cost. Everything in it is public. It is no secret and it is not protected by
the guarantee, so bounds, bins and levels come from a codebook, a data dictionary or clinical
knowledge, never from the records.

`clustmix init TABLE` writes a template from the column names and, for Parquet, the column types.
With `--codebook` it fills in what [a codebook](#from-a-codebook) says, and marks what is a guess.
It reads CSV and Parquet. For a database, a FHIR export or images copy the example of its section,
or that of [images.md](images.md). The first hour with a public table is in
[tutorial.md](tutorial.md).

The folder [deployments/sites](../deployments/sites) has complete files for public tables.

A release that is started by hand names its site file. One that the orchestrator starts, by a
schedule, an arrival or its page, reads `DATASET.yaml` in the folder `CLUSTMIX_SITES`.

This page is written by [site_file.py](site_file.py) from the models that read the file.

## Rules of the file

- Plain YAML in UTF-8, at most 1 MB and 100,000 nodes with aliases written out.
- An unknown key, a key that is given twice and a placeholder `FILL_IN` are refused, with one line
  that names the key and exit code 2.
- Levels and codes are text or numbers. `3`, `3.0` and `"3"` are the same level. `No`, `Yes`, `On`
  and `Off` need quotes, because YAML reads them as true and false.
- A cell is compared as text without outer blanks, and so are patients and `select`. A whole number
  is `3` however it is stored; a decimal of a database keeps its digits, so `1.10` is not `1.1`;
  true is `True`; dates and times are `2026-01-31`, `2026-01-31 07:30:00` or
  `2026-01-31 07:30:00+01:00`, as the source has them; a partition folder `ward=01` is the text
  `01`. Lists, structures, bytes, durations and JSON are refused by column, and so is a patient or
  a level with a NUL character.
- What the schema declares and a row does not keep: a number outside its bounds is clipped; an
  undeclared category goes to `other`, and is refused where there is no `other`; an empty cell is
  "missing" where the column is `nullable`, and is refused where it is not; infinity and text that
  is no number are refused. A refusal names the column and the rule, and never a value.
- Empty are a cell of a text file with nothing or blanks in it, a null, and NaN of a column of
  floating-point numbers. The texts `NA`, `NaN`, `None` and `null` are texts: in a category they
  are levels like others, and in a column of numbers they are refused. Where they mean "missing",
  declare them: `missing: [NA]`. Upper and lower case differ.
- One ledger balance belongs to one cohort of patients. Give all site files about the same patients
  the same `budget.cohort`: balances of different cohorts are not added up.
- Caps can be lowered by a later site file and never raised, and an approval can be switched on and
  never off: the ledger keeps what it was once told. The adjacency of a cohort stays as it was.
- The same request is measured and charged once. A request is the content of the source, the version
  of the program, and every key of this file but these: `title`, `rows`, `soft_labels`,
  `approval`, `arrival`, `public_benchmark_data`, `catalogue`, the caps of `budget`, and the places
  in `source` (`path`, `data`, `images`, `labels`, `folder`, `table`). To change those costs
  nothing. The content of a database is not known before it is read: every release of a `sql` or
  `omop` source is new, and charged.

## From a codebook

`clustmix init TABLE --codebook FILE` reads

- a sheet (`.csv`, `.tsv`, `.xlsx`): a line of headings, below a title if there is one, and a row
  for each column, or for each of its codes; headings and their other spellings are
  {"; ".join(HEADINGS.values())};
- a data dictionary of REDCap (`.csv`): types, choices, validation, identifiers, required fields; a
  checkbox is a column for each choice (`name___code`);
- a table schema or a data package of Frictionless (`.json`, `.yaml`);
- JSON Schema of a row, or of a list of rows, with references within the file;
- LinkML (`.yaml`): slots, attributes and enums.

Levels are written `1=male; 2=female`, `A | B` or, where no level has a comma, `A, B`; a range is
`0 to 120` or `0-120`. A level that means "missing", "not measured" or "not recorded" becomes a
missing code. Identifiers, dates and free text go to `ignore`. What contradicts itself is refused in
one line. An OMOP vocabulary describes concepts and not columns; it is not read.

`clustmix ranges` lists public clinical ranges of adults. `init` proposes one where the codebook has
no bounds, if the name or the description of the column is that of the quantity, in the same unit if
one is given. It is marked as a guess, with its sources. `nullable` on every column costs little;
`clustmix plan` says how much.

## Example

```yaml
{EXAMPLE}```
"""


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
