"""The catalogue entries of a bundle, filled into the forms of ``templates``.

Written from the manifest, the public schema and the declarations of the site file: no count of the
source is in any of them but the declared one. What a form asks for and nobody declared is left out,
or said to be not declared where a validator insists on it.
"""

import json
import re
from collections.abc import Mapping
from importlib import resources
from string import Formatter
from typing import Any
from urllib.parse import quote

import yaml

from tasks.reporting.described import NOT_DECLARED, Described
from tasks.reporting.facts import budget_sentence, noise_table, steps
from tasks.reporting.guarantee import Claim
from tasks.reporting.rendering import words

CROISSANT_FILE = "croissant.json"
DATA_PACKAGE_FILE = "datapackage.json"
HEALTH_DCAT_FILE = "healthdcat.jsonld"
DEPLOYMENT_FILE = "deployment_record.yaml"

UNKNOWN = "urn:clustmix:not-declared"
"""Stands for an address that a form asks for and the site file does not declare."""

_PLACE = re.compile(r"\{([\w.]+)\}")

Facts = dict[str, Any]


def catalogue_files(described: Described) -> dict[str, bytes]:
    """Write the entries: the same bytes for the same release and declarations."""
    return {
        CROISSANT_FILE: _json(croissant(described)),
        DATA_PACKAGE_FILE: _json(data_package(described)),
        HEALTH_DCAT_FILE: _json(health_dcat(described)),
        DEPLOYMENT_FILE: yaml.safe_dump(
            deployment_record(described), sort_keys=False, allow_unicode=True, width=100
        ).encode("utf-8"),
    }


def _steps(described: Described) -> dict[str, str]:
    return steps(described.manifest, images=described.schema.image is not None)


def croissant(described: Described) -> Facts:
    """Return the entry in Croissant; with a field for every column, of images for every pixel."""
    form, said, facts = _form("croissant"), words(), _facts(described)

    def field(name: str, kind: str, about: str | None, **place: str) -> Any:
        quoted = quote(name, safe="")
        own = {"column": name, "quoted": quoted, "kind": form["kinds"][kind], "about": about}
        return filled(form["field"], own | place)

    rows = [
        field(column.name, column.in_parquet, column.about, set="rows", file="synthetic.parquet")
        for column in described.columns()
    ]
    records = [{"set": "rows", "about": "One synthetic row of no person.", "fields": rows}]
    if "tables.parquet" in described.files:
        cells = [
            field(name, kind, None, set="tables", file="tables.parquet")
            for name, kind in form["tables"].items()
        ]
        about = "One released share, with its interval."
        records.append({"set": "tables", "about": about, "fields": cells})
    date, made = described.manifest.created_on, _steps(described)
    return _entry(
        form,
        facts
        | {
            "version": f"{date.year}.{date.month}.{date.day}",
            "agent": filled(form["agent"], facts) if described.declared.publisher else None,
            "steps": [": ".join(each) for each in made.items()],
            "limitations": [f"{name} {text}" for name, text in said["not_to_conclude"].items()],
            "protects": said["protects"],
            "does_not_protect": " ".join(said["does_not_protect"]),
            "files": [filled(form["file"], _file(described, name)) for name in described.files],
            "records": [filled(form["records"], one) for one in records],
        },
    )


def data_package(described: Described) -> Facts:
    """Return the Frictionless package: the rows as text with a schema, other files as they are."""
    form, facts = _form("data_package"), _facts(described)
    fields = []
    for column in described.columns():
        own: Facts = {
            "column": column.name,
            "kind": form["kinds"][column.kind],
            "about": column.about,
            "required": True if column.missing is None and not column.may_be_empty else None,
            **dict.fromkeys(("codes", "levels", "lower", "upper")),
        }
        code = [] if column.missing is None else [column.missing]
        if column.bounds is None:
            own["levels"] = [*column.levels, *code]
        else:
            number = int if column.kind == "integer" else float
            own["lower"], own["upper"] = map(number, column.bounds)
            own["codes"] = ["", *code] if code else None
        fields.append(filled(form["field"], own))
    schema = {"fields": fields, "missingValues": [""]}
    files = []
    for name in described.files:
        table = name == "synthetic.csv"
        own = {"type": "table" if table else "file", "schema": schema if table else None}
        files.append(filled(form["file"], _file(described, name) | own))
    license, publisher = described.declared.license, described.declared.publisher
    return _entry(
        form,
        facts
        | {
            "licenses": [{"path": license}] if license else None,
            "contributors": [filled(form["contributor"], facts)] if publisher else None,
            "files": files,
        },
    )


def health_dcat(described: Described) -> Facts:
    """Return the entry in HealthDCAT-AP; of images the pixels are not described one by one."""
    form, facts = _form("health_dcat"), _facts(described)
    declared, page = described.declared, described.declared.landing_page
    mail, terms, n = declared.contact, declared.license, described.patients
    unknown = {"@id": UNKNOWN}

    def contact(address: str | None) -> Any:
        return filled(form["contact"], {"mail": address, "url": None if address else unknown})

    def distribution(name: str) -> Any:
        return filled(form["file"], facts | _file(described, name))

    facts |= {
        "access": "PUBLIC" if described.public else "NON_PUBLIC",
        "body": declared.access_body or NOT_DECLARED,
        "body_contact": contact(declared.access_contact),
        "publisher_contact": contact(mail),
        "contact_name": declared.publisher or NOT_DECLARED,
        "mail": {"@id": f"mailto:{mail}"} if mail else None,
        "url": None if mail else {"@id": page or UNKNOWN},
        "page": page or UNKNOWN,
        "page_words": page or NOT_DECLARED,
        "landing": {"@id": page, "@type": "foaf:Document"} if page else None,
        "terms": {"@id": terms, "@type": "dct:LicenseDocument"} if terms else None,
        "structured": described.schema.image is None,
        "individuals": {"@type": "xsd:nonNegativeInteger", "@value": f"{n}"} if n else None,
        "variables": None,
    }
    facts["agent"] = filled(form["agent"], facts) if declared.publisher else None
    facts["analytics"] = distribution("tables.csv") if "tables.csv" in described.files else None
    facts["samples"] = [distribution(name) for name in ("synthetic.csv", "synthetic.parquet")]
    if described.schema.image is None:
        columns = [
            filled(form["field"], {"column": column, "kind": form["kinds"][column.kind]})
            for column in described.columns()
        ]
        facts["variables"] = filled(form["variables"], facts | {"columns": columns})
    return _entry(form, facts)


def deployment_record(described: Described) -> Facts:
    """Return the record for the registry of deployments of differential privacy."""
    manifest, declared, said = described.manifest, described.declared, words()
    kind = declared.publisher_kind
    before, *after = _steps(described).items()
    curator = declared.publisher or f"Publisher {NOT_DECLARED}"
    return _entry(
        _form("deployment_record"),
        _facts(described)
        | {
            "slug": f"{manifest.dataset}_{manifest.release_id}".replace("-", "_"),
            # The schema knows no kind for a curator of whom nobody said it.
            "curator": curator if kind else f"{curator}; its type {NOT_DECLARED}",
            "curator_kind": kind or "Nonprofit",
            "author": declared.publisher or f"Author {NOT_DECLARED}",
            "described_region": declared.region or NOT_DECLARED.capitalize(),
            "sector": None if described.public else "Healthcare",
            "trust": "\n".join(f"- {text}" for text in said["trust"]),
            "trust_in_proof": " ".join(said["trust_in_proof"]),
            "encoding": before[1],
            "draws": "\n".join(
                f"- {statistic}: {noise}, {n} values, noise / sensitivity {ratio}"
                for statistic, noise, n, *_, ratio in noise_table(manifest).rows
            ),
            "budget": budget_sentence(manifest),
            "after": "\n".join(f"- {name}: {text}" for name, text in after),
        },
    )


def filled(form: Any, facts: Mapping[str, Any]) -> Any:
    """Fill in a form: ``{fact}`` alone becomes the fact itself; a key whose fact is None goes."""
    if isinstance(form, dict):
        done = {key: filled(value, facts) for key, value in form.items()}
        return {key: value for key, value in done.items() if value is not None}
    if isinstance(form, list):
        return [filled(value, facts) for value in form]
    if isinstance(form, str):
        alone = _PLACE.fullmatch(form)
        return Formatter().get_field(alone[1], (), facts)[0] if alone else form.format_map(facts)
    return form


def _form(name: str) -> Facts:
    place = resources.files("tasks.reporting").joinpath("templates", f"{name}.yaml")
    form: Facts = yaml.safe_load(place.read_text("utf-8"))
    return form


def _entry(form: Facts, facts: Facts) -> Facts:
    entry: Facts = filled(form["entry"], facts)
    return entry


def _facts(described: Described) -> Facts:
    manifest = described.manifest
    return {
        "described": described,
        "manifest": manifest,
        "declared": described.declared,
        "claim": Claim(manifest),
        "date": manifest.created_on.isoformat(),
    }


def _file(described: Described, name: str) -> Facts:
    said = words()["files"][name]
    return {
        "file": name,
        "id": name.replace(".", "-").replace("_", "-"),
        "format": name.rpartition(".")[2],
        "registered_type": said["media_type"].replace("x-parquet", "vnd.apache.parquet"),
        "digest": described.files[name],
        **said,
    }


def _json(document: Facts) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8")
