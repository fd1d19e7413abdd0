import inspect
import pydoc
import re
from dataclasses import fields
from typing import get_type_hints

import annotated_types
import pytest

import clustmix
from clustmix.estimator_parameters import Parameters
from clustmix.methods import METHODS
from clustmix.synthesizer import Synthesizer
from tasks.methods import registry

TARGET = {"epsilon": 1.0, "delta": 1e-6}
SMALL = {
    "dp_cda": {"order_of_mixture": 8},
    "dpgm": {"clusters": 2, "hidden_units": 2, "fourier_features": 4, "epochs": 2},
}
COMMON = {one.name for one in fields(Parameters)}
EVERY_METHOD = pytest.mark.parametrize("made", METHODS, ids=lambda made: made.kind)


def settings_of(made):
    settings = registry.method_entry(made.kind).config.model_fields
    return {name: one for name, one in settings.items() if name != "kind"}


def documented(made):
    section = inspect.getdoc(made).partition("----------\n")[2].partition("\n\n")[0]
    found = re.findall(r"^(\w+) : (.+)\n((?:    .+\n?)+)", section, flags=re.M)
    return {name: (kind, words.strip()) for name, kind, words in found}


def test_every_method_of_a_release_has_a_class():
    registered = {entry.kind for entry in registry.METHODS}
    assert {made.kind for made in METHODS} == registered
    assert {made.__name__ for made in METHODS} <= set(clustmix.__all__)


@EVERY_METHOD
def test_parameters_and_defaults_are_those_of_the_settings(made):
    own = {one.name: one.default for one in fields(made) if one.name not in COMMON}
    settings = settings_of(made)
    assert own == {
        name: one.get_default(call_default_factory=True) for name, one in settings.items()
    }
    hints = get_type_hints(made)
    for name in own.keys() - {"shares", "class_sizes"}:
        assert hints[name] == settings[name].annotation, name
    parameters = inspect.signature(made).parameters.values()
    assert [one.kind for one in parameters][1:] == [inspect.Parameter.KEYWORD_ONLY] * (
        len(parameters) - 1
    )


@EVERY_METHOD
def test_help_has_every_parameter_with_its_type_range_and_default(made):
    text = pydoc.render_doc(made, renderer=pydoc.plaintext)
    found, settings = documented(made), settings_of(made)
    assert f"\n{', '.join(one.name for one in fields(Parameters))}\n" in inspect.getdoc(made)
    assert list(found) == [one.name for one in fields(made) if one.name not in COMMON]
    for name, (kind, words) in found.items():
        assert f"{name}: " in text.splitlines()[3]
        assert words.splitlines()[0] in text
        plain = kind.replace(",", "")
        for bound in settings[name].metadata:
            for limit in vars(bound).values() if hasattr(bound, "__dict__") else ():
                if isinstance(bound, annotated_types.BaseMetadata) and limit > 1:
                    assert f"{limit:g}" in plain or f"{limit:.0f}" in plain, (name, limit)
        default = getattr(made, name)
        if default is None:
            assert "optional" in kind
        elif name != "shares":
            shown = f'"{default}"' if isinstance(default, str) else f"{default}"
            assert plain.endswith(f"default {shown}"), name


def test_what_all_share_is_explained_once():
    assert list(documented(Synthesizer)) == [one.name for one in fields(Parameters)]
    assert all(not COMMON & settings_of(made).keys() for made in METHODS)
