"""The record of a release for the public registry of deployments of differential privacy.

By the schema of github.com/opendp/deployments-registry-data, tier 3; a draft, which a person
completes and sends in. The registry reads YAML.
"""

from typing import Any

import yaml

from tasks.reporting.catalogue.described import NOT_DECLARED, Described
from tasks.reporting.facts import budget_sentence, noise_table, steps
from tasks.reporting.guarantee import Claim
from tasks.reporting.rendering import words

DEPLOYMENT_FILE = "deployment_record.yaml"


def deployment_record(described: Described) -> bytes:
    """Return the record; the number of patients is the declared one, or left out."""
    manifest, declared, said = described.manifest, described.declared, words()
    claim = Claim(manifest)
    slug = f"{manifest.dataset}_{manifest.release_id}".replace("-", "_")
    kind = declared.publisher_kind
    curator = declared.publisher or f"Publisher {NOT_DECLARED}"
    basic: dict[str, Any] = {
        "name": described.name,
        "data_curators": [
            {
                "data_curator_name": curator if kind else f"{curator}; its type {NOT_DECLARED}",
                "data_curator_type": kind or "Nonprofit",
            }
        ],
        "description": described.description,
        "intended_use": described.purpose,
        "data_product_type": "Synthetic data",
        "data_product_region": declared.region or NOT_DECLARED.capitalize(),
        **({} if described.public else {"data_product_sector": "Healthcare"}),
        "publication_date": manifest.created_on.isoformat(),
    }
    count = {} if described.patients is None else {"number_of_privacy_units": described.patients}
    draws = "\n".join(
        f"- {statistic}: {noise}, {n} values, noise / sensitivity {ratio}"
        for statistic, noise, n, *_, ratio in noise_table(manifest).rows
    )
    before, *after = steps(manifest).items()
    record = {
        "url_slug": slug,
        "deployment": {
            "basic": basic,
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"Tables with the columns that schema.json of the bundle declares; "
                f"one row is a record. {claim.unit}",
                "unprotected_quantities": "The declared schema (names, bounds, bins, levels), the "
                "number of synthetic rows, which was chosen, and that the table kept the declared "
                "rules, without which there is no release.",
            },
            "privacy_loss": {
                "privacy_unit": manifest.privacy_unit,
                "privacy_unit_details": f"{claim.definition} {claim.unit}",
                **count,
                "privacy_parameters": {"epsilon": manifest.epsilon, "delta": manifest.delta},
                "privacy_parameters_details": f"Adjacency {manifest.adjacency}; mu = "
                f"{manifest.mu:.6g} of Gaussian differential privacy. {claim.replace_one}",
            },
            "deployment_model": {
                "model_name": "Central",
                "trust_assumptions": "\n".join(f"- {text}" for text in said["trust"]),
                "actors": "The institution that keeps the records and runs the program; whoever "
                "reads the release, who may know everything but one patient's records.",
                "release_type": "One release",
                "release_type_details": "A later release of the same patients is charged to the "
                "same ledger, which holds a cap over their lifetime.",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
                "access_type_details": "The bundle is read as it is; nobody asks the records.",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": "Bounds, bins, levels and settings are "
                f"declared before a record is measured; none is tuned on the records. {before[1]}",
                "mechanisms": f"ClustMix {manifest.code_version}, method {manifest.method.name}. "
                f"{' '.join(said['trust_in_proof'])}\n\n{draws}",
                "composition": f"{budget_sentence(manifest)} Accountant: {manifest.accountant}, "
                "over all draws of the list of events in manifest.json.",
                "post_processing": "\n".join(f"- {name}: {text}" for name, text in after),
                "justification": "Epsilon and delta are the institution's choice, as are bounds "
                "and levels; the budget over the patients' lifetime is capped in a ledger.",
                "utility": "No score against the records is published: it would be a release of "
                "its own.",
            },
            "administrative": {
                "status": "Draft",
                "registry_authors": [declared.publisher or f"Author {NOT_DECLARED}"],
                "tier": 3,
            },
        },
    }  # fmt: skip
    text: str = yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=100)
    return text.encode("utf-8")
