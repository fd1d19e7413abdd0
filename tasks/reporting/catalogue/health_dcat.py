"""The entry in HealthDCAT-AP, release 8, as JSON-LD: the records, with the release as their sample.

What a health data catalogue lists are the records that the institution keeps. The synthetic rows
are their ``adms:sample``, the released shares their ``healthdcatap:analytics``; the way to the
records is the declared landing page. Specification: data.health.europa.eu/healthdcat-ap.
"""

from typing import Any

from tasks.reporting.catalogue.described import (
    FILES,
    MEDIA_TYPES,
    NOT_DECLARED,
    Described,
    json_file,
)

HEALTH_DCAT_FILE = "healthdcat.jsonld"

UNKNOWN = "urn:clustmix:not-declared"
"""Stands for an address that the profile asks for and the site file does not declare."""

_EU = "http://publications.europa.eu/resource/authority"
_HEALTH = "https://hdeu-dcat.data.health.europa.eu/resource/authority"
_EHDS = {"@id": "http://data.europa.eu/eli/reg/2025/327/oj", "@type": "eli:LegalResource"}

_CONTEXT = {
    "adms": "http://www.w3.org/ns/adms#",
    "csvw": "http://www.w3.org/ns/csvw#",
    "cv": "http://data.europa.eu/m8g/",
    "dcat": "http://www.w3.org/ns/dcat#",
    "dcatap": "http://data.europa.eu/r5r/",
    "dct": "http://purl.org/dc/terms/",
    "eli": "http://data.europa.eu/eli/ontology#",
    "foaf": "http://xmlns.com/foaf/0.1/",
    "health": "http://healthdataportal.eu/ns/health#",
    "rdfs": "http://www.w3.org/2000/01/rdf-schema#",
    "skos": "http://www.w3.org/2004/02/skos/core#",
    "vcard": "http://www.w3.org/2006/vcard/ns#",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
}

_ACCESS = {True: ("PUBLIC", "public"), False: ("NON_PUBLIC", "non-public")}
_DATATYPES = {"text": "string", "integer": "integer", "number": "decimal"}


def health_dcat(described: Described) -> bytes:
    """Return the entry; of images the pixels are not described one by one.

    The number of individuals is the declared one, or left out.
    """
    manifest, declared = described.manifest, described.declared
    page = {"@id": declared.landing_page or UNKNOWN}
    contact = {
        "@type": "vcard:Kind",
        "vcard:fn": declared.publisher or NOT_DECLARED,
        **(
            {"vcard:hasEmail": {"@id": f"mailto:{declared.contact}"}}
            if declared.contact
            else {"vcard:hasURL": page}
        ),
    }
    optional: dict[str, Any] = {}
    if declared.publisher:
        optional["dct:publisher"] = _agent(declared.publisher, declared.contact)
    if declared.landing_page:
        optional["dcat:landingPage"] = {**page, "@type": "foaf:Document"}
    if declared.region:
        optional["health:populationCoverage"] = declared.region
    if described.patients is not None:
        optional["health:numberOfUniqueIndividuals"] = _count(described.patients)
    if described.schema.image is None:
        optional["health:hasVariables"] = _variables(described)
    if "tables.csv" in described.files:
        optional["health:analytics"] = _file(described, "tables.csv")
    about = (
        f"The records from which release {manifest.release_id} was made. They are not in this "
        "bundle, and access to them is the institution's to give. The sample is synthetic. "
    )
    return json_file(
        {
            "@context": _CONTEXT,
            "@id": f"urn:clustmix:{manifest.dataset}",
            "@type": "dcat:Dataset",
            "dct:title": described.title,
            "dct:description": about + described.description,
            "dct:identifier": manifest.dataset,
            "dct:accessRights": {
                **_concept("access-right", *_ACCESS[described.public]),
                "@type": ["dct:RightsStatement", "skos:Concept"],
            },
            "dcatap:applicableLegislation": _EHDS,
            "dcat:theme": _concept("data-theme", "HEAL", "Health"),
            "dct:type": _concept("dataset-type", "STATISTICAL", "Statistical data"),
            "health:healthCategory": _concept(
                "healthcategories", declared.health_category, authority=_HEALTH
            ),
            "health:hdab": _agent(
                declared.access_body or NOT_DECLARED, declared.access_contact
            ),
            "dcat:contactPoint": contact,
            "dcat:keyword": described.keywords,
            "dct:provenance": {
                "@type": "dct:ProvenanceStatement",
                "rdfs:label": "Records of the institution; which columns it holds is declared.",
            },
            "health:hasStructuredData": described.schema.image is None,
            **optional,
            "dcat:distribution": {
                "@type": "dcat:Distribution",
                "dct:title": "Access to the records",
                "dct:description": "The way to ask for access: "
                + (declared.landing_page or NOT_DECLARED),
                "dcatap:applicableLegislation": _EHDS,
                "dcat:accessURL": page,
            },
            "adms:sample": [
                _file(described, name) for name in ("synthetic.csv", "synthetic.parquet")
            ],
        }
    )  # fmt: skip


def _concept(scheme: str, code: str, name: str = "", *, authority: str = _EU) -> dict[str, Any]:
    """Name a term of a controlled vocabulary, with what a validator asks of it without the list."""
    vocabulary = {"@id": f"{authority}/{scheme}", "@type": "skos:ConceptScheme"}
    return {
        "@id": f"{authority}/{scheme}/{code}",
        "@type": "skos:Concept",
        "skos:prefLabel": name or code,
        "skos:inScheme": {**vocabulary, "dct:title": scheme},
    }


def _agent(name: str, mail: str | None) -> dict[str, Any]:
    point = {"cv:email": mail} if mail else {"cv:contactPage": {"@id": UNKNOWN}}
    return {
        "@type": "foaf:Agent",
        "foaf:name": name,
        "cv:contactPoint": {"@type": "cv:ContactPoint", **point},
    }


def _count(number: int) -> dict[str, Any]:
    return {"@type": "xsd:nonNegativeInteger", "@value": str(number)}


def _file(described: Described, name: str) -> dict[str, Any]:
    """Describe a file of the bundle, which lies where the institution puts the bundle."""
    manifest, declared, kind = described.manifest, described.declared, name.rpartition(".")[2]
    return {
        "@type": "dcat:Distribution",
        "dct:title": f"{FILES[name]} ({name})",
        "dct:description": described.description,
        "dct:identifier": f"{manifest.release_id}/{name}",
        "dct:issued": {"@type": "xsd:date", "@value": manifest.created_on.isoformat()},
        "dcatap:applicableLegislation": _EHDS,
        "dcat:accessURL": {"@id": declared.landing_page or UNKNOWN},
        "dcat:mediaType": {
            "@id": f"http://www.iana.org/assignments/media-types/{MEDIA_TYPES[kind]}",
            "@type": "dct:MediaType",
        },
        **({"dct:license": {"@id": declared.license, "@type": "dct:LicenseDocument"}}
           if declared.license else {}),
    }  # fmt: skip


def _variables(described: Described) -> dict[str, Any]:
    return {
        "@type": "csvw:TableGroup",
        "dct:title": "Declared columns",
        "csvw:table": {
            "@type": "csvw:Table",
            "dct:title": described.manifest.dataset,
            "csvw:column": [
                {
                    "@type": "csvw:Column",
                    "csvw:name": column.name,
                    "csvw:title": column.name,
                    "csvw:datatype": _DATATYPES[column.kind],
                    "dct:description": column.description,
                }
                for column in described.columns()
            ],
        },
    }
