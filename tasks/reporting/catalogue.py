"""Catalogue entries of a bundle: Croissant, Frictionless, HealthDCAT-AP and a registry record.

Each is a template of ``templates``, filled in from the manifest, the public schema and the
declarations of the site file. No entry holds a count of the source but the declared one. An
undeclared value is left out, or called "not declared" where a validator requires it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import yaml

from storage.files.documents import FileDigest
from storage.releases.manifest import Manifest
from storage.schema.columns import NumericColumn
from storage.schema.declarations import CatalogueEntry
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from tasks.reporting.claim import Claim
from tasks.reporting.facts import budget_sentence, described_column, noise_table, origin, steps
from tasks.reporting.rendering import render, words

CROISSANT_FILE = "croissant.json"
DATA_PACKAGE_FILE = "datapackage.json"
HEALTH_DCAT_FILE = "healthdcat.jsonld"
DEPLOYMENT_FILE = "deployment_record.yaml"


def catalogue_files(
    manifest: Manifest,
    schema: TableSchema,
    declared: CatalogueEntry,
    *,
    title: str,
    patients: int | None,
    public: bool,
    files: Mapping[str, FileDigest],
    key: str | None = None,
    events: Sequence[Mapping[str, Any]] = (),
) -> dict[str, bytes]:
    """Write the entries: the same bytes for the same release and declarations.

    ``patients`` is the declared number; ``public`` data are available to anybody. ``files`` are the
    files of the bundle, of which those that ``words.yaml`` describes are listed. Tables of events
    (`tasks.histories.event_pages`) name the patients of the rows by their key.
    """
    about = dict(words()["files"])
    for table, (suffix, said) in product(events, words()["event_files"].items()):
        name = table["name"]
        about[f"{name}.{suffix}"] = {**said, "about": f"{said['about']} {name}", "of": name}
    facts = {
        **_facts(manifest, schema, declared, title),
        "patients": patients,
        "public": public,
        "access": "PUBLIC" if public else "NON_PUBLIC",
        "files": [_file_entry(f, digest, about[f]) for f, digest in files.items() if f in about],
        "key": key if events else None,
        "events": events,
    }
    record = _entry("deployment_record", facts)
    return {
        CROISSANT_FILE: _json(_entry("croissant", facts)),
        DATA_PACKAGE_FILE: _json(_entry("datapackage", facts)),
        HEALTH_DCAT_FILE: _json(_entry("healthdcat", facts)),
        DEPLOYMENT_FILE: yaml.safe_dump(
            record, sort_keys=False, allow_unicode=True, width=100
        ).encode("utf-8"),
    }


def _facts(
    manifest: Manifest, schema: TableSchema, declared: CatalogueEntry, title: str
) -> dict[str, Any]:
    """Return facts of a release by their names in the templates."""
    claim = Claim(manifest)
    return {
        "manifest": manifest,
        "declared": declared,
        "claim": claim,
        **words()["not_declared"],
        "title": title,
        "name": f"{title}: synthetic release {manifest.release_id}",
        "description": (
            f"{manifest.rows} synthetic rows in the form of the table {manifest.dataset} "
            f"({title}). {''.join(f'{text} ' for text in origin(manifest))}The number of rows was "
            f"chosen. {claim.statement} No row is copied from a record."
        ),
        "purpose": declared.purpose or words()["purpose"],
        "keywords": list(
            dict.fromkeys([*declared.keywords, "synthetic data", "differential privacy"])
        ),
        "date": manifest.created_on,
        "is_table": schema.image is None,
        "columns": list(_columns(schema)),
        "words": words(),
        "steps": steps(manifest, images=schema.image is not None),
        "budget": budget_sentence(manifest),
        "draws": [
            f"{statistic}: {noise}, {n} values, noise / sensitivity {ratio}"
            for statistic, noise, n, *_, ratio in noise_table(manifest).rows
        ],
    }


def _columns(schema: TableSchema) -> Iterator[dict[str, Any]]:
    """Yield every released column, the labels last: text, number or date, levels or bounds.

    The missing code is None if missing values are empty cells or do not occur. A code such as ``?``
    makes numbers text in the Parquet file.
    """
    pixel = None if schema.image is None else "gray level of a pixel"
    never = {"missing": (), "nullable": False}  # a row without a label is left out
    labels = [(one.number or one.model_copy(update=never), one.about) for one in schema.all_labels]
    derived = [(one, schema.derived[one.name].about) for one in schema.derived_columns]
    for column, about in [*((one, pixel) for one in schema.columns), *derived, *labels]:
        yield described(column, about)


def described(column: Any, about: str | None = None) -> dict[str, Any]:
    """Return a column as the templates describe it; see `_columns`."""
    code = None if column.nullable or not column.missing else column.missing[0]
    kind, levels, bounds, is_missing = "text", None, None, False
    if isinstance(column, NumericColumn):
        kind = "date" if column.is_date else "integer" if column.is_whole else "number"
        number = column.text if column.is_date else int if column.is_whole else float
        bounds = (number(column.lower), number(column.upper)) if column.base is None else None
        is_missing = code is not None and column.read(code) is None
    else:
        levels = [*(column.level_names if isinstance(column, Label) else column.levels)]
    return {
        "name": column.name,
        "kind": kind,
        "in_parquet": "text" if is_missing else kind,
        "about": about or described_column(column),
        "levels": levels,
        "bounds": bounds,
        "missing": code,
        "may_be_empty": column.nullable,
    }


def _file_entry(name: str, digest: FileDigest, about: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "id": name.replace(".", "-").replace("_", "-"),
        "format": name.rpartition(".")[2],
        "of": None,
        "size": digest.size,
        "sha256": digest.sha256,
        **about,
    }


def _entry(name: str, facts: Mapping[str, Any]) -> Any:
    """Fill in the template ``name``; keys without a value are left out."""
    return _known(json.loads(render(f"{name}.json", **facts)))


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(inner) for key, inner in value.items() if inner is not None}
    return [_known(inner) for inner in value] if isinstance(value, list) else value


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8")
