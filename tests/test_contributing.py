import os
import re
import shutil

import pytest

from tests.processes import ROOT, python

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGES = ("clustmix", "flows", "tasks", "privacy", "storage")
IN_A_NOTEBOOK = """
import pandas as pd
import tasks
assert tasks.__file__.startswith(HOUSE)
import clustmix
from clustmix import LabelShares, Schema
schema = Schema(items=("tea",), label={"name": "y", "levels": {"no": (), "yes": ()}})
frame = pd.DataFrame({"tea": [0, 1] * 5000, "y": ["no", "yes", "yes", "yes"] * 2500})
model = LabelShares(schema, epsilon=1.0, delta=1e-6, least=2.0).fit(frame)
share = (model.sample(4000)["y"] == "yes").mean()
assert 0.70 < share < 0.80, share
model.save("toy.clustmix")
assert repr(LabelShares.load("toy.clustmix")) == repr(model)
print(model.plan())
"""
IN_A_HOSPITAL = """
import os
from pathlib import Path
import made_up_release as made
os.environ.update(made.environment_of(Path.cwd()))
outcome = made.release_without_engine(
    made.write_site(Path.cwd(), method={"kind": "label_shares", "least": 2.0})
)
print(outcome.state)
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    copy = tmp_path_factory.mktemp("house")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package)
    file, written = re.findall(r"^```py\n(.*?)^```$", PAGE, flags=re.M | re.S)
    [entry] = re.findall(r"^```toml\n(.*?)^```$", PAGE, flags=re.M | re.S)
    [place] = re.findall(r"^The file, `(.+)`\. ", PAGE, flags=re.M)
    assert not (copy / place).exists()
    (copy / place).write_text(file, encoding="utf-8")
    with (copy / "tasks" / "methods" / "methods.toml").open("a", encoding="utf-8") as listed:
        listed.write(f"\n{entry}")
    door = copy / "clustmix"
    methods = (door / "methods.py").read_text(encoding="utf-8")
    head, mark, tail = methods.partition("\nMETHODS: ")
    assert mark
    tail = tail.replace("= (", "= (LabelShares, ", 1)
    (door / "methods.py").write_text(f"{head}{written}\n{mark}{tail}", encoding="utf-8")
    with (door / "__init__.py").open("a", encoding="utf-8") as names:
        names.write("\nfrom clustmix.methods import LabelShares\n")
    return copy


def run(program, house, folder):
    path = os.pathsep.join([str(house), str(ROOT / "tests" / "helpers")])
    code = f"HOUSE = {str(house)!r}\n{program}"
    done = python("-c", code, cwd=folder, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_method_is_a_class_for_a_notebook(house, tmp_path):
    assert "class_counts" in run(IN_A_NOTEBOOK, house, tmp_path)


@pytest.mark.integration
def test_and_makes_a_release(house, tmp_path):
    assert run(IN_A_HOSPITAL, house, tmp_path).splitlines()[-1] == "published"


def test_every_step_of_the_way_of_a_row_exists():
    steps = re.findall(r"^\| \d \| (.+?) \|", PAGE, flags=re.M)
    assert len(steps) == 8
    for step in steps:
        path, *others = re.findall(r"`([^`]+)`", step)
        for place in (path, *others):
            if place.endswith(".py"):
                assert (ROOT / place).is_file(), place
            else:
                assert f"def {place}(" in (ROOT / path).read_text(encoding="utf-8"), place
