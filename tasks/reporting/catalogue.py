"""Catalogue entries of a bundle: Croissant, Frictionless, HealthDCAT-AP and a registry record.

Each is a template of ``templates``, filled in from the manifest, the public schema and the
declarations of the site file. No entry holds a count of the source but the declared one. A value
that a format has a key for and nobody declared is left out, or called "not declared" where a
validator requires it.
"""

import json
from collections.abc import Iterable
from functools import cache, partial
from typing import Any
from urllib.parse import quote

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.runtime import LoopContext
from markupsafe import Markup

from tasks.reporting.claim import Claim
from tasks.reporting.described import NOT_DECLARED, Described
from tasks.reporting.facts import budget_sentence, noise_table, steps
from tasks.reporting.rendering import words

CROISSANT_FILE = "croissant.json"
DATA_PACKAGE_FILE = "datapackage.json"
HEALTH_DCAT_FILE = "healthdcat.jsonld"
DEPLOYMENT_FILE = "deployment_record.yaml"

UNKNOWN = "urn:clustmix:not-declared"
"""Stands for an address that a format requires and the site file does not declare."""


def catalogue_files(described: Described) -> dict[str, bytes]:
    """Write the entries: the same bytes for the same release and declarations."""
    record = entry("deployment_record", described)
    return {
        CROISSANT_FILE: _json(entry("croissant", described)),
        DATA_PACKAGE_FILE: _json(entry("datapackage", described)),
        HEALTH_DCAT_FILE: _json(entry("healthdcat", described)),
        DEPLOYMENT_FILE: yaml.safe_dump(
            record, sort_keys=False, allow_unicode=True, width=100
        ).encode("utf-8"),
    }


def entry(name: str, described: Described) -> Any:
    """Fill in the template ``name``; keys without a value are left out."""
    manifest, said = described.manifest, words()
    files = [
        {
            "name": file,
            "id": file.replace(".", "-").replace("_", "-"),
            "format": file.rpartition(".")[2],
            "size": digest.size,
            "sha256": digest.sha256,
            **said["files"][file],
        }
        for file, digest in described.files.items()
    ]
    text = (
        _environment()
        .get_template(f"{name}.json.j2")
        .render(
            described=described,
            manifest=manifest,
            declared=described.declared,
            claim=Claim(manifest),
            access="PUBLIC" if described.public else "NON_PUBLIC",
            date=manifest.created_on,
            columns=list(described.columns()),
            files=files,
            words=said,
            steps=steps(manifest, images=described.schema.image is not None),
            budget=budget_sentence(manifest),
            draws=[
                f"{statistic}: {noise}, {n} values, noise / sensitivity {ratio}"
                for statistic, noise, n, *_, ratio in noise_table(manifest).rows
            ],
        )
    )
    return _known(json.loads(text))


@cache
def _environment() -> Environment:
    """Return templates of JSON, in which every value is written as JSON."""
    environment = Environment(
        loader=PackageLoader("tasks.reporting"),
        autoescape=True,  # text of a template and results of macros pass as they are
        finalize=_written,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["quoted"] = partial(quote, safe="")
    environment.globals |= {
        "bullets": _bullets,
        "comma": _comma,
        "float": float,
        "int": int,
        "not_declared": NOT_DECLARED,
        "unknown": UNKNOWN,
    }
    return environment


def _written(value: object) -> Markup:
    if isinstance(value, Markup):
        return value
    return Markup(json.dumps(value, ensure_ascii=False))  # noqa: S704 -- JSON, not HTML


def _comma(loop: LoopContext) -> Markup:
    return Markup("") if loop.last else Markup(",")


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _known(value: Any) -> Any:
    """Leave out keys without a value."""
    if isinstance(value, dict):
        return {key: _known(inner) for key, inner in value.items() if inner is not None}
    return [_known(inner) for inner in value] if isinstance(value, list) else value


def _json(document: object) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8")
