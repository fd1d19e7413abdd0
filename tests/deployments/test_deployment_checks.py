"""A wrong file is refused as a whole, with one line, before a server is asked."""

import shutil

import pytest
import yaml

from flows.watching.deploy import deploy
from flows.watching.deployment_file import read_automations, read_deployments
from privacy.errors import ClustMixError, ConfigurationError
from storage.settings import Settings
from tests.processes import ROOT

WEEKLY = "weekly-diabetes130-readmission"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    shutil.copytree(ROOT / "deployments", tmp_path / "files")
    return tmp_path / "files"


def refused(folder, change):
    """Change the file of the deployments and return why it is refused."""
    declared = yaml.safe_load((folder / "prefect.yaml").read_text(encoding="utf-8"))
    change(declared)
    (folder / "prefect.yaml").write_text(yaml.safe_dump(declared), encoding="utf-8")
    with pytest.raises(ClustMixError) as caught:
        deploy(Settings(home=folder / "home", sites=folder / "sites"), folder / "prefect.yaml")
    assert "\n" not in caught.value.message
    return caught.value


def put(place, value):
    """Return what puts a value into the file, or takes one out of it (None)."""
    *above, last = (int(key) if key.isdigit() else key for key in place.split("."))

    def change(declared):
        for key in above:
            declared = declared[key]
        if value is None:
            del declared[last]
        else:
            declared[last] = value

    return change


@pytest.mark.parametrize(
    ("place", "value", "line"),
    [
        ("pull", None, "Field required"),
        ("pull", [{"git_clone": {}}], "Tuple should have at most 0 items after validation, not 1"),
        ("build", [], "Extra inputs are not permitted"),
        ("deployments.0.entrypoint", "flows/measure.py:measure_cohort", "String should match pat"),
        ("deployments.0.enforce_parameter_schema", False, "Input should be True"),
        ("deployments.0.tags.0", None, "Field required"),
        ("deployments.0.concurrency_limit", 1, "Extra inputs are not permitted"),
        ("deployments.0.schedules.0.cron", "0 25 * * *", "Invalid cron"),
        ("deployments.0.schedules.0.timezone", "Europe/Nowhere", "Invalid timezone"),
        ("deployments.1.triggers.0.name", "arrival", "String should match pattern"),
    ],
)
def test_field_that_is_not_acceptable(folder, place, value, line):
    error = refused(folder, put(place, value))
    assert error.code == "DEPLOYMENTS_INVALID"
    assert error.message.startswith(f"prefect.yaml: {place}: {line}")


@pytest.mark.parametrize(
    ("place", "value", "line"),
    [
        (
            "deployments.0.work_pool.name",
            "elsewhere",
            f"{WEEKLY}: expected a queue of work_pools, found elsewhere/schedule",
        ),
        ("deployments.1.name", WEEKLY, f"{WEEKLY}: expected each deployment once"),
        (
            "deployments.0.entrypoint",
            "flows.measure.nothing",
            f"{WEEKLY}: expected a flow at flows.measure.nothing, found none; correct the entryp",
        ),
        (
            "deployments.0.parameters.request.epsilon",
            9,
            f"measure/{WEEKLY}: expected parameters with which its schedule can run, found: Flow "
            "run received invalid parameters: - request.epsilon: Extra inputs are not permitted",
        ),
    ],
)
def test_deployment_that_fits_nothing(folder, place, value, line):
    error = refused(folder, put(place, value))
    assert error.code == "DEPLOYMENTS_INVALID"
    assert error.message.removeprefix("prefect.yaml: ").startswith(line)


def test_file_that_is_absent_or_not_plain_yaml(tmp_path):
    path = tmp_path / "prefect.yaml"
    with pytest.raises(ConfigurationError, match=f"DEPLOYMENTS_MISSING: expected the file {path}"):
        read_deployments(path)
    path.write_text("name: !!python/object:os.system x\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"DEPLOYMENTS_INVALID: .*expected plain YAML"):
        read_deployments(path)


def test_automation_twice_or_under_a_foreign_name(tmp_path):
    one = {"name": "clustmix x", "description": "x", "trigger": {}, "actions": [{"type": "x"}]}
    path = tmp_path / "automations.yaml"
    for automations, line in (
        ([one, one], "clustmix x: expected each automation once"),
        ([{**one, "name": "x"}], "automations.0.name: String should match pattern"),
    ):
        path.write_text(yaml.safe_dump({"automations": automations}), encoding="utf-8")
        with pytest.raises(ConfigurationError) as caught:
            read_automations(path)
        assert caught.value.message.startswith(f"automations.yaml: {line}")


def test_automation_that_prefect_does_not_take(folder):
    path = folder / "automations.yaml"
    declared = yaml.safe_load(path.read_text(encoding="utf-8"))
    declared["automations"][0]["trigger"]["within"] = "soon"
    path.write_text(yaml.safe_dump(declared), encoding="utf-8")
    error = refused(folder, lambda d: None)
    assert error.code == "DEPLOYMENTS_INVALID"
    assert error.message.startswith(
        "automations.yaml: clustmix release refused: trigger.event.within"
    )


def test_schedule_of_a_dataset_without_site_file(folder):
    error = refused(folder, put("deployments.0.parameters.request.dataset", "unheard"))
    assert (error.code, error.message) == (
        "SCHEDULE_WITHOUT_SITE",
        f"measure/{WEEKLY}: expected the site file unheard.yaml of its dataset in the folder that "
        "CLUSTMIX_SITES names, found none; add it, or remove the schedule",
    )


def test_schedule_that_would_ask_for_approval_in_nobodys_name(folder):
    site = folder / "sites" / "diabetes130-readmission.yaml"
    text = site.read_text(encoding="utf-8")
    site.write_text(f"{text}\napproval: officer\n", encoding="utf-8")
    assert refused(folder, lambda d: None).code == "REQUESTER_MISSING"


def test_right_files_without_a_server(folder):
    error = refused(folder, lambda d: None)
    assert error.code == "ORCHESTRATOR_UNREACHABLE"
    assert error.message.startswith("expected PREFECT_API_URL, the address of a Prefect server")
