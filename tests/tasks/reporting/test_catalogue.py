import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import frictionless
import jsonschema
import mlcroissant
import numpy as np
import pandas as pd
import pyshacl
import pytest
import rdflib
import yaml
from made_manifests import EVENTS
from official_schemas import registry_schema, shapes
from pydantic import ValidationError
from rdflib.namespace import DCAT, DCTERMS, RDF
from scipy.stats import norm

from flows.site.request import job_of
from flows.site.site_file import SiteFile, load_site
from privacy.events import event_to_dict
from storage.releases.manifest import GateRecord
from storage.schema.table import TableSchema
from tasks.ingest.encoding import decode, domain_of
from tasks.reporting.claim import Claim
from tasks.reporting.report import render_risk_appendix
from tasks.reporting.tables import table_files
from tasks.steps.bundle import build_bundle

# Of rdflib, whose reader of JSON-LD uses what it warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")

ADMS = rdflib.Namespace("http://www.w3.org/ns/adms#")
HEALTH = rdflib.Namespace("http://healthdataportal.eu/ns/health#")
RELEASE_ID = "r-20260101-00c0ffee"
SITES = sorted((Path(__file__).parents[3] / "deployments" / "sites").glob("*.yaml"))
DECLARED = {
    "publisher": "Hospital of <St. Ann> & sons", "publisher_kind": "Nonprofit",
    "contact": "data@hospital.example", "landing_page": "https://hospital.example/data",
    "license": "https://creativecommons.org/licenses/by/4.0/",
    "access_body": "Health data access body", "access_contact": "body@hospital.example",
    "keywords": ["intensive care"], "region": "Everywhere", "purpose": "To teach.",
    "review_on": "2027-01-31",
}  # fmt: skip


def bundle_of(site, folder, *, n_rows=12):
    job = job_of(site, RELEASE_ID)
    rng = np.random.default_rng(3)
    domain = domain_of(job.table_schema)
    codes = rng.integers(domain.n_codes, size=(n_rows, domain.n_columns)).astype(np.uint16)
    labels = (np.arange(n_rows) % domain.n_labels).astype(np.uint16)
    frame = decode(codes, labels, job.table_schema, rng=rng)
    record = SimpleNamespace(
        release_id=RELEASE_ID,
        ledger_entry="e-1",
        tainted=False,
        events=tuple(map(event_to_dict, EVENTS)),
    )
    files, manifest = build_bundle(
        job,
        SimpleNamespace(record=record, sha256="0" * 64, pooled=(), unit=None),
        table_files(frame, job.table_schema),
        frame,
        gate=(GateRecord(check="columns", passed=True),),
        conditions={},
    )
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert manifest.files.keys() == files.keys()
    return frame


def awkward_site(**changes):
    """Return a site file whose names, codes and empty cells no format would have chosen."""
    columns = [
        {"name": "a b/c %", "kind": "real", "lower": -1, "upper": 2, "bins": 3, "nullable": True},
        {"name": "Größe", "kind": "integer", "lower": 0, "upper": 9, "bins": 5, "nullable": True},
        {"name": "n", "kind": "integer", "lower": 0, "upper": 9, "bins": 5, "missing": ["-1"]},
        {"name": "x", "kind": "real", "lower": 0, "upper": 9, "bins": 5, "missing": ["-9.5"]},
        {"name": "text", "kind": "integer", "lower": 0, "upper": 9, "bins": 5, "missing": ["?"]},
        {"name": "c,d", "kind": "categorical", "levels": ['"', "NA", "é, 1"], "missing": ["?"]},
        {"name": "e", "kind": "categorical", "levels": ["1", "2"], "nullable": True},
    ]
    label = {"name": "died", "levels": {"no": ["0"], "yes": ["1"]}}
    return SiteFile.model_validate(
        {
            "dataset": "awkward",
            "title": 'A "title" & <more>',
            "source": {"kind": "csv", "path": "t.csv"},
            "privacy_unit": {"column": "p", "max_rows_per_patient": 2},
            "privacy": {"epsilon": 1.0, "delta": 1e-5},
            "budget": {"lifetime_epsilon": 2.0},
            "method": {"kind": "naive_bayes"},
            "schema": {"columns": columns, "label": label},
            **changes,
        },
        by_name=False,
        by_alias=True,
    )


SITE_FILES = {path.stem: lambda path=path: load_site(path) for path in SITES} | {
    "awkward": awkward_site,
    "declared": lambda: awkward_site(catalogue=DECLARED, patients=1200),
}


@pytest.fixture(scope="module", params=SITE_FILES)
def made(request, tmp_path_factory):
    folder, site = tmp_path_factory.mktemp(request.param), SITE_FILES[request.param]()
    if site.table_schema.image is not None:
        declared = site.table_schema.model_dump()
        declared["image"] |= {"height": 3, "width": 2}
        site = site.model_copy(update={"table_schema": TableSchema.model_validate(declared)})
    return folder, site, bundle_of(site, folder)


def test_croissant_is_loaded_and_its_rows_are_read(made):
    folder, site, frame = made
    dataset = mlcroissant.Dataset(jsonld=folder / "croissant.json")
    assert not dataset.metadata.ctx.issues.errors
    assert dataset.metadata.ctx.is_v1_1()
    assert len(dataset.metadata.data_limitations) == 6  # of Croissant RAI
    read = pd.DataFrame(list(dataset.records("rows")))
    read = read.map(lambda cell: cell.decode("utf-8") if isinstance(cell, bytes) else cell)
    read.columns = [unquote(name.removeprefix("rows/")) for name in read.columns]
    pd.testing.assert_frame_equal(read, frame, check_dtype=False)
    entry = json.loads((folder / "croissant.json").read_text("utf-8"))
    assert ("license" in entry) is (site.catalogue is not None)


def test_the_bundle_is_a_valid_data_package(made):
    folder, _, _ = made
    report = frictionless.Package(str(folder / "datapackage.json")).validate()
    assert report.valid, report
    (folder / "synthetic.csv").write_bytes(b"," + (folder / "synthetic.csv").read_bytes())
    assert not frictionless.Package(str(folder / "datapackage.json")).validate().valid


def test_health_dcat_keeps_the_official_shapes(made):
    folder, site, _ = made
    entry = rdflib.Graph().parse(folder / "healthdcat.jsonld", format="json-ld")
    level = "public" if site.public_benchmark_data else "non-public"
    asked = shapes(f"{level}-shapes.ttl") + shapes("range.ttl")
    conforms, _, text = pyshacl.validate(entry, shacl_graph=asked)
    assert conforms, text
    entry.remove((None, HEALTH.hdab, None))
    assert not pyshacl.validate(entry, shacl_graph=asked)[0]


def test_the_record_keeps_the_schema_of_the_registry(made):
    folder, site, _ = made
    record = yaml.safe_load((folder / "deployment_record.yaml").read_text("utf-8"))
    (curator,) = record["deployment"]["basic"]["data_curators"]
    if "data_curator_type" not in curator:  # nobody declared one: a person completes the draft
        assert site.catalogue is None or site.catalogue.publisher_kind is None
        curator["data_curator_type"] = "Nonprofit"
    asked = registry_schema()
    jsonschema.validate(record, asked, format_checker=jsonschema.FormatChecker())
    filled, leaves = record["deployment"], asked["properties"]["deployment"]["properties"]
    for section in ("dp_variant", "implementation"):  # all that tier 3 asks for
        assert leaves[section]["properties"].keys() - filled[section] <= {"additional_information"}
    del record["deployment"]["administrative"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(record, asked)


def test_an_entry_says_what_is_declared_and_what_is_not(tmp_path):
    def entries(name):
        (tmp_path / name).mkdir()
        bundle_of(SITE_FILES[name](), tmp_path / name)
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    bare, full = entries("awkward"), entries("declared")
    graph = rdflib.Graph().parse(data=full["healthdcat.jsonld"], format="json-ld")
    (dataset,) = graph.subjects(RDF.type, DCAT.Dataset)
    samples = {str(graph.value(s, DCTERMS.identifier)) for s in graph.objects(dataset, ADMS.sample)}
    assert samples == {f"{RELEASE_ID}/synthetic.{kind}" for kind in ("csv", "parquet")}
    assert int(graph.value(dataset, HEALTH.numberOfUniqueIndividuals)) == 1200
    assert b"numberOf" not in bare["healthdcat.jsonld"]
    for stated in (b"number_of", b"Nonprofit", b"Healthcare", b"Static", b"To explore", b"tuned"):
        assert stated not in bare["deployment_record.yaml"]
    for name in ("croissant.json", "datapackage.json", "healthdcat.jsonld"):
        assert DECLARED["publisher"].encode() in full[name]
        assert DECLARED["license"].encode() in full[name]
    for name in ("healthdcat.jsonld", "deployment_record.yaml"):
        assert b"not declared in the site file" in bare[name]
        assert b"not declared" not in full[name]
    assert b"reviews this assessment on 2027-01-31" in full["risk_appendix.md"]
    assert b"No day of review is declared" in bare["risk_appendix.md"]
    # What a catalogue is told changes no measurement.
    one, other = (job_of(SITE_FILES[name](), RELEASE_ID) for name in ("awkward", "declared"))
    settings = {k: v for k, v in other.measurement_settings.items() if k != "patients"}
    assert one.measurement_settings == settings


def test_an_address_that_is_none_is_refused():
    for key, value in (("contact", "<a@b>"), ("landing_page", "javascript:1"), ("licence", "x")):
        with pytest.raises(ValidationError):
            awkward_site(catalogue={key: value})


def test_the_appendix_has_the_numbers_of_the_claim(make_manifest, schema):
    manifest = make_manifest()
    claim = Claim(manifest)
    text = render_risk_appendix(manifest, schema)
    assert f"| 5 | {claim.present_per_hundred} | " in text
    for presence in (True, False):
        beliefs = [
            claim.belief(0.5, chance=chance, presence=presence) for chance in (1e-2, 1e-4, 1e-6)
        ]
        shown = (math.ceil(1e4 * belief) / 1e2 for belief in beliefs)
        assert f"| 50 % |{''.join(f' {one:g} % |' for one in shown)}\n" in text
    power = norm.cdf(norm.ppf(0.05) + 2 * manifest.mu)
    assert claim.recognised(5, patients=2) == math.ceil(100 * power)
    titles = re.findall(r"^## \d\. (.*)$", text, flags=re.MULTILINE)
    assert titles == ["Adversary", "Unit", "Losses", "Assumptions", "Residual risk",
                      "Measures beside the noise", "Review"]  # fmt: skip
    marked = render_risk_appendix(make_manifest(tainted=True), schema)
    assert marked.index("NOT FOR RELEASE") < marked.index("## 1.")
    assert "False alarms" not in marked
