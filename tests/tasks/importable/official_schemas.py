"""Schemas that others publish and a catalogue entry has to keep, had from a folder or by download.

Their licenses and their length keep them out of this repository. A file is the expected one if what
it asks for is: the digest is of its content in canonical form, without comments and texts for
people. The places name commits, whose content does not change.
"""

import hashlib
import json

import pytest
import rdflib
import yaml
from rdflib.compare import to_canonical_graph
from rdflib.namespace import DCTERMS, RDF, RDFS, SH

from storage.public_data.datasets import data_folders, get
from storage.settings import load_settings

_HEALTH_DCAT = (
    "https://code.europa.eu/healthdataeu/healthdcat-ap/-/raw/cd7841f/public/releases/release-8/"
    "html/shacl/HealthDCAT-AP_validator/config/rdf-validator/ehds/"
)
_COPY = (
    "https://raw.githubusercontent.com/SemanticDataCharter/sdc_healthdcat_ap/"
    "4e4ca6064c972ed2195688c469996df61085bad9/data/healthdcat-ap-r8-cd7841f/validator/"
)
_REGISTRY = (
    "https://raw.githubusercontent.com/opendp/deployments-registry-data/"
    "057e5d81cf60150dd3307e0cf4504b957802fb3b/schemas/deployments-schema.yaml"
)
_WANTED = {
    "public-shapes.ttl": "fa4351073f0b4cf0d2057cf8197bc85381916f6396e06c81287eb5e66495a2c1",
    "non-public-shapes.ttl": "00592b8fdd7cd20d15bc73d745768af423b10e819c725b40f636714d431e05b1",
    "range.ttl": "b06ccdd6949d39c7d937d213e17f4dfce87bc943de315d9830311cd938f9191a",
    "deployments-schema.yaml": "14be22f1b02932ffd50bf0d515e6c0b4ebfee17aae8e90d1802852c4a028aab6",
}
_WORDS = (RDFS.label, RDFS.comment, DCTERMS.description, SH.message, SH.description, SH.severity)


def shapes(name):
    """Return a file of the HealthDCAT-AP validator as a graph; skip the test without it."""
    folder = "ranges" if name == "range.ttl" else "shapes"
    text = _text(name, f"{_HEALTH_DCAT}{folder}/{name}", f"{_COPY}{folder}/{name}")
    graph = rdflib.Graph().parse(data=text, format="turtle")
    for word in _WORDS:
        graph.remove((None, word, None))
    lines = sorted(to_canonical_graph(graph).serialize(format="nt").splitlines())
    _require(name, "\n".join(lines))
    # A shape that the file lists among properties and that has no path is meant as one of the node.
    for shape, node in list(graph.subject_objects(SH.property)):
        if (node, SH.path, None) not in graph:
            graph.remove((shape, SH.property, node))
            graph.add((shape, SH.node, node))
            graph.add((node, RDF.type, SH.NodeShape))
    return graph


def registry_schema():
    """Return the JSON schema of the registry of deployments; skip the test without it."""
    schema = _without_words(yaml.safe_load(_text("deployments-schema.yaml", _REGISTRY)))
    _require("deployments-schema.yaml", json.dumps(schema, sort_keys=True))
    return schema


def _without_words(node):
    """Drop the texts for people: a property of this name is a mapping, and stays."""
    if isinstance(node, list):
        return [_without_words(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_words(part)
        for key, part in node.items()
        if not (key in ("description", "description_long") and isinstance(part, str))
    }


def _text(name, *places):
    settings = load_settings()
    for folder in data_folders(settings.data_places):
        if (folder / "schemas" / name).is_file():
            return (folder / "schemas" / name).read_text("utf-8")
    for place in () if settings.offline else places:
        content = get(place)
        if content is not None:
            return content.decode("utf-8")
    pytest.skip(f"no {name} in the folder schemas of CLUSTMIX_DATA_DIR, nor from {places[0]}")


def _require(name, content):
    found = hashlib.sha256(content.encode("utf-8")).hexdigest()
    assert found == _WANTED[name], f"{name} is not what it was: SHA-256 {found}"
