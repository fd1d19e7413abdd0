"""The stages of a run and what each does, in words for people."""

from types import MappingProxyType

MEASURE = MappingProxyType(
    {
        "clean-up": "close and delete what dead runs left",
        "check-source": "compare the header with the schema",
        "plan": "calibrate every noise scale",
        "cluster": "start the workers",
        "identify": "look whether this was measured before",
        "reserve": "charge the budget",
        "ingest": "read, check and encode the table",
        "input-gate": "hold the table against the declared rules",
        "bound-contributions": "bound what each patient contributes",
        "partition": "cut the domain into public slices",
        "constrained-gmm": "place mixture components (noise)",
        "kip": "adapt a support set to noisy moments (noise)",
        "noise-calibration": "hold the draws against the plan",
        "mixing": "release mixture and label model (noise)",
        "histograms": "release feature-by-label histograms (noise)",
        "seal": "keep the noisy measurement for good",
        "purge": "delete the private workspace",
    }
)
"""Stages of a measurement, in their order; a method has some of them."""

PUBLISH = MappingProxyType(
    {
        "decode": "sample records and decode them",
        "output-gate": "check the synthetic rows",
        "report": "write the report, the card and the manifest",
        "commit": "approve in the ledger",
        "publish": "publish all files at once",
    }
)
"""Stages of a publication, in their order."""

STAGES = MappingProxyType(
    {**MEASURE, **PUBLISH, "published-clustmix": "run Algorithm 2 of the paper as printed"}
)
"""All stages, that of the benchmark included."""
