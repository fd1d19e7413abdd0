"""A full disk, a clock that is set back, a worker that dies: the flow under small misfortunes."""

import os
import re

import forced_installation as forced
import made_up_release as made
import pytest
from failing_disk import no_space
from forced_release import Death, DyingShard, FullDisk, approve_and_die
from stores import Stores

from flows import approval, publication
from storage.keys.keys import SigningKey
from storage.settings import load_settings
from tasks.execution.runtime import Failed, guarded_call, private_log_directory

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("place", "state"),
    [
        ("before Seals.__call__", "executing"),
        ("before MeasurementStore.seal", "executing"),
        ("before ReleaseStore.publish", "approved"),
    ],
)
def test_run_without_space_ends_with_one_line_and_its_charge(tmp_path, installation, place, state):
    tables = forced.Tables(tmp_path)
    run = installation.start(tables(0), disturbance=FullDisk(place=place))
    answer = run.answer()
    # The ledger could not be told of it either, and that does not hide what went wrong first.
    assert re.fullmatch(r"(histograms|seal|publish):OSError", answer["code"])
    assert "\n" not in answer["message"]
    assert installation.state(run.release_id) == state
    assert installation.damages() == []
    assert sum(installation.drawn()[run.release_id].values()) == 1

    again = installation.start(tmp_path / "table-0" / "site.yaml").answer()
    assert again["state"] == "published"
    assert again["reused"] == (state == "approved")
    assert installation.damages() == []
    assert installation.leftovers() == []


def test_failure_stays_behind_the_guard_where_its_log_cannot_be_written(tmp_path, monkeypatch):
    with private_log_directory(tmp_path / "log"):
        monkeypatch.setattr(os, "write", no_space)
        result = guarded_call("step", made.raise_private, "step")
        monkeypatch.undo()
    assert isinstance(result, Failed)
    assert result.code == "step:ValueError"


def test_what_dead_runs_left_goes_although_a_clean_up_dies_too(tmp_path, installation):
    tables = forced.Tables(tmp_path)
    assert installation.start(tables(0)).answer()["state"] == "published"
    site = tables(1)
    # In the middle of the sealed measurement, then in the clean-up after that.
    for place in ("before os.rename", "after janitor.purge_abandoned"):
        assert installation.start(site, disturbance=Death(place=place)).answer() == {}
    assert len(list((installation.home / "measurements").iterdir())) == 2
    assert installation.start(site).answer()["state"] == "published"
    assert installation.leftovers() == []


@pytest.mark.parametrize(
    ("place", "state"), [("stage commit", "sealed"), ("stage publish", "approved")]
)
def test_decision_that_died_is_finished(tmp_path, installation, dies, monkeypatch, place, state):
    for name, value in installation.environment.items():
        monkeypatch.setenv(name, value)
    site, people = Stores(load_settings()), tmp_path / "people"
    people.mkdir(mode=0o700)
    requester, officer = (SigningKey.create(people / f"{name}.key") for name in ("one", "other"))
    site.keys.pipeline()
    (site.settings.key_folder / "officers").mkdir(mode=0o700)
    officer.public.write(site.settings.key_folder / "officers" / "other.pub")
    run = installation.start(
        forced.Tables(tmp_path, approval="officer")(0), requester=requester.key_id
    )
    assert run.answer()["state"] == "sealed"

    key_file, death = str(people / "other.key"), Death(place=place)
    dies(approve_and_die, installation.environment, run.release_id, key_file, death)
    assert installation.state(run.release_id) == state
    assert installation.damages() == []

    if state == "sealed":
        outcome = approval.Decisions(site.settings).approve(
            run.release_id, key=officer, reason="as agreed"
        )
    else:
        outcome = publication.Publisher(site.settings).publish(run.release_id)
    assert outcome.state == "published"
    assert installation.damages() == []
    assert installation.leftovers() == []


def test_statistic_is_not_drawn_again_where_a_worker_died(tmp_path):
    installation = forced.Installation(tmp_path / "installation", dask_workers=1)
    run = installation.start(
        forced.Tables(tmp_path)(0), shard=DyingShard("label_counts", str(tmp_path / "died"))
    )
    answer = run.answer()
    assert (tmp_path / "died").exists()
    # The sum was computed again, and its noise drawn when it was known: once.
    assert (answer.get("state"), installation.state(run.release_id)) == ("published",) * 2
    (drawn,) = installation.drawn().values()
    assert set(drawn.values()) == {1}
    assert installation.damages() == []
    assert installation.leftovers() == []
