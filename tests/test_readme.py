import re
import shlex
import shutil
import tomllib
from pathlib import Path

import made_up_release as made
import postgres_server
import psycopg
import pytest
from command_line import leaves, parse
from distributed.cli import dask_scheduler, dask_worker
from stores import Stores

from flows import cli
from storage.keys.keys import SigningKey
from storage.ledger.ledger_db import LedgerDatabase
from storage.settings import load_settings
from tests.documents import blocks
from tests.processes import ROOT, python

ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = sorted([*(ROOT / name for name in ROOT_PAGES), *(ROOT / "docs").glob("*.md")])
RUNBOOK = ROOT / "deployments" / "README.md"
TEXT = {page: page.read_text(encoding="utf-8") for page in [*PAGES, RUNBOOK]}
README = TEXT[ROOT / "README.md"]
OPERATE = "\n".join(TEXT[ROOT / "docs" / name] for name in ("operate.md", "ledger.md"))
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M))
COMMANDS = {name for name, _ in leaves()}
DASK = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}

every_page = pytest.mark.parametrize("page", TEXT, ids=lambda page: page.parent.name + page.name)


def test_every_command_of_a_block_exists_and_parses():
    for page in PAGES:
        for line in "\n".join(blocks(TEXT[page], "sh")).splitlines():
            words = shlex.split(line)
            if words[:1] == ["clustmix"]:
                parse(words[1:])
            elif words[:1] == ["make"]:
                assert set(words[1:]) <= TARGETS, line
            elif words[:1] == ["dask"]:
                DASK[words[1]].make_context(words[1], words[2:])
            elif words[:1] == ["export"]:
                assert re.fullmatch(r"(DASK|CLUSTMIX|PREFECT)_[A-Z_]+=.+", words[1]), line
            elif words:
                assert words[0] in ("cp", "mv") or line == ". .venv/bin/activate", line


@every_page
def test_every_command_in_the_text_exists(page):
    for pattern, above in (
        ("`clustmix ([a-z]+)", ""),
        ("`(?:clustmix )?ledger ([a-z]+)", "ledger "),
        ("`clustmix server ([a-z]+)", "server "),
    ):
        below = [name.removeprefix(above) for name in COMMANDS if name.startswith(above)]
        assert set(re.findall(pattern, TEXT[page])) <= {name.split()[0] for name in below}
    assert set(re.findall(r"`make ([a-z0-9-]+)", TEXT[page])) <= TARGETS


@pytest.fixture(scope="module")
def released_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("released")
    with pytest.MonkeyPatch.context() as patch:
        made.install(patch, folder)
        made.release_without_engine(made.write_site(folder, dataset="admissions"))
    return folder


@pytest.fixture
def folder(released_once, tmp_path, monkeypatch):
    """A copy of that folder to work in; releases run without the orchestrator."""
    copy = shutil.copytree(released_once, tmp_path / "hospital")
    made.install(monkeypatch, copy)
    monkeypatch.chdir(copy)
    made.write_site(copy, dataset="admissions").rename(copy / "admissions.yaml")
    monkeypatch.setattr("tasks.execution.runtime.configure_prefect", lambda settings: None)

    def run_release(request, job):
        with made.without_engine():
            outcome = made.body_of_release(request)
        if hasattr(outcome, "error"):
            raise outcome.error()
        return outcome

    monkeypatch.setattr("flows.release.run_release", run_release)
    return copy


def ledger():
    return Stores().ledger


def states():
    return [entry.state.value for entry in ledger().entries()]


@pytest.fixture
def documented(capsys):
    """Run a line of the documents as it is written there, with names of this installation."""

    def run(line, release="", **names):
        assert line in OPERATE, line
        for written, meant in {"r-20260131-0a1b2c3d": release, **names}.items():
            line = line.replace(written, str(meant)) if meant else line
        code = cli.main(shlex.split(line)[1:])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture
def people(folder):
    officers = load_settings().key_folder / "officers"
    officers.mkdir(mode=0o700, exist_ok=True)
    for name in ("ada", "ben", "engineer"):
        SigningKey.create(folder / f"{name}.key")
    for name in ("ada", "ben"):
        SigningKey.read(Path(f"{name}.key")).public.write(officers / f"{name}.pub")
    made.write_site(folder, dataset="admissions", approval="officer").rename("admissions.yaml")


def test_approval_and_verification_as_documented(folder, people, documented):
    release = "clustmix release admissions.yaml --key engineer.key"
    # The measurement of the first release needed nobody: new noise is asked for.
    assert cli.main([*shlex.split(release)[1:], "--new-draw"]) == 0
    waiting = ledger().entries()[-1].release_id
    _, shown, _ = documented(release)
    assert f"clustmix approve {waiting} --key FILE --reason TEXT" in shown
    approve = 'clustmix approve r-20260131-0a1b2c3d --key ada.key --reason "within the protocol"'
    assert documented(approve, waiting)[0] == 0
    assert states() == ["published", "published"]

    shutil.copy(load_settings().key_folder / "pipeline.pub", "pipeline.pub")
    shutil.copytree(load_settings().key_folder / "officers", "officers")
    [verify] = re.findall(r"^clustmix verify .+ --officer officers$", OPERATE, flags=re.M)
    code, shown, _ = documented(verify, waiting)
    assert code == 0
    assert "within the protocol" in " ".join(shown.split())
    Path("officers", "ada.pub").unlink()
    assert documented(verify, waiting)[0] == 1


def test_a_ledger_that_was_set_back_is_refused_until_it_is_put_right(folder, people):
    made.write_site(folder, dataset="admissions").rename("admissions.yaml")
    [block] = [part.values[0] for part in PYTHON_BLOCKS if ".backup(" in part.values[0]]
    python("-c", block, check=True)
    LedgerDatabase(folder / "ledger-backup.sqlite").verify(expected_head=ledger().head())
    release = ["release", "admissions.yaml", "--new-draw", "--json"]
    assert cli.main(release) == 0
    for left in [*folder.glob("home/ledger.sqlite*"), *folder.glob("ledger-backup.sqlite-*")]:
        left.unlink()
    Path("ledger-backup.sqlite").rename(load_settings().ledger_path)
    for command in (release, ["ledger", "verify"], ["ledger", "show"], ["doctor"]):
        assert cli.main(command) == 1
    # The way out that the page describes.
    load_settings().ledger_head_path.rename(folder / "evidence")
    charged = ledger().entries()[0]
    assert cli.main(["ledger", "restore", "--key", "ada.key", "--key", "ben.key"]) == 0
    spent = ledger().balance("admissions").spent_rho
    assert float(spent) == pytest.approx(float(2 * charged.rho), rel=1e-9)
    assert cli.main(["doctor"]) == 0


def test_every_place_of_an_installation_is_in_the_table(folder, people):
    named = re.findall(r"^- `([^`]+)`", OPERATE.split("## Where things lie")[1], flags=re.M)
    places = {place.removeprefix("$CLUSTMIX_HOME/").split("/")[0] for place in named}
    home = load_settings().home
    assert {path.name for path in home.iterdir()} <= places
    assert load_settings().ledger_head_path == home.with_name("home-head") / "ledger-head"
    assert "$CLUSTMIX_HOME-head/ledger-head" in named
    keys = {path.name for path in (home / "keys").iterdir() if path.is_file()}
    assert {"pipeline.key", "pipeline.pub", "ledger.key"} <= keys
    assert all(f"- `{name}`" in OPERATE for name in {*keys, "landing.key"})


@pytest.mark.integration
def test_roles_of_the_ledger_in_postgresql_are_as_documented(
    folder, people, documented, monkeypatch
):
    made.write_site(folder, dataset="admissions").rename("admissions.yaml")
    server = postgres_server.server()
    administrator, owner = blocks(OPERATE, "sql")
    passwords = {"ledger_owner": "owner word", "pipeline": "pipeline word"}

    def address(role):
        return server.url("ledger", user=role, password=passwords[role])

    def run(url, *statements):
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    try:
        run(server.url("postgres"), *filter(str.strip, administrator.split(";")))
        for role, word in passwords.items():
            run(server.url("postgres"), f"ALTER ROLE {role} PASSWORD '{word}'")
        # The head is that of the file.
        load_settings().ledger_head_path.rename(folder / "head-of-the-file")
        monkeypatch.setenv("CLUSTMIX_LEDGER_URL", address("ledger_owner"))
        assert documented("clustmix ledger verify")[0] == 0
        run(address("ledger_owner"), *filter(str.strip, owner.split(";")))
        monkeypatch.setenv("CLUSTMIX_LEDGER_URL", address("pipeline"))
        # What the file has charged is no entry of the new ledger.
        assert cli.main(["release", "admissions.yaml", "--new-draw"]) == 1
        assert documented("clustmix ledger restore --key ada.key --key ben.key")[0] == 0
        assert documented("clustmix doctor")[0] == 0
        assert cli.main(["release", "admissions.yaml", "--json"]) == 0
        assert states() == ["adjusted", "published"]
        for statement in (
            "UPDATE clustmix_ledger.journal SET rho = '0'",
            "DELETE FROM clustmix_ledger.journal",
            "TRUNCATE clustmix_ledger.journal",
            "ALTER TABLE clustmix_ledger.journal DISABLE TRIGGER ALL",
            "CREATE TABLE clustmix_ledger.other (a int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                run(address("pipeline"), statement)
        with pytest.raises(psycopg.errors.RestrictViolation):
            run(address("ledger_owner"), "DELETE FROM clustmix_ledger.journal")
    finally:
        run(server.url("postgres"), "DROP DATABASE IF EXISTS ledger WITH (FORCE)")
        run(server.url("postgres"), *(f"DROP ROLE IF EXISTS {role}" for role in passwords))


PYTHON_BLOCKS = [
    pytest.param(block, id=f"{page.name} {number}")
    for page in PAGES
    if page.name != "tutorial.md"  # its blocks follow each other: tests/test_tutorial.py
    for number, block in enumerate(blocks(TEXT[page], "python"))
]


@pytest.mark.integration
@pytest.mark.parametrize("block", PYTHON_BLOCKS)
def test_every_python_block_runs(block, folder):
    given = "import pandas\nframe = pandas.read_csv('cohort.csv')\n" * ("fit(frame)" in block)
    done = python("-W", "error", "-c", given + block)
    assert done.returncode == 0, done.stderr


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-") for text in headings}


@every_page
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXT[page]):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not target.startswith("https://"):
            assert linked.exists(), target
            assert ROOT in [linked, *linked.parents], target
            # An old entry of the changelog may name a heading that has gone.
            assert not anchor or page.name == "CHANGELOG.md" or anchor in anchors(linked), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_place_of_a_machine_and_no_registry(page):
    text = TEXT[page]
    assert not re.search(r"(?<![\w.$>])/(home|root|tmp|work|usr|var|opt|Users)/", text)
    assert not re.search(r"\.\./shared|pypi|pythonhosted|artifactory|nexus|index-url", text)
    known = {"127.0.0.1:0", "127.0.0.1:4200/api", "127.0.0.1:9464"}
    assert set(re.findall(r"127\.\S+", text)) <= known
    hosts = set(re.findall(r"https://([^/)\s]+)", text))
    assert hosts <= {"keepachangelog.com", "semver.org", "hooks.hospital.example"}


def test_package_shows_the_readme_and_its_citation():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["readme"] == "README.md"
    version = project["version"].removesuffix(".dev0")
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    shown = "Unreleased" if ".dev" in project["version"] else project["version"]
    assert f"[{shown}]" in TEXT[ROOT / "CHANGELOG.md"]
