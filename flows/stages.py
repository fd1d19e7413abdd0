"""The stages of a run in words, as ``stages.toml`` lists them; some are ``train-03-of-20``."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from storage.files.documents import listed

STEPS: Mapping[str, Mapping[str, str]] = MappingProxyType(listed(__package__, "stages.toml"))
MEASURE, PUBLISH = STEPS["measure"], STEPS["publish"]
STAGES: Mapping[str, str] = MappingProxyType({**MEASURE, **PUBLISH})

_NUMBERED = re.compile(r"(?P<kind>.+)-(?P<number>[0-9]+)-of-(?P<total>[0-9]+)")


def text_of(name: str) -> str:
    """Return what a stage does in words; empty if it is not known."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        return STAGES.get(_kind_of(name), "")
    text = STAGES.get(numbered["kind"], "")
    return f"{text}, {int(numbered['number'])} of {int(numbered['total'])}" if text else ""


def place_of(name: str, stages: Mapping[str, str]) -> float:
    """Return the progress of a run at the end of a stage, from 0 to 1; 0 for an unknown stage."""
    numbered = _NUMBERED.fullmatch(name)
    kind, done = _kind_of(name), 1.0
    if numbered is not None:
        kind, done = numbered["kind"], int(numbered["number"]) / int(numbered["total"])
    if kind not in stages:
        return 0.0
    return (list(stages).index(kind) + done) / len(stages)


def _kind_of(name: str) -> str:
    """Return the stage without the name of a table of events."""
    return "events" if name.startswith("events-") else name
