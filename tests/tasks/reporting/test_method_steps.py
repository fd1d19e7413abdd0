"""Every method is described in the report, in steps of its own."""

from types import SimpleNamespace

import pytest

from privacy.parameters import Analysis
from tasks.reporting.method_steps import steps
from tasks.synthesizers.registry import METHODS


def manifest_of(kind, analysis=Analysis.PROVEN):
    return SimpleNamespace(analysis=analysis.value, method=SimpleNamespace(name=kind))


@pytest.mark.parametrize("kind", [entry.kind for entry in METHODS])
def test_every_method_has_steps_of_its_own(kind):
    first, *own, last = steps(manifest_of(kind))
    assert (first[0], last[0]) == ("Encode", "Decode and check")
    others = [steps(manifest_of(entry.kind)) for entry in METHODS if entry.kind != kind]
    assert own
    assert (first, *own, last) not in others
    for title, text in own:
        assert title[0].isupper()
        assert text.endswith(".")


def test_unknown_and_published_methods_have_general_steps():
    assert [title for title, _ in steps(manifest_of("another"))] == [
        "Encode",
        "Measure and synthesise",
        "Decode and check",
    ]
    [published, _] = steps(manifest_of("dpgm", Analysis.PUBLISHED))
    assert published[0] == "Published algorithm"
