"""The bundle as a Frictionless data package (datapackage.org, version 2.0)."""

from typing import Any

from tasks.reporting.catalogue.described import (
    FILES,
    MEDIA_TYPES,
    Described,
    ReleasedColumn,
    json_file,
)

DATA_PACKAGE_FILE = "datapackage.json"

_TYPES = {"text": "string", "integer": "integer", "number": "number"}


def data_package(described: Described) -> bytes:
    """Return the package: the rows as text with their schema, and the other files as they are."""
    manifest, declared = described.manifest, described.declared
    optional: dict[str, Any] = {}
    if declared.landing_page:
        optional["homepage"] = declared.landing_page
    if declared.license:
        optional["licenses"] = [{"path": declared.license}]
    if declared.publisher:
        mail = {"email": declared.contact} if declared.contact else {}
        optional["contributors"] = [
            {"title": declared.publisher, "role": "publisher", "roles": ["publisher"], **mail}
        ]
    return json_file(
        {
            "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
            "name": f"{manifest.dataset}-{manifest.release_id}",
            "id": manifest.release_id,
            "title": described.name,
            "description": described.description,
            "created": f"{manifest.created_on.isoformat()}T00:00:00Z",
            "keywords": described.keywords,
            **optional,
            "resources": [_resource(described, name) for name in described.files],
        }
    )


def _resource(described: Described, name: str) -> dict[str, Any]:
    digest, kind = described.files[name], name.rpartition(".")[2]
    resource: dict[str, Any] = {
        "name": name.replace(".", "-").replace("_", "-"),
        "path": name,
        "title": FILES[name],
        "format": kind,
        "mediatype": MEDIA_TYPES[kind],
        "encoding": "utf-8",
        "bytes": digest.size,
        "hash": f"sha256:{digest.sha256}",
    }
    if name == "synthetic.csv":
        fields = [_field(column) for column in described.columns()]
        resource |= {"type": "table", "schema": {"fields": fields, "missingValues": [""]}}
    else:
        resource["type"] = "file"
    return resource


def _field(column: ReleasedColumn) -> dict[str, Any]:
    constraints: dict[str, Any] = {}
    if not column.may_be_empty and column.missing is None:
        constraints["required"] = True
    missing: dict[str, Any] = {}
    if column.bounds is not None:
        lower, upper = column.bounds
        if column.kind == "integer":
            lower, upper = int(lower), int(upper)
        constraints |= {"minimum": lower, "maximum": upper}
        if column.missing is not None:
            missing = {"missingValues": ["", column.missing]}
    else:
        code = () if column.missing is None else (column.missing,)
        constraints["enum"] = [*column.levels, *code]
    return {
        "name": column.name,
        "type": _TYPES[column.kind],
        "description": column.description,
        **missing,
        "constraints": constraints,
    }
