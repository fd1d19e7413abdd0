import json
import os
import shutil
import zipfile

import pytest

from privacy.errors import EXTRAS
from tests.processes import ROOT, python

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
assert clustmix.__file__.startswith(sys.path[0])
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
assert "flows" not in sys.modules

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / "source" / part)
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, folder / "source"]
    python("-m", "pip", "--disable-pip-version-check", *build, check=True)
    [made] = folder.glob("clustmix-*.whl")
    with zipfile.ZipFile(made) as archive:
        archive.extractall(folder / "files")
    return folder / "files"


def test_every_method_runs_with_the_base_packages_alone(wheel, tmp_path):
    absent = {module: None for modules in EXTRAS.values() for module in modules}
    program = f"import sys\nsys.path.insert(0, {str(wheel)!r})\nsys.modules.update({absent})\n"
    # The cache of compiled programs that the tests share needs a package that is not here.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("JAX")}
    done = python(
        "-I", "-W", "error", "-c", program + PROGRAM, json.dumps(SETTINGS), cwd=tmp_path,
        env=variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("install them: pip install 'clustmix[ledger]'\n")
    assert len(list(tmp_path.glob("*.clustmix"))) == 5
