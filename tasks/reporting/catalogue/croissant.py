"""The entry of a bundle in Croissant 1.1 with properties of Croissant RAI 1.0.

Croissant is JSON-LD on the vocabulary of schema.org, so that the same file is the entry of a
``schema.org/Dataset`` that search engines read. Specification: docs.mlcommons.org/croissant.
"""

from typing import Any
from urllib.parse import quote

from tasks.reporting.catalogue.described import FILES, MEDIA_TYPES, Described, json_file
from tasks.reporting.facts import steps
from tasks.reporting.rendering import words

CROISSANT_FILE = "croissant.json"

_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "description": {"@container": "@language"},
} | {
    name: f"cr:{name}"
    for name in (
        "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field",
        "fileObject", "fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset",
        "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex",
        "repeated", "replace", "samplingRate", "separator", "source", "subField", "transform",
    )
}  # fmt: skip

_TYPES = {"text": "sc:Text", "integer": "sc:Integer", "number": "sc:Float"}

_CELLS = {
    "column": "text", "level": "text", "by": "text", "by_level": "text", "known": "text",
    "share": "number", "low": "number", "high": "number",
    "noise_patients": "number",
}  # fmt: skip
"""Columns of the file of released shares."""


def croissant(described: Described) -> bytes:
    """Return the entry; with one field for every column, of images for every pixel too."""
    manifest, declared = described.manifest, described.declared
    said = words()
    publisher = {"@type": "Organization", "name": declared.publisher, "email": declared.contact}
    optional: dict[str, Any] = {
        "url": declared.landing_page,
        "license": declared.license,
        "publisher": _given(publisher) if declared.publisher else None,
        "creator": _given(publisher) if declared.publisher else None,
    }
    rows = [
        _field("rows", column.name, column.in_parquet, "synthetic.parquet", column.description)
        for column in described.columns()
    ]
    sets = [_records("rows", "One synthetic row of no person.", rows)]
    if "tables.parquet" in described.files:
        cells = [_field("tables", name, kind, "tables.parquet") for name, kind in _CELLS.items()]
        sets.append(_records("tables", "One released share, with its interval.", cells))
    return json_file(
        {
            "@context": _CONTEXT,
            "@type": "sc:Dataset",
            "conformsTo": [
                "http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0",
            ],
            "name": described.name,
            "description": described.description,
            "version": f"{manifest.created_on:%Y}.{manifest.created_on.month}."
            f"{manifest.created_on.day}",
            "identifier": manifest.release_id,
            "datePublished": manifest.created_on.isoformat(),
            "keywords": described.keywords,
            "citeAs": f"{described.name}, {manifest.created_on.isoformat()}.",
            **_given(optional),
            "rai:dataCollection": "The records were collected by the institution that made the "
            "release; none of them is part of it.",
            "rai:dataPreprocessingProtocol": [
                f"{name}: {text}" for name, text in steps(manifest).items()
            ],
            "rai:dataUseCases": [described.purpose],
            "rai:dataLimitations": [
                f"{name} {text}" for name, text in said["not_to_conclude"].items()
            ],
            "rai:dataBiases": [
                "Noise is as large for small groups as for large ones, so shares in small groups "
                "are less exact; rows inherit whatever bias the records have."
            ],
            "rai:personalSensitiveInformation": list(said["protects"]),
            "rai:dataSocialImpact": " ".join(said["does_not_protect"]),
            "rai:dataReleaseMaintenancePlan": "A release does not change; a later one has an "
            "identifier of its own and is charged for.",
            "distribution": [
                {
                    "@type": "cr:FileObject",
                    "@id": name,
                    "name": name,
                    "description": FILES[name],
                    "contentUrl": name,
                    "contentSize": f"{digest.size} B",
                    # Not the registered name: the library reads the one of the specification.
                    "encodingFormat": "application/x-parquet"
                    if name.endswith(".parquet")
                    else MEDIA_TYPES[name.rpartition(".")[2]],
                    "sha256": digest.sha256,
                }
                for name, digest in described.files.items()
            ],
            "recordSet": sets,
        }
    )  # fmt: skip


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _records(name: str, description: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    kind = "cr:RecordSet"
    return {
        "@type": kind, "@id": name, "name": name, "description": description, "field": fields,
    }  # fmt: skip


def _field(records: str, name: str, kind: str, file: str, description: str = "") -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{records}/{quote(name, safe='')}",
        "name": name,
        **({"description": description} if description else {}),
        "dataType": _TYPES[kind],
        "source": {"fileObject": {"@id": file}, "extract": {"column": name}},
    }
