import os
import shutil
from operator import attrgetter
from pathlib import Path
from unittest import mock

import made_up_release as made
import pytest
import yaml
from landed_tables import scan
from prefect.client.orchestration import get_client
from prefect.settings import get_current_settings
from stores import Stores

from flows import serving
from flows.decisions import sign
from flows.measure import measure_cohort
from flows.orchestrator import refuse_unsafe_orchestrator
from flows.publish import PublishRequest, publish_measurement
from flows.site.request import ReleaseRequest
from privacy.errors import ConfigurationError, Withheld
from storage.arrivals.ready_files import build_ready_file, write_ready_file
from storage.releases.bundles import verify_bundle
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.signatures import Approval, ApprovalStatement
from storage.settings import load_settings
from tasks.steps import publish_steps

pytestmark = pytest.mark.integration


@pytest.fixture
def installation(installation, monkeypatch):
    """Return an installation whose site files are found by the name of the dataset."""
    monkeypatch.setenv("CLUSTMIX_SITES", str(installation / "sites"))
    monkeypatch.setenv("CLUSTMIX_RELEASES_URL", "http://127.0.0.1:9/releases/")
    (installation / "sites").mkdir()
    return installation


@pytest.fixture
def emitted(monkeypatch):
    events = []
    monkeypatch.setattr(serving, "emit", events.extend)
    monkeypatch.setattr("flows.measure.emit", events.extend)
    return events


def declare(installation, **changes):
    made.write_site(installation, **changes).rename(installation / "sites" / "made-up.yaml")


def change_site(installation, **changes):
    path = installation / "sites" / "made-up.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


def measured(**request):
    asked = ReleaseRequest(dataset="made-up", **request)
    return asked.release_id, measure_cohort(asked, return_state=True)


def published(release_id, decision=None, dataset="made-up"):
    asked = PublishRequest(dataset=dataset, release_id=release_id, decision=decision)
    return publish_measurement(asked, return_state=True)


def site_of_installation():
    return Stores(load_settings())


def states():
    return [entry.state.value for entry in site_of_installation().ledger.entries()]


def end(state):
    return f"{state.type.value} {state.name}: {state.message}"


def artifacts():
    with get_client(sync_client=True) as client:
        found = sorted(client.read_artifacts(), key=lambda artifact: artifact.created)
    return {artifact.key: artifact for artifact in found}


def test_measure_ends_with_the_seal_and_publish_needs_no_table(installation, emitted):
    declare(installation)
    release_id, state = measured()
    assert end(state) == f"COMPLETED Completed: sealed made-up/{release_id}"
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(state.state_details.flow_run_id)
    assert run.name == f"made-up/{release_id}"
    # What the server keeps of the request: ids.
    request = {"dataset": "made-up", "arrival": None, "release_id": release_id}
    assert run.parameters == {
        "request": request | {"new_draw": False, "again": False, "period": None}
    }
    site = site_of_installation()
    assert states() == ["sealed"]
    assert not (site.settings.releases / "made-up").exists()
    assert [path.name for path in site.private_root.iterdir()] == [".lock"]
    assert "| left | " in artifacts()["budget-made-up"].data

    (installation / "cohort.csv").unlink()
    shutil.rmtree(installation / "sites")
    state = published(release_id)
    assert end(state) == f"COMPLETED Completed: published made-up/{release_id}"
    bundle = site.settings.releases / "made-up" / release_id
    verified = verify_bundle(bundle, trusted=site.keys.pipeline_public())
    shown = artifacts()
    assert "at most a factor of" in shown["guarantee-made-up"].data
    assert f"| epsilon | {verified.manifest.epsilon:.6g} |" in shown["guarantee-made-up"].data
    assert shown["gate-made-up"].data.count("| passed |") == len(verified.manifest.gate)
    address = f"http://127.0.0.1:9/releases/made-up/{release_id}/report.html"
    assert f"({address})" in shown["report-made-up"].data
    assert shown["progress-made-up"].data == 100.0
    assert emitted == []


def test_same_table_is_measured_once_and_published_once(installation, emitted):
    declare(installation)
    first, _ = measured()
    _, state = measured()
    assert state.message.endswith(f"before, as {first}, which is sealed; nothing is charged")
    published(first)
    _, state = measured()
    assert state.message.endswith(f"was released before, as {first}; nothing is charged")
    assert emitted == []
    change_site(installation, rows=123)
    measured()
    assert [(event.name, event.payload) for event in emitted] == [
        ("measurement.sealed", {"dataset": "made-up", "release_id": first})
    ]
    assert published(first).name == "Completed"
    assert len(list((load_settings().releases / "made-up").iterdir())) == 2
    assert states() == ["published"]


def test_refused_is_an_ordinary_end(installation, emitted):
    declare(installation, lifetime_epsilon=1.0)
    measured()
    release_id, state = measured(new_draw=True)
    assert end(state).startswith("CANCELLED Refused: BUDGET_EXCEEDED: ")
    (event,) = emitted
    assert (event.name, event.resource_id) == ("release.refused", f"clustmix.release.{release_id}")
    ids = {"dataset": "made-up", "release_id": release_id}
    assert event.payload == {**ids, "reason": "BUDGET_EXCEEDED"}


def test_withheld_is_an_ordinary_end(installation, emitted):
    declare(installation)
    release_id, _ = measured()
    gate = mock.Mock(side_effect=Withheld("OUTPUT_GATE", "the synthetic rows break these rules"))
    with mock.patch.object(publish_steps, "output_gate", gate):
        state = published(release_id)
    assert end(state) == "CANCELLED Withheld: OUTPUT_GATE: the synthetic rows break these rules"
    assert states() == ["sealed"]
    assert end(published(release_id)).startswith("COMPLETED ")
    assert states() == ["published"]


def test_failure_says_what_to_do(installation, emitted):
    state = measured()[1]
    assert end(state).startswith("FAILED Failed: SITE_MISSING: expected a site file at ")
    declare(installation)
    state = published("r-20200101-00000000")
    assert state.name == "Failed"
    assert state.message.startswith("RELEASE_UNKNOWN: ")
    release_id, _ = measured()
    state = published(release_id, dataset="made-down")
    assert state.message.startswith("OTHER_DATASET: ")


@pytest.fixture
def landing(installation, monkeypatch):
    """Return the landing folder of an installation whose source is not there: tables arrive."""
    folder = installation / "landing"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CLUSTMIX_LANDING", str(folder))
    declare(installation, arrival={"max_age_hours": 24})
    return folder


def arrive(landing):
    table = landing / "cohort.csv"
    made.made_up_cohort().to_csv(table, index=False)
    secret = site_of_installation().keys.landing_secret()
    write_ready_file(table, build_ready_file(table, dataset="made-up", secret=secret))
    (arrival,) = scan(load_settings()).accepted
    return arrival["arrival"]


def left_of_arrivals():
    folder = load_settings().arrivals
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_arrival_takes_the_place_of_the_source(installation, landing, emitted):
    (installation / "cohort.csv").unlink()
    first = arrive(landing)
    release_id, state = measured(arrival=first)
    assert end(state) == f"COMPLETED Completed: sealed made-up/{release_id}"
    assert left_of_arrivals() == []
    assert published(release_id).name == "Completed"
    _, state = measured(arrival=arrive(landing))
    assert state.message.endswith(
        f"this table was released before, as {release_id}; nothing is charged"
    )
    assert left_of_arrivals() == []
    assert len(site_of_installation().ledger.entries()) == 1
    assert measured(arrival=first)[1].message.startswith("ARRIVAL_ENDED: ")
    assert measured(arrival="a-20200101-00000000")[1].message.startswith("ARRIVAL_UNKNOWN: ")


def test_arrival_that_burned_a_charge_is_not_charged_again_by_itself(
    installation, landing, emitted
):
    arrival = arrive(landing)
    with mock.patch("flows.measurement.run_stage", mock.Mock(side_effect=MemoryError)):
        burned, state = measured(arrival=arrival)
    assert state.name == "Failed"
    assert left_of_arrivals() == [arrival]
    _, state = measured(arrival=arrival)
    said = f"CANCELLED Withheld: ARRIVAL_BURNED: release {burned} of arrival {arrival} was charged"
    assert end(state).startswith(said)
    assert left_of_arrivals() == []
    assert states() == ["burned"]


def test_every_run_of_an_arrival_is_remembered_not_the_last_alone(installation, landing, emitted):
    arrival = arrive(landing)
    with (
        mock.patch("flows.measurement.run_stage", mock.Mock(side_effect=MemoryError)),
        mock.patch("tasks.steps.entries.Entries._close_failed"),
    ):
        died, _ = measured(arrival=arrival)
    # The second one dies after it has taken the arrival and before it looks at the first.
    with mock.patch("tasks.steps.janitor.Janitor.clean_up", mock.Mock(side_effect=MemoryError)):
        assert measured(arrival=arrival)[1].name == "Failed"
    _, state = measured(arrival=arrival)
    assert state.message.startswith(f"ARRIVAL_BURNED: release {died} of arrival {arrival} ")
    assert states() == ["burned"]


@pytest.fixture
def people(installation, person, monkeypatch):
    keys = {name: person(name, is_officer=True) for name in ("engineer", "officer")}
    monkeypatch.setenv("CLUSTMIX_REQUESTER", keys["engineer"].key_id)
    return keys


@pytest.fixture
def waiting(installation, emitted, people):
    declare(installation, approval="officer")
    release_id, _ = measured()
    state = published(release_id)
    assert end(state) == f"COMPLETED Waiting: made-up/{release_id} waits for an officer"
    return release_id


def signed(installation, release_id, key, decision="approve"):
    """Return a decision that was signed with nothing but a copy of the folder."""
    folder = site_of_installation().settings.pending / release_id
    copy = shutil.copytree(folder, installation / "at-the-officer", dirs_exist_ok=True)
    return sign(copy, key=key, decision=decision, reason="as agreed").to_bytes().decode()


def test_officer_approves_through_the_form(installation, waiting, people):
    decision = signed(installation, waiting, people["officer"])
    assert end(published(waiting, decision)).startswith("COMPLETED Completed: published made-up/")
    assert states() == ["published"]
    assert published(waiting, decision).name == "Failed"


def test_officer_rejects_through_the_form(installation, waiting, people):
    decision = signed(installation, waiting, people["officer"], "reject")
    rejected = f"COMPLETED Withheld: {waiting}: rejected by an officer"
    assert end(published(waiting, decision)) == rejected
    (entry,) = site_of_installation().ledger.entries()
    assert (entry.state.value, entry.signers) == ("withheld", (people["officer"].key_id,))
    assert published(waiting).name == "Withheld"


def test_decision_about_another_release_counts_for_nothing(installation, waiting, people, person):
    decision = signed(installation, waiting, people["officer"])
    declare(installation, approval="officer", rows=100)
    other, _ = measured(new_draw=True)
    published(other)
    state = published(other, decision)
    assert state.message.startswith("APPROVAL_MISMATCH: ")
    state = published(other, "yes")
    assert state.message.startswith("APPROVAL_INVALID: ")
    state = published(waiting, signed(installation, waiting, person("stranger")))
    assert state.message.startswith("SIGNER_UNKNOWN: ")
    # What a program of one's own signs, which refuses nobody.
    folder = site_of_installation().settings.pending / waiting
    manifest = Manifest.from_bytes((folder / MANIFEST_FILE).read_bytes())
    statement = ApprovalStatement.of(manifest, decision="approve", reason="mine")
    own = Approval.signed(people["engineer"], statement=statement).to_bytes().decode()
    assert published(waiting, own).message.startswith("APPROVER_IS_REQUESTER: ")
    assert set(states()) == {"sealed"}


@pytest.mark.parametrize(
    ("variable", "change"),
    [
        ("PREFECT_TASKS_DEFAULT_PERSIST_RESULT", "tasks.default_persist_result"),
        ("PREFECT_LOGGING_LOG_PRINTS", "logging.log_prints"),
        ("PREFECT_DEBUG_MODE", "debug_mode"),
    ],
)
def test_orchestrator_that_keeps_results_is_refused(variable, change, monkeypatch):
    settings = get_current_settings().model_copy(deep=True)
    section, _, name = change.rpartition(".")
    monkeypatch.setattr(attrgetter(section)(settings) if section else settings, name, True)
    monkeypatch.setattr("prefect.settings.get_current_settings", lambda: settings)
    with pytest.raises(ConfigurationError) as caught:
        refuse_unsafe_orchestrator()
    assert str(caught.value).startswith(f"ORCHESTRATOR_UNSAFE: expected {variable}=false in the ")


@pytest.mark.parametrize(
    ("variable", "place"), [("CLUSTMIX_HOME", None), ("CLUSTMIX_SITES", "here")]
)
def test_run_without_a_fixed_place_is_refused(variable, place, installation, monkeypatch, emitted):
    declare(installation)
    monkeypatch.chdir(installation)
    if place is None:
        monkeypatch.delenv(variable)
    else:
        monkeypatch.setenv(variable, place)
    state = measured()[1]
    said = f"FAILED Failed: PLACE_NOT_FIXED: expected an absolute path in {variable} of the worker"
    assert end(state).startswith(said)
    assert not list(installation.rglob("ledger.sqlite"))


def test_page_that_cannot_be_reached_ends_no_run_and_is_given_up(
    installation, emitted, monkeypatch
):
    unreachable = mock.Mock(side_effect=ConnectionError)
    with mock.patch.object(serving.artifacts, "update_progress_artifact", unreachable):
        declare(installation)
        release_id, state = measured()
    assert state.name == "Completed"
    assert unreachable.call_count == 1
    for name in ("create_markdown_artifact", "create_link_artifact", "create_progress_artifact"):
        monkeypatch.setattr(serving.artifacts, name, unreachable)
    assert measured(new_draw=True)[1].name == "Completed"
    assert published(release_id).name == "Completed"


def test_nothing_is_stored_by_the_orchestrator(installation, emitted):
    storage = Path(os.environ["PREFECT_HOME"], "storage")
    before = sorted(storage.glob("**/*"))
    declare(installation)
    release_id, _ = measured()
    published(release_id)
    assert sorted(storage.glob("**/*")) == before
