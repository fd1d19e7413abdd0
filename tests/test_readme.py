"""Every command of the documents exists, parses and, where it can, runs; links lead somewhere."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import made_up_release as made
import postgres_server
import psycopg
import pytest
import yaml
from command_line import leaves, parse
from distributed.cli import dask_scheduler, dask_worker
from stores import Stores

from flows import cli
from flows.cli.options import EXIT_CODES
from flows.installation import Installation
from flows.operations.arrivals import scan
from flows.operations.deployment_file import DeploymentSection
from flows.stages import STAGES
from storage.keys.keys import SigningKey
from storage.ledger.ledger_db import LedgerDatabase
from storage.releases.signatures import Approval
from storage.settings import load_settings
from tests.documents import blocks
from tests.processes import ROOT, python

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").glob("*.md"),
    ]
)
RUNBOOK = ROOT / "deployments" / "README.md"
README = (ROOT / "README.md").read_text(encoding="utf-8")
OPERATE = "\n".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("operate.md", "ledger.md")
)
TARGETS = set(
    re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
)


def sh_lines():
    return [
        line
        for page in PAGES
        for block in blocks(page.read_text(encoding="utf-8"), "sh")
        for line in block.splitlines()
    ]


def python_blocks():
    return [
        pytest.param(block, id=f"{page.name} {number}")
        for page in PAGES
        if page.name != "tutorial.md"  # its blocks follow each other: tests/test_tutorial.py
        for number, block in enumerate(blocks(page.read_text(encoding="utf-8"), "python"))
    ]


COMMANDS = {name for name, _ in leaves()}
DASK = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}


def test_every_command_exists_and_parses():
    for line in sh_lines():
        words = shlex.split(line)
        if words[0] == "clustmix":
            parse(words[1:])
        elif words[0] == "make":
            assert set(words[1:]) <= TARGETS, line
        elif words[0] == "dask":
            DASK[words[1]].make_context(words[1], words[2:])
        elif words[0] == "export":
            assert re.fullmatch(r"(DASK|CLUSTMIX|PREFECT|CUDA)_[A-Z_]+=.+", words[1]), line
        elif words[0] in ("cp", "mv"):
            assert all(re.fullmatch(r"(landing/)?[a-z_.]+", name) for name in words[1:]), line
        else:
            assert line == ". .venv/bin/activate"


@pytest.mark.parametrize("page", [*PAGES, RUNBOOK], ids=lambda page: page.parent.name + page.name)
def test_every_command_in_the_text_exists(page):
    text = page.read_text(encoding="utf-8")
    for pattern, above in (
        ("`clustmix ([a-z]+)", ""),
        ("`(?:clustmix )?ledger ([a-z]+)", "ledger "),
        ("`clustmix server ([a-z]+)", "server "),
    ):
        below = [name.removeprefix(above) for name in COMMANDS if name.startswith(above)]
        assert set(re.findall(pattern, text)) <= {name.split()[0] for name in below}
    assert set(re.findall(r"`make ([a-z0-9-]+)", text)) <= TARGETS


def test_every_command_and_target_is_in_a_table_of_the_readme():
    commands = re.findall(r"^\| `clustmix ([a-z]+(?: [a-z]+)?)", README, flags=re.M)
    assert sorted(commands) == sorted(COMMANDS)
    targets = re.findall(r"^\| `make ([a-z0-9-]+)` \|", README, flags=re.M)
    assert sorted(targets) == sorted(TARGETS - {"help"})


def test_exit_codes_are_those_of_the_command_line():
    for code, meaning in re.findall(r"^  (\d)  (.+)$", EXIT_CODES, flags=re.M):
        assert re.search(rf"\b{code} {meaning}", " ".join(README.split()))


def test_stages_of_the_printed_release_are_those_of_the_program():
    [printed] = blocks(README, "text")
    stages = re.findall(r"^  (\S+) +(.+?) +[\d.]+ s$", printed, flags=re.M)
    known = dict(STAGES)
    assert set(stages) <= set(known.items())
    assert [name for name, _ in stages] == [name for name in known if name in dict(stages)]
    clustmix = {"partition", "constrained-gmm", "kip", "noise-calibration", "mixing"}
    assert clustmix <= {name for name, _ in stages}


WANTED = {
    "release": "clustmix release",
    "server": "clustmix server start",
    "server-stop": "clustmix server stop",
    "test": "pytest",
    "integration": '-m "integration and not soak"',
    "e2e": "-m e2e",
    "bench": "python -m benchmarks",
    "audit": "-m audit",
    "soak": "-m soak",
}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_targets_of_the_readme_would_run():
    for target, command in WANTED.items():
        make = [shutil.which("make"), "-n", target]
        done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert command in done.stdout


@pytest.fixture(scope="module")
def released_once(tmp_path_factory):
    """A folder with a table, its site file, an installation, and one release."""
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


def site():
    return Stores(load_settings())


def states():
    return [entry.state.value for entry in site().ledger.entries()]


class Documented:
    """Runs lines of the documents as they are written there, with names of this installation."""

    def __init__(self, capsys):
        self._capsys = capsys

    def __call__(self, line, **names):
        assert line in README + OPERATE, line
        for written, meant in {"r-20260131-0a1b2c3d": names.pop("release", ""), **names}.items():
            line = line.replace(written, str(meant)) if meant else line
        code = cli.main(shlex.split(line)[1:])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err


@pytest.fixture
def documented(capsys):
    return Documented(capsys)


def make_officers(*names):
    officers = load_settings().key_folder / "officers"
    officers.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        SigningKey.read(Path(f"{name}.key")).public.write(officers / f"{name}.pub")


def test_approval_and_verification_as_documented(folder, documented):
    assert documented("clustmix keygen ada.key")[0] == 0
    assert (folder / "ada.key").stat().st_mode & 0o777 == 0o600
    assert cli.main(["keygen", "ada.key"]) == 2
    SigningKey.create(folder / "engineer.key")
    make_officers("ada")
    made.write_site(folder, dataset="admissions", approval="officer").rename("admissions.yaml")
    release = "clustmix release admissions.yaml --key engineer.key"
    # The measurement of the first release needed nobody: this is asked for with new noise.
    assert cli.main([*shlex.split(release)[1:], "--new-draw"]) == 0
    assert states() == ["published", "sealed"]
    waiting = site().ledger.entries()[-1].release_id
    code, shown, _ = documented(release)
    assert f"clustmix approve {waiting} --key FILE --reason TEXT" in shown
    assert cli.main(["approve", waiting, "--key", "engineer.key", "--reason", "mine"]) == 2
    approve = 'clustmix approve r-20260131-0a1b2c3d --key ada.key --reason "within the protocol"'
    assert documented(approve, release=waiting)[0] == 0
    assert states() == ["published", "published"]

    keys = load_settings().key_folder
    shutil.copy(keys / "pipeline.pub", "pipeline.pub")
    shutil.copytree(keys / "officers", "officers")
    [verify] = re.findall(r"^clustmix verify .+ --officer officers$", OPERATE, flags=re.M)
    code, shown, _ = documented(verify, release=waiting)
    assert code == 0
    assert "within the protocol" in " ".join(shown.split())
    Path("officers", "ada.pub").unlink()
    SigningKey.create(folder / "officers" / "somebody.key")
    assert documented(verify, release=waiting)[0] == 1

    assert cli.main([*shlex.split(release)[1:], "--new-draw"]) == 0
    rejected = site().ledger.entries()[-1].release_id
    reject = 'clustmix reject r-20260131-0a1b2c3d --key ada.key --reason "cohort too narrow"'
    assert documented(reject, release=rejected)[0] == 0
    assert states()[-1] == "withheld"
    code, _, problem = documented(release)
    assert code == 4
    assert "MEASUREMENT_WITHHELD" in problem


def test_certificates_as_documented(tmp_path, documented):
    [line] = re.findall(r"^ +(clustmix certificates .+)$", OPERATE, flags=re.M)
    target = tmp_path / "cluster"
    assert documented(line, **{line.split()[-1]: target})[0] == 0
    roles = {path.name for path in target.iterdir()}
    named = re.findall(r"DASK_CONFIG=/srv/clustmix/cluster/(\w+)/dask.yaml", OPERATE)
    assert sorted(named) == sorted(roles)
    assert all((target / role / "dask.yaml").is_file() for role in roles)


def test_a_ledger_that_was_set_back_is_refused_until_it_is_put_right(folder):
    settings = load_settings()
    [block] = [part.values[0] for part in python_blocks() if ".backup(" in part.values[0]]
    python("-c", block, check=True)
    backup = LedgerDatabase(folder / "ledger-backup.sqlite")
    backup.verify(expected_head=site().ledger.head())
    release = ["release", "admissions.yaml", "--new-draw", "--json"]
    assert cli.main(release) == 0
    for left in [*folder.glob("home/ledger.sqlite*"), *folder.glob("ledger-backup.sqlite-*")]:
        left.unlink()
    Path("ledger-backup.sqlite").rename(settings.ledger_path)
    for command in (release, ["ledger", "verify"], ["ledger", "show"], ["doctor"]):
        assert cli.main(command) == 1
    # The way out that the page describes.
    settings.ledger_head_path.rename(folder / "evidence")
    for name in ("ada", "ben"):
        SigningKey.create(folder / f"{name}.key")
    make_officers("ada", "ben")
    charged = site().ledger.entries()[0]
    adjust = ["ledger", "adjust", "admissions", "--rho", str(charged.rho), "--reason", "restored"]
    assert cli.main([*adjust, "--key", "ada.key", "--key", "ben.key"]) == 0
    assert site().ledger.balance("admissions").spent_rho == 2 * charged.rho
    assert cli.main(["doctor"]) == 0


def test_what_losing_a_key_means(folder, capsys):
    keys = load_settings().key_folder
    release = ["release", "admissions.yaml", "--json"]
    (keys / "pipeline.key").rename(folder / "old.key")
    assert cli.main([*release, "--new-draw"]) == 2
    assert "KEY_LOST" in capsys.readouterr().err
    assert states() == ["published"]
    (keys / "pipeline.pub").rename(folder / "old.pub")
    # As after a theft: the old key is no longer trusted here.
    assert cli.main(release) == 1
    assert "SIGNER_UNKNOWN" in capsys.readouterr().err
    (keys / "retired").mkdir()
    (folder / "old.pub").rename(keys / "retired" / "2026.pub")
    assert cli.main(release) == 0
    capsys.readouterr()
    (keys / "ledger.key").unlink()
    assert cli.main(release) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["reused"], states()) == (False, ["published", "published"])
    shutil.rmtree(load_settings().measurements)
    assert cli.main(["resample", answer["release_id"]]) == 1
    assert "MEASUREMENT_DAMAGED" in capsys.readouterr().err


def test_every_place_of_an_installation_is_in_the_table(folder, landing):
    SigningKey.create(folder / "ada.key")
    make_officers("ada")
    named = re.findall(r"^\| `([^`]+)`", OPERATE.split("## Where things lie")[1], flags=re.M)
    places = {place.removeprefix("$CLUSTMIX_HOME/").split("/")[0] for place in named}
    home, releases = load_settings().home, load_settings().releases
    hidden = {path.name for path in releases.iterdir() if path.name.startswith(".")}
    assert {path.name for path in home.iterdir()} <= places
    assert hidden == {".lock"}
    assert load_settings().ledger_head_path == home.with_name("home-head") / "ledger-head"
    assert "$CLUSTMIX_HOME-head/ledger-head" in named
    for name in ("pipeline.key", "pipeline.pub", "ledger.key", "landing.key"):
        assert (home / "keys" / name).exists()
        assert f"| `{name}` |" in OPERATE


def test_roles_of_the_ledger_in_postgresql_are_as_documented(folder, documented, monkeypatch):
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
        assert documented("clustmix doctor")[0] == 0
        assert cli.main(["release", "admissions.yaml", "--json"]) == 0
        assert states() == ["published"]
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


@pytest.mark.parametrize("block", python_blocks())
def test_every_python_block_runs(block, landing):
    arguments = ["landing/admissions.csv", "admissions", "landing.key"] * ("argv" in block)
    given = "import pandas\nframe = pandas.read_csv('cohort.csv')\n" * ("fit(frame)" in block)
    done = python("-W", "error", "-c", given + block, *arguments)
    assert done.returncode == 0, done.stderr
    if arguments:
        assert [arrival.dataset for arrival in scan(load_settings()).accepted] == ["admissions"]


@pytest.fixture
def landing(folder, monkeypatch):
    """Let tables arrive in the installation: one lies there, and a sender has the key."""
    monkeypatch.setenv("CLUSTMIX_LANDING", str(folder / "landing"))
    monkeypatch.setenv("CLUSTMIX_SITES", str(folder / "sites"))
    (folder / "sites").mkdir()
    shutil.copy("admissions.yaml", folder / "sites")
    with (folder / "sites" / "admissions.yaml").open("a", encoding="utf-8") as site_file:
        site_file.write("arrival: {}\n")
    # Makes the folder and the key.
    assert scan(load_settings()).accepted == ()
    shutil.copy(folder / "cohort.csv", folder / "landing" / "admissions.csv")
    shutil.copy(load_settings().key_folder / "landing.key", "landing.key")
    return folder / "landing"


def test_a_decision_is_signed_as_documented(folder, documented, capsys):
    for name in ("ada", "engineer"):
        SigningKey.create(folder / f"{name}.key")
    make_officers("ada")
    made.write_site(folder, dataset="admissions", approval="officer").rename("admissions.yaml")
    for line in re.findall(r"^ +(clustmix sign .+)$", OPERATE, flags=re.M):
        assert cli.main(["release", "admissions.yaml", "--key", "engineer.key", "--new-draw"]) == 0
        waiting = site().ledger.entries()[-1].release_id
        shutil.copytree(load_settings().pending / waiting, folder / waiting)
        capsys.readouterr()
        code, signed, _ = documented(line, release=waiting)
        assert code == 0
        # What the form of the page hands on.
        Installation.open(load_settings()).decisions.carry_out(
            waiting, Approval.from_bytes(signed.strip().encode())
        )
    assert states() == ["published", "published", "withheld"]


def test_the_documented_deployment_is_one():
    [block] = blocks(OPERATE, "yaml")
    [deployment] = yaml.safe_load(block)
    section = DeploymentSection.model_validate(deployment)
    shipped = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text("utf-8"))
    weekly = DeploymentSection.model_validate(shipped["deployments"][0])
    assert section.entrypoint == weekly.entrypoint
    assert section.work_pool == weekly.work_pool
    assert section.schedules == weekly.schedules


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", [*PAGES, RUNBOOK], ids=lambda page: page.parent.name + page.name)
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
    assert not re.search(r"pypi|pythonhosted|artifactory|nexus|index-url|localhost", text)
    assert set(re.findall(r"127\.\S+", text)) <= {
        "127.0.0.1:0",
        "127.0.0.1:4200/api",
        "127.0.0.1:9464",
    }
    hosts = set(re.findall(r"https://([^/)\s]+)", text))
    assert hosts <= {"keepachangelog.com", "semver.org", "hooks.hospital.example"}


def test_package_shows_the_readme():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["readme"] == "README.md"
    version = "Unreleased" if ".dev" in project["version"] else project["version"]
    assert f"[{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
