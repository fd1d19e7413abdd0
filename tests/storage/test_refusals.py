"""Errors with texts in TOML: each use has its text and its facts, each text has a use."""

import ast
from pathlib import Path
from string import Formatter

import pytest

from storage.files.documents import listed, refusal

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("place", sorted(ROOT.glob("storage/**/refusals.toml")))
def test_every_refusal_has_its_facts_and_a_use(place):
    package = ".".join(place.relative_to(ROOT).parent.parts)
    asked = {}
    for module in ROOT.glob("storage/**/*.py"):
        own = ".".join(module.relative_to(ROOT).parent.parts)
        for node in ast.walk(ast.parse(module.read_bytes())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "refusal":
                named, key = node.args
                if getattr(named, "value", own) == package:
                    asked.setdefault(key.value, []).append({one.arg for one in node.keywords})
    texts = {
        k: text for keys in listed(package, "refusals.toml").values() for k, text in keys.items()
    }
    assert texts.keys() == asked.keys()
    for key, text in texts.items():
        facts = {name for _, name, *_ in Formatter().parse(text) if name is not None}
        assert all(given == facts for given in asked[key]), key
        error = refusal(package, key, **dict.fromkeys(facts, 7))
        assert error.code == key.split()[0]
        assert "\n" not in error.message
