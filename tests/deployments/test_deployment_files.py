import os
import re
import shlex
import subprocess
from contextlib import closing
from pathlib import Path

import made_up_release as made
import postgres_server
import psycopg
import pytest
import yaml
from command_line import parse
from distributed.cli import dask_scheduler, dask_worker
from stores import Stores

from storage.settings import Settings, load_settings
from tasks.execution.cluster import ROLES
from tasks.execution.runtime import safe_environment
from tests.documents import blocks, locked_in
from tests.processes import ROOT

DEPLOYMENTS = ROOT / "deployments"
COMPOSE_TEXT = (DEPLOYMENTS / "compose.yaml").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load(COMPOSE_TEXT)
SERVICES = COMPOSE["services"]
EXAMPLE = (DEPLOYMENTS / "env.example").read_text(encoding="utf-8")
DOCKERFILES = ("Dockerfile.cpu", "Dockerfile.gpu")
OURS = sorted(SERVICES.keys() - {"database"})
MAY_SEE = {
    "cohorts": {"private-worker", "dask-worker", "dask-gpu-worker"},
    "landing": {"watcher"},
    "home": {"private-worker", "public-worker", "watcher", "dask-worker", "dask-gpu-worker"}
    | {"ledger"},
    "home-head": {"private-worker", "public-worker", "watcher", "ledger"},
    "releases": {"private-worker", "public-worker", "watcher", "ledger", "pages"},
    "made": {"private-worker", "dask-scheduler", "dask-worker", "dask-gpu-worker"}
    | {"certificates"},
}


def mounts(service):
    """Return the mounts of a service by the folder that they show, without their place in it."""
    found = {}
    for mount in SERVICES[service].get("volumes", []):
        target = Path(mount["target"])
        inside = target.is_relative_to("/srv/clustmix")
        found[target.relative_to("/srv/clustmix").parts[0] if inside else str(target)] = mount
    return found


def environment(service):
    return dict(SERVICES[service].get("environment", {}))


@pytest.mark.parametrize("service", SERVICES)
def test_part_has_no_more_rights_than_it_needs(service):
    part = SERVICES[service]
    if service == "database":
        assert (part["network_mode"], part["user"]) == ("none", "postgres")
        assert "listen_addresses=" in part["command"]
    else:
        assert part["user"] == "10001:10001"
    assert part["read_only"] is True
    assert part["cap_drop"] == ["ALL"]
    assert part["security_opt"] == ["no-new-privileges:true"]
    assert part["ulimits"] == {"core": 0}
    assert not {"cap_add", "privileged"} & part.keys()


def test_networks_of_private_parts_lead_nowhere_and_ports_are_of_the_loopback_interface():
    published = {name: part["ports"] for name, part in SERVICES.items() if "ports" in part}
    assert published.keys() == {"orchestrator", "pages"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert COMPOSE["networks"]["orchestration"] == {"internal": True}
    assert COMPOSE["networks"]["compute"] == {"internal": True}
    outside = {name for name, part in SERVICES.items() if "outside" in part.get("networks", [])}
    assert outside == {"orchestrator", "pages"}
    assert all("networks" in p or p["network_mode"] == "none" for p in SERVICES.values())


@pytest.mark.parametrize("folder", MAY_SEE)
def test_folder_is_mounted_where_it_is_needed_and_nowhere_else(folder):
    assert {name for name in SERVICES if folder in mounts(name)} == MAY_SEE[folder]


def test_what_is_only_read_is_mounted_so():
    for service in SERVICES:
        for folder, mount in mounts(service).items():
            if folder in ("cohorts", "sites") or (service, folder) == ("pages", "releases"):
                assert mount["read_only"] is True, (service, folder)
            if folder == "made" and service != "certificates":
                assert mount["read_only"] is True, (service, folder)
                role = Path(mount["target"]).name
                assert mount["volume"] == {"subpath": f"cluster/{role}"}
                assert role in ROLES


@pytest.mark.parametrize("service", OURS)
def test_variables_keep_values_on_the_machine_and_are_settings_with_absolute_paths(service):
    if service != "pages":
        assert safe_environment().items() <= environment(service).items()
    names = {f"CLUSTMIX_{name.upper()}" for name in Settings.model_fields}
    for name, value in environment(service).items():
        if name.startswith("CLUSTMIX_"):
            assert name in names
            # An empty text is no value: those that may be absent are passed on as they are.
            assert value is None or value.startswith(("/", "postgresql:", "tls:", "true")), name
    if "CLUSTMIX_HOME" in environment(service):
        # The pool starts each run in a new folder; a home of its own there would hold a new ledger.
        assert environment(service)["CLUSTMIX_HOME"] == "/srv/clustmix/home"


def test_example_of_the_environment_lists_what_is_used_and_holds_no_secret():
    variables = [item for service in SERVICES for item in environment(service).items()]
    passed_on = {name for name, value in variables if value is None}
    used = set(re.findall(r"\$\{(\w+)", COMPOSE_TEXT)) | passed_on
    listed = re.findall(r"^#?([A-Z_]+)=", EXAMPLE, flags=re.MULTILINE)
    assert sorted(used) == sorted(listed)
    # Nothing starts with a forgotten password.
    needed = set(re.findall(r"\$\{(\w+):\?\}", COMPOSE_TEXT))
    assert used - passed_on == needed
    assert set(re.findall(r"^#([A-Z_]+)=", EXAMPLE, re.M)) == passed_on
    for name, value in re.findall(r"^#?([A-Z_]+)=(.*)$", EXAMPLE, re.M):
        assert value == "" or name.endswith("_FOLDER"), name


@pytest.mark.integration
@pytest.mark.parametrize("service", OURS)
def test_command_is_understood_by_its_program(service):
    program, *arguments = SERVICES[service]["command"]
    if program == "clustmix":
        parse(arguments)
    elif program == "dask":
        command = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}[arguments[0]]
        with command.make_context("dask", arguments[1:]):
            pass
    else:
        assert program in ("prefect", "python")


RUNBOOK = (DEPLOYMENTS / "README.md").read_text(encoding="utf-8")
RUNBOOK_LINES = [line for block in blocks(RUNBOOK, "sh") for line in block.splitlines()]
COMPOSE_ACTIONS = {"build", "up", "ps", "run", "exec", "cp", "stop"}


@pytest.mark.parametrize("line", RUNBOOK_LINES)
def test_command_of_the_runbook_exists(line):
    words = shlex.split(line)
    if words[:2] == ["docker", "compose"]:
        assert words[2:4] == ["--file", "deployments/compose.yaml"]
        rest = words[4:]
        if rest[0] == "--profile":
            assert rest[1] in {p for part in SERVICES.values() for p in part.get("profiles", [])}
            rest = rest[2:]
        action, *rest = [word for word in rest if not word.startswith("-")]
        assert action in COMPOSE_ACTIONS
        if action in ("run", "exec"):
            assert rest[0] in SERVICES
            if rest[1:2] == ["clustmix"]:
                parse(words[words.index("clustmix") + 1 :])
        elif action == "cp":
            assert {word.split(":")[0] for word in rest if ":" in word} <= SERVICES.keys()
        else:
            assert set(rest) <= SERVICES.keys()
    elif words[0] == "clustmix":
        parse(words[1:])
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{target}:", makefile, flags=re.M) for target in words[1:])
    elif words[:4] == ["docker", "buildx", "imagetools", "inspect"]:
        dockerfile = (DEPLOYMENTS / "Dockerfile.cpu").read_text("utf-8")
        assert words[4] in {SERVICES["database"]["image"], *re.findall(r"FROM (\S+)", dockerfile)}
    else:
        assert words[0] in ("install", "openssl")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_image_is_made_of_what_is_here_and_of_locked_packages(name):
    text = (DEPLOYMENTS / name).read_text(encoding="utf-8").replace("\\\n", " ")
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in allowed
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, flags=re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in allowed, source
    bases = re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)
    assert all(re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", base) for base in bases)
    installs = re.findall(r"pip install ([^&\n]+)", text)
    assert "--require-hashes" in installs[0]
    assert all("--no-deps" in install for install in installs)
    assert "--no-index" in installs[1]
    assert re.search(r"^USER 10001:10001$", text, flags=re.MULTILINE)
    assert "pip inspect --local > /opt/clustmix/packages.json" in text


def test_no_private_file_can_get_into_an_image():
    allowed = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.M)
    packages = {"clustmix", "flows", "tasks", "privacy", "storage"}
    tracked = packages | {"pyproject.toml", "requirements.lock", "README.md", "LICENSE"}
    assert {path for path in allowed if not path.startswith("deployments/")} == tracked


def test_image_of_the_gpu_adds_cuda_for_the_same_jax():
    text = (DEPLOYMENTS / "requirements-gpu.lock").read_text(encoding="utf-8")
    locked = locked_in((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    added = locked_in(text)
    assert added["jax-cuda12-plugin"] == added["jax-cuda12-pjrt"] == locked["jax"]
    assert not added.keys() & locked.keys()
    assert text.count("--hash=sha256:") == len(added)
    assert "://" not in text


@pytest.mark.integration
def test_databases_are_two_whose_roles_reach_no_further(tmp_path):
    with closing(postgres_server.PostgresServer()) as database:
        check_databases(database, tmp_path)


def check_databases(database, folder):
    words = {"PREFECT_DB_PASSWORD": "p1", "LEDGER_OWNER_PASSWORD": "p2", "LEDGER_PASSWORD": "p3"}
    subprocess.run(
        ["/bin/sh", str(DEPLOYMENTS / "databases.sh")],
        env={
            **os.environ,
            **words,
            "POSTGRES_USER": postgres_server.OWNER,
            "PGPASSWORD": postgres_server.PASSWORD,
            "PGHOST": database.url("x").partition("host=")[2].replace("%2F", "/"),
        },
        check=True,
        capture_output=True,
        timeout=60,
    )
    owner = database.url("ledger", user="ledger_owner", password=words["LEDGER_OWNER_PASSWORD"])
    pipeline = database.url("ledger", user="pipeline", password=words["LEDGER_PASSWORD"])
    make_journal(owner, folder)
    with psycopg.connect(pipeline) as connection:
        rights = connection.execute(
            "SELECT privilege FROM unnest(ARRAY['SELECT','INSERT','UPDATE','DELETE','TRUNCATE']) "
            "AS privilege WHERE has_table_privilege('clustmix_ledger.journal', privilege)"
        ).fetchall()
        assert [right for (right,) in rights] == ["SELECT", "INSERT"]
    for user, password, other in (("prefect", "p1", "ledger"), ("pipeline", "p3", "prefect")):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(database.url(other, user=user, password=password))
    prefect = database.url("prefect", user="prefect", password=words["PREFECT_DB_PASSWORD"])
    with psycopg.connect(prefect) as connection:
        found = connection.execute("SELECT extname FROM pg_extension ORDER BY 1").fetchall()
        assert found == [("pg_trgm",), ("plpgsql",)]


def make_journal(url, folder):
    """Run the command of the service "ledger"."""
    with pytest.MonkeyPatch.context() as patch:
        made.install(patch, folder)
        patch.setenv("CLUSTMIX_LEDGER_URL", url)
        Stores(load_settings()).ledger.verify()
