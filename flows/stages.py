"""The stages of a run and what each does, in words for people.

A method that trains has several stages of one kind, named as ``train-03-of-20``.
"""

import re
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
        "partition": "divide the domain by public rules",
        "constrained-gmm": "fit a mixture to noisy counts (noise)",
        "kip": "adapt a support set to noisy moments (noise)",
        "noise-calibration": "hold the draws against the plan",
        "mixing": "release mixture and label model (noise)",
        "histograms": "release feature-by-label histograms (noise)",
        "clustering": "place cluster centres (noise)",
        "weights": "weigh the clusters",
        "embedding": "release a mean embedding (noise)",
        "class-counts": "count the patients of each label (noise)",
        "count": "count the patients (noise)",
        "mix": "release mixtures of each label (noise)",
        "mixtures": "release mixtures of records (noise)",
        "slots": "release records summed up in slots (noise)",
        "rounds": "choose queries and answer them (noise)",
        "train": "train the generator",
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
    {**MEASURE, **PUBLISH, "paper-method": "run the method as its paper prints it"}
)
"""All stages, that of the benchmark included."""

_NUMBERED = re.compile(r"(?P<kind>.+)-(?P<number>[0-9]+)-of-(?P<total>[0-9]+)")


def text_of(name: str) -> str:
    """Return what a stage does in words; empty if it is not known."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        return STAGES.get(name, "")
    text = STAGES.get(numbered["kind"], "")
    return f"{text}, {int(numbered['number'])} of {int(numbered['total'])}" if text else ""


def place_of(name: str, stages: MappingProxyType[str, str]) -> float:
    """Return how far a run is when a stage ends, from 0 to 1; 0 if the stage is not known."""
    numbered = _NUMBERED.fullmatch(name)
    kind, done = name, 1.0
    if numbered is not None:
        kind, done = numbered["kind"], int(numbered["number"]) / int(numbered["total"])
    if kind not in stages:
        return 0.0
    return (list(stages).index(kind) + done) / len(stages)
