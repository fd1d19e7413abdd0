"""Every command of the documents exists and parses, every link leads somewhere."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

from flows import cli, terminal
from privacy.ledger import EntryState
from privacy.parameters import Adjacency
from storage.ledger_db import LedgerDatabase

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def blocks(text, language):
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, flags=re.M | re.S)
    return [re.sub(rf"^{indent}", "", block, flags=re.M) for indent, block in found]


def sh_lines():
    return [
        pytest.param(line, id=f"{page.name}: {line}")
        for page in PAGES
        for block in blocks(page.read_text(encoding="utf-8"), "sh")
        for line in block.splitlines()
    ]


def python_blocks():
    return [
        pytest.param(block, id=f"{page.name} {number}")
        for page in PAGES
        for number, block in enumerate(blocks(page.read_text(encoding="utf-8"), "python"))
    ]


@pytest.mark.parametrize("line", sh_lines())
def test_every_command_exists_and_parses(line):
    words = shlex.split(line)
    if words[0] == "clustmix":
        cli.build_parser().parse_args(words[1:])
    elif words[0] == "make":
        assert set(words[1:]) <= TARGETS
    elif words[0] == "export":
        assert re.fullmatch(r"DASK_[A-Z_]+=\S+", words[1])
    else:
        assert line == ". .venv/bin/activate"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_the_text_exists(page):
    text = page.read_text(encoding="utf-8")
    actions = set(cli.build_parser()._subparsers._group_actions[0].choices)
    assert set(re.findall(r"`clustmix ([a-z]+)", text)) <= actions
    assert set(re.findall(r"`make ([a-z]+)", text)) <= TARGETS


def test_every_command_is_in_the_table_of_the_readme():
    actions = set(cli.build_parser()._subparsers._group_actions[0].choices)
    assert set(re.findall(r"^\| `clustmix ([a-z]+)", README, flags=re.M)) == actions


def test_exit_codes_are_those_of_the_command_line():
    for code, meaning in re.findall(r"^  (\d)  (.+)$", cli.EXIT_CODES, flags=re.M):
        assert re.search(rf"\b{code} {meaning}", " ".join(README.split()))


def test_stages_of_the_printed_release_are_those_of_the_program():
    [printed] = blocks(README, "text")
    stages = re.findall(r"^  (\S+) +(.+?) +[\d.]+ s$", printed, flags=re.M)
    known = dict(terminal._STAGE_TEXTS)
    assert set(stages) <= set(known.items())
    # Stages of the two other methods.
    assert set(known) - {name for name, _ in stages} <= {"histograms", "published-clustmix"}


@pytest.mark.parametrize(
    "action",
    ["release", "benchmark", "verify", "ledger show", "ledger verify", "doctor", "init"],
)
def test_help_of_every_command(action, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([*action.split(), "--help"])
    assert stopped.value.code == 0
    assert "exit codes:" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["release", "test", "bench"])
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_targets_of_the_readme_would_run(target):
    make = [shutil.which("make"), "-n", target]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wanted = {"release": "clustmix release", "test": "pytest", "bench": "python -m benchmarks"}
    assert wanted[target] in done.stdout


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with one published entry in its ledger."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CLUSTMIX_HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    ledger = LedgerDatabase(folder / "ledger.sqlite")
    entry = ledger.reserve(
        dataset="admissions",
        release_id="r-20260101-00000000",
        rho=Decimal("0.03"),
        epsilon=1.0,
        delta=1e-6,
        adjacency=Adjacency.ADD_REMOVE,
        unit="one patient",
        lifetime_cap_rho=Decimal("0.3"),
    )
    states = (
        EntryState.RESERVED,
        EntryState.EXECUTING,
        EntryState.SEALED,
        EntryState.APPROVED,
        EntryState.PUBLISHED,
    )
    for before, after in pairwise(states):
        ledger.transition(entry.entry_id, after, expected_from=before, digest="0" * 64)
    return folder


def test_ledger_commands_run(home, capsys):
    assert cli.main(["ledger", "show"]) == 0
    shown = capsys.readouterr().out
    assert "0.030000000000" in shown
    assert "0.270000000000" in shown
    assert cli.main(["ledger", "verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 5


def test_doctor_runs_without_a_home(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path / "none"))
    assert cli.main(["doctor", "--json"]) == 0
    assert all(finding["good"] for finding in json.loads(capsys.readouterr().out))


def test_init_and_release_of_the_five_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTMIX_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("admissions.csv").write_text("patient_id,age,readmitted\nMRN-1,81,1\n", encoding="utf-8")
    assert cli.main(["init", "admissions.csv", "--output", "admissions.yaml"]) == 0
    template = Path("admissions.yaml").read_text(encoding="utf-8")
    assert "FILL_IN" in template
    assert "MRN-1" not in template
    assert cli.main(["release", "admissions.yaml"]) == 2
    assert "SITE_INCOMPLETE" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_verify_refuses_what_is_no_bundle(tmp_path, capsys):
    assert cli.main(["verify", str(tmp_path / "RELEASE")]) == 1
    assert "BUNDLE_MISSING" in capsys.readouterr().err


@pytest.mark.parametrize("block", python_blocks())
def test_every_python_block_runs(block, home):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_backup_of_the_ledger_verifies(home, tmp_path):
    [block] = [part.values[0] for part in python_blocks() if ".backup(" in part.values[0]]
    subprocess.run([sys.executable, "-c", block], check=True)
    copy = LedgerDatabase(tmp_path / "ledger-backup.sqlite")
    copy.verify(expected_head=LedgerDatabase(home / "ledger.sqlite").head())


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert ROOT in [linked, *linked.parents], target
        if anchor:
            assert anchor in anchors(linked), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_place_of_a_machine_and_no_registry(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.$>])/(home|root|tmp|work|usr|var|opt|Users)/", text)
    assert not re.search(r"pypi|pythonhosted|artifactory|nexus|index-url|localhost|127\.0", text)
    hosts = set(re.findall(r"https://([^/)\s]+)", text))
    assert hosts <= {"keepachangelog.com", "semver.org"}


def test_picture_is_one_file_for_light_and_dark():
    text = (ROOT / "docs" / "flow.svg").read_text(encoding="utf-8")
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314
    assert "prefers-color-scheme:dark" in text
    assert not re.search(r"<script|href=|url\((?!#)|@import", text)


def test_package_shows_the_readme():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["readme"] == "README.md"
    assert f"[{project['version']}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
