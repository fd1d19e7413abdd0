"""The tutorial is walked as it is written: every block in its order, in an empty home."""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from flows.cli import main
from privacy.errors import InputError
from storage.codebooks.codebook_files import read_codebook
from storage.public_data.datasets import find
from storage.schema.plain_yaml import PLACEHOLDER
from tests.documents import blocks
from tests.processes import ROOT, python

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
CODEBOOK = ROOT / "docs" / "tutorial-codebook.csv"
STEPS = re.findall(r"^```(sh|python|yaml)\n(.*?)^```$", PAGE, flags=re.M | re.S)


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A home and a folder of somebody who has the checkout and nothing else."""
    try:
        table = find("diabetes130")
    except InputError as error:
        pytest.skip(str(error))
    for name in [name for name in os.environ if name.startswith(("CLUSTMIX_", "PREFECT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLUSTMIX_DATA_DIR", str(table.parents[1]))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "checkout" / "docs").mkdir(parents=True, mode=0o700)
    shutil.copy(CODEBOOK, tmp_path / "checkout" / "docs")
    monkeypatch.chdir(tmp_path / "checkout")


def edit(data, change):
    """Change what a block shows, as a person does in an editor; what it leaves out stays."""
    for key, value in change.items():
        if key == "schema":
            edit(data[key], value)
        elif key == "columns":
            by_name = {column["name"]: column for column in data[key]}
            for column in value:
                by_name[column["name"]].update(column)
        else:
            data[key] = value


@pytest.mark.integration
@pytest.mark.timeout(1200)
def test_every_block_of_the_tutorial_runs_and_the_model_learns(stranger):
    started = time.monotonic()
    said = ""
    site = Path("admissions.yaml")
    for language, block in STEPS:
        if language == "yaml":
            data = yaml.safe_load(site.read_text("utf-8"))
            edit(data, yaml.safe_load(block))
            site.write_text(yaml.safe_dump(data, sort_keys=False), "utf-8")
        elif language == "python":
            done = python("-c", block)
            assert done.returncode == 0, done.stderr
            said += done.stdout
        else:
            for line in filter(lambda line: line.startswith("clustmix"), block.splitlines()):
                done = subprocess.run(
                    shlex.split(line), capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, f"{line}: {done.stderr}"
                said += done.stdout
    print(f"the tutorial took {(time.monotonic() - started) / 60:.1f} minutes")  # noqa: T201
    assert "the table of admissions passes" in said
    assert "Verified:" in said
    auc = float(re.search(r"AUC on real stays: ([\d.]+)", said)[1])
    claimed = float(re.search(r"The area under the curve is about ([\d.]+)\.", PAGE)[1])
    assert auc == pytest.approx(claimed, abs=0.02)


def test_what_the_tutorial_says_of_its_files_is_so(tmp_path, monkeypatch, capsys):
    [shown] = blocks(PAGE, "text")
    lines = CODEBOOK.read_text("utf-8").splitlines()
    assert set(shown.splitlines()) <= set(lines)
    described = read_codebook(CODEBOOK)
    assert len(described) == len(lines) - 1
    # The table itself may be absent: the codebook and the options name all of its columns.
    [init, *_] = [line for line in blocks(PAGE, "sh") if line.startswith("clustmix init")]
    words = shlex.split(init)
    ignored = [word for option, word in itertools.pairwise(words) if option == "--ignore"]
    assert len({*described, *ignored}) == 50
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    shutil.copy(CODEBOOK, "docs")
    Path("admissions.csv").write_text(",".join([*described, *ignored]) + "\n", "utf-8")
    assert main(shlex.split(init.replace(".parquet", ".csv"))[1:]) == 0
    text = Path("admissions.yaml").read_text("utf-8")
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    numbers = {"Six": 6, "Seven": 7, "Eight": 8}
    said = re.search(r"(\w+) places say `FILL_IN`, and (\w+) lines say `guess`", PAGE)
    assert body.count(PLACEHOLDER) == numbers[said[1]]
    assert text.count("# guess") == numbers[said[2].capitalize()]
    data = yaml.safe_load(text)
    for block in blocks(PAGE, "yaml"):
        edit(data, yaml.safe_load(block))
    assert PLACEHOLDER not in str(data)
