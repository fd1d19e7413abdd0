import importlib
import importlib.metadata
import re
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from flows import cli
from privacy.errors import EXTRAS, MissingExtra, extra
from tests.documents import locked_in
from tests.processes import ROOT

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# Locked, and asked for by Python 3.11.0 to 3.11.2 alone.
CONDITIONAL = {"async-timeout"}


def requirement_name(line):
    return canonicalize_name(Requirement(line).name)


@pytest.fixture(scope="module")
def distributions():
    return importlib.metadata.packages_distributions()


def test_each_package_is_the_one_of_this_distribution(distributions):
    # The names are generic: another distribution that brings one of them would shadow ours.
    for package in ("clustmix", "flows", "tasks", "privacy", "storage"):
        assert distributions[package] == ["clustmix"]
        assert importlib.import_module(package).__file__ == str(ROOT / package / "__init__.py")


def test_modules_of_an_extra_are_those_of_its_packages(distributions):
    for name, modules in EXTRAS.items():
        found = {requirement_name(one) for module in modules for one in distributions[module]}
        lines = PROJECT["project"]["optional-dependencies"][name]
        assert found - {"psycopg-binary"} == {requirement_name(line) for line in lines}


def test_a_missing_extra_is_named(monkeypatch):
    with pytest.raises(
        MissingExtra, match=r"extra hospital, found no pydicom; .*clustmix\[hospital\]"
    ):
        with extra("hospital"):
            raise ModuleNotFoundError("No module", name="pydicom.errors")
    with pytest.raises(ModuleNotFoundError, match="No module"), extra("hospital"):
        raise ModuleNotFoundError("No module", name="prefect")


def test_the_program_says_what_it_misses(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "flows.cli.running", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert cli.main([]) == 2
    assert capsys.readouterr().err.startswith("clustmix: EXTRA_MISSING: expected the packages of")


def test_lock_is_what_is_installed():
    for name, version in locked_in(LOCK).items():
        if name not in CONDITIONAL:
            assert importlib.metadata.version(name) == version, name


def test_lock_is_complete_for_pip_without_dependencies():
    locked = locked_in(LOCK)
    overrides = PROJECT["tool"]["uv"]["override-dependencies"]
    left_out = {requirement_name(line) for line in overrides if line.endswith("== 'never'")}
    assert left_out == {"amplitude-analytics", "tensorflow", "tf2jax"}
    assert not left_out & locked.keys()
    for name in locked.keys() - CONDITIONAL:
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            wanted = requirement_name(needed.name)
            asked = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if asked and wanted not in left_out:
                assert wanted in locked, f"{name} needs {wanted}"
                assert needed.specifier.contains(locked[wanted], prereleases=True), line


def test_lock_names_no_host_and_hashes_everything():
    assert not re.search(r"https?:|file:|--(extra-)?index-url|--find-links|@ ", LOCK)
    entries = re.split(r"^(?=\S)", LOCK, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)
