"""The tutorial is walked as it is written: every block in its order, in an empty home."""

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

from privacy.errors import InputError
from storage.public_data.datasets import find
from tests.processes import ROOT, python

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
CODEBOOK = ROOT / "docs" / "tutorial-codebook.csv"
STEPS = re.findall(r"^```(sh|python|yaml)\n(.*?)^```$", PAGE, flags=re.M | re.S)


@pytest.fixture
def stranger(tmp_path, monkeypatch):
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
