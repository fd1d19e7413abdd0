import shutil

import pytest
import yaml

from flows.watching.deploy import deploy
from privacy.errors import ClustMixError
from storage.settings import Settings
from tests.processes import ROOT

WEEKLY = "weekly-diabetes130-readmission"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    shutil.copytree(ROOT / "deployments", tmp_path / "files")
    return tmp_path / "files"


def refused(folder, place="", value=None, *, file="prefect.yaml"):
    declared = yaml.safe_load((folder / file).read_text(encoding="utf-8"))
    *above, last = (int(key) if key.isdigit() else key for key in place.split("."))
    within = declared
    for key in above:
        within = within[key]
    if place:
        within[last] = value
    (folder / file).write_text(yaml.safe_dump(declared), encoding="utf-8")
    with pytest.raises(ClustMixError) as caught:
        deploy(Settings(home=folder / "home", sites=folder / "sites"), folder / "prefect.yaml")
    assert "\n" not in caught.value.message
    return caught.value.code, caught.value.message


@pytest.mark.parametrize(
    ("file", "place", "value", "said"),
    [
        ("prefect.yaml", "deployments.0.schedules.0.cron", "0 25 * * *", "Invalid cron"),
        ("prefect.yaml", "deployments.0.schedules.0.timezone", "Nowhere", "Invalid timezone"),
        ("prefect.yaml", "deployments.0.entrypoint", "flows.measure.nothing", "MissingFlowError"),
        ("prefect.yaml", "deployments.0.parameters.request.epsilon", 9, "request.epsilon: Extra"),
        ("prefect.yaml", "deployments.1.enforce_parameter_schema", False, "on-arrival without"),
        ("prefect.yaml", "deployments.1.tags", ["other"], "on-arrival without tags: [clustmix]"),
        ("prefect.yaml", "deployments", None, "TypeError: "),
        ("automations.yaml", "automations.0.trigger.within", "soon", "trigger.event.within"),
        ("automations.yaml", "automations.0.name", "foreign", "does not begin with clustmix"),
    ],
)
def test_what_prefect_does_not_take(folder, file, place, value, said):
    code, message = refused(folder, place, value, file=file)
    assert code == "DEPLOYMENTS_INVALID"
    assert message.startswith("expected deployments in prefect.yaml and automations in")
    assert said in message


def test_file_that_is_absent_or_not_plain_yaml(folder):
    path = folder / "prefect.yaml"
    path.write_text("name: !!python/object:os.system x\n", encoding="utf-8")
    with pytest.raises(ClustMixError, match=r"expected plain YAML"):
        deploy(Settings(), path)
    path.unlink()
    with pytest.raises(ClustMixError, match=f"DEPLOYMENTS_MISSING: expected the file {path}"):
        deploy(Settings(), path)


def test_schedule_that_could_not_run(folder):
    assert refused(folder, "deployments.0.parameters.request.dataset", "unheard") == (
        "SCHEDULE_WITHOUT_SITE",
        f"measure/{WEEKLY}: expected the site file unheard.yaml of its dataset in the folder that "
        "CLUSTMIX_SITES names, found none; add it, or remove the schedule",
    )
    site = folder / "sites" / "diabetes130-readmission.yaml"
    site.write_text(f"{site.read_text('utf-8')}\napproval: officer\n", encoding="utf-8")
    dataset = "diabetes130-readmission"
    code, _ = refused(folder, "deployments.0.parameters.request.dataset", dataset)
    assert code == "REQUESTER_MISSING"


def test_right_files_without_a_server(folder):
    code, message = refused(folder)
    assert code == "ORCHESTRATOR_UNREACHABLE"
    assert message.startswith("expected PREFECT_API_URL, the address of a Prefect server")
