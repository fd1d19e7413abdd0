"""Errors with texts in TOML: each use has its text and its facts, each text has a use."""

import ast
import re
from pathlib import Path
from string import Formatter

import pytest

from clustmix.target import NotFittedError
from flows.events import OrchestratorError
from flows.supervisor import ServerError
from privacy.errors import refusals
from storage.files.documents import listed
from tasks.execution.runtime import PipelineError

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("clustmix", "flows", "storage", "tasks")
FILES = sorted(path for top in TOPS for path in ROOT.glob(f"{top}/**/refusals.toml"))
PACKAGES = [".".join(path.relative_to(ROOT).parent.parts) for path in FILES]


def asked(package):
    """Return the facts of each call, by key, in the modules that have the errors of a package."""
    found = {}
    for module in (path for top in TOPS for path in ROOT.glob(f"{top}/**/*.py")):
        tree = ast.parse(module.read_bytes())
        calls = [(getattr(n.func, "id", ""), n) for n in ast.walk(tree) if isinstance(n, ast.Call)]
        own = ".".join(module.relative_to(ROOT).parent.parts)
        named = [getattr(n.args[0], "value", own) for name, n in calls if name == "refusals"]
        for name, node in calls if named == [package] else ():
            if name == "refusal":
                facts = {one.arg for one in node.keywords}
                found.setdefault(node.args[0].value, []).append(facts)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_refusal_has_its_facts_and_a_use(package):
    uses = asked(package)
    own = (NotFittedError, OrchestratorError, PipelineError, ServerError)
    refusal = refusals(package, *own)
    kinds = listed(package, "refusals.toml").values()
    texts = {key: text for keys in kinds for key, text in keys.items()}
    assert texts.keys() == uses.keys()
    for key, text in texts.items():
        facts = {name for _, name, *_ in Formatter().parse(text) if name is not None}
        assert all(given == facts for given in uses[key]), key
        error = refusal(key, **dict.fromkeys(facts, 7))
        assert error.code == key.split()[0]
        assert "\n" not in error.message


@pytest.mark.parametrize("package", ["flows.site", "storage.schema"])
def test_every_fault_has_its_text_and_a_use(package):
    sources = (path.read_text("utf-8") for path in ROOT.glob(f"{package.replace('.', '/')}/*.py"))
    used = {key for text in sources for key in re.findall(r'_FAULTS\["(\w+)"\]', text)}
    assert used == {*listed(package, "faults.toml")}
