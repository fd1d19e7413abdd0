"""Schemas that others publish and a catalogue entry has to keep.

Their licenses and their length keep them out of this repository: they are read from the folder
``schemas`` of CLUSTMIX_DATA_DIR, or by download. The addresses name commits, whose content stays.
"""

import pytest
import rdflib
import yaml
from rdflib.namespace import RDF, SH

from storage.public_data.datasets import data_folders, get
from storage.settings import load_settings

_HEALTH_DCAT = (
    "https://code.europa.eu/healthdataeu/healthdcat-ap/-/raw/cd7841f/public/releases/release-8/"
    "html/shacl/HealthDCAT-AP_validator/config/rdf-validator/ehds/",
    "https://raw.githubusercontent.com/SemanticDataCharter/sdc_healthdcat_ap/"
    "4e4ca6064c972ed2195688c469996df61085bad9/data/healthdcat-ap-r8-cd7841f/validator/",
)
_REGISTRY = (
    "https://raw.githubusercontent.com/opendp/deployments-registry-data/"
    "057e5d81cf60150dd3307e0cf4504b957802fb3b/schemas/deployments-schema.yaml"
)


def shapes(name):
    """Return a file of the HealthDCAT-AP validator as a graph; skip the test without it."""
    folder = "ranges" if name == "range.ttl" else "shapes"
    text = _text(name, *(f"{place}{folder}/{name}" for place in _HEALTH_DCAT))
    graph = rdflib.Graph().parse(data=text, format="turtle")
    # A shape that the file lists among properties and that has no path is meant as one of the node.
    for shape, node in list(graph.subject_objects(SH.property)):
        if (node, SH.path, None) not in graph:
            graph.remove((shape, SH.property, node))
            graph.add((shape, SH.node, node))
            graph.add((node, RDF.type, SH.NodeShape))
    return graph


def registry_schema():
    """Return the JSON schema of the registry of deployments; skip the test without it."""
    return yaml.safe_load(_text("deployments-schema.yaml", _REGISTRY))


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
