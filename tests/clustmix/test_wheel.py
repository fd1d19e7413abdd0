"""The wheel with its base packages, in an environment of its own, is what a notebook needs."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import venv

import pytest
from packaging.requirements import Requirement

from tests.processes import ROOT

pytestmark = pytest.mark.integration

PARTS = (
    "clustmix", "flows", "tasks", "privacy", "storage", "pyproject.toml", "README.md", "LICENSE",
)  # fmt: skip
PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
import pandas as pd
import clustmix
from clustmix import Schema, Synthesizer

rng = np.random.default_rng(1)
schema = Schema(items=tuple("abcdefghij"), label={"name": "y", "levels": {"no": (), "yes": ()}})
frame = pd.DataFrame(rng.integers(0, 2, (400, 10)), columns=list("abcdefghij"))
frame["y"] = np.where(frame["a"] == 1, "yes", "no")
settings = json.loads(sys.argv[1])
from clustmix.methods import METHODS
for made in METHODS:
    model = made(schema, epsilon=1.0, delta=1e-5, **settings.get(made.kind, {}))
    model.fit(frame)
    model.save(f"{made.kind}.clustmix")
    assert len(Synthesizer.load(f"{made.kind}.clustmix").sample(20)) == 20
assert not {"prefect", "dask", "sqlalchemy", "flows"} & sys.modules.keys()

from privacy.errors import MissingExtra
from storage.ledger.ledger_db import LedgerDatabase

try:
    LedgerDatabase(Path("ledger.db"))
except MissingExtra as error:
    print(error)
"""
SETTINGS = {
    "dp_cda": {"order_of_mixture": 8},
    "dpgm": {"clusters": 2, "hidden_units": 2, "fourier_features": 4, "epochs": 2},
    "dp_kmeans": {"clusters": 2, "rounds": 2, "n_features": 4},
}


def needed(wheel):
    """Names of the distributions that the wheel asks for without an extra, and those of these."""
    [metadata] = importlib.metadata.distributions(path=[str(wheel)])
    found, asked = set(), [(line, "") for line in metadata.requires]
    while asked:
        line, extra = asked.pop()
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for one in (*requirement.extras, ""):
            if (requirement.name, one) not in found:
                found.add((requirement.name, one))
                requires = importlib.metadata.requires(requirement.name) or []
                asked += [(line, one) for line in requires]
    return {name for name, _ in found}


def lend(name, site):
    """Put the files of an installed distribution into another environment, as links."""
    for file in importlib.metadata.files(name):
        if ".." not in file.parts:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            os.symlink(file.locate(), site / file)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with the wheel, and nothing but what it asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / "source" / part)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*pip, *build, str(folder / "source")], check=True)
    [wheel] = folder.glob("clustmix-*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], check=True)
    [site] = (folder / "env" / "lib").glob("python*/site-packages")
    names = needed(wheel)
    assert not names & {"prefect", "dask", "sqlalchemy", "ortools", "great-expectations"}
    for name in names:
        lend(name, site)
    return folder / "env" / "bin"


def test_every_method_runs_with_the_base_packages_alone(environment, tmp_path):
    done = subprocess.run(
        [environment / "python", "-I", "-W", "error", "-c", PROGRAM, json.dumps(SETTINGS)],
        cwd=tmp_path,
        # The cache of compiled programs that the tests share needs a package that is not here.
        env={name: value for name, value in os.environ.items() if not name.startswith("JAX")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [ledger] = done.stdout.splitlines()
    assert ledger.endswith("install them: pip install 'clustmix[ledger]'")
    assert len(list(tmp_path.glob("*.clustmix"))) == 5
