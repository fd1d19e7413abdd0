"""A full disk, a worker that dies, a request that is made several times: the flow goes on."""

import os
import re
from collections import Counter

import forced_installation as forced
import made_up_release as made
import pytest
from failing_disk import no_space
from forced_release import Death, DyingShard, FullDisk, Pause, decide_and_die
from stores import Stores

from storage.settings import load_settings
from tasks.execution.runtime import Failed, guarded_call, private_log_directory

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("place", "state"),
    [
        ("before _Seals.__call__", "executing"),
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
    assert installation.faults() == []


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
def test_decision_that_died_is_finished(tmp_path, installation, monkeypatch, place, state):
    for name, value in installation.environment.items():
        monkeypatch.setenv(name, value)
    site, people = Stores(load_settings()), tmp_path / "people"
    site.keys.pipeline()
    requester = made.make_person(people, "one")
    officer = made.make_person(people, "other", officers=site.settings.key_folder / "officers")
    run = installation.start(
        forced.Tables(tmp_path, approval="officer")(0), requester=requester.key_id
    )
    assert run.answer()["state"] == "sealed"

    asked = ("approve", run.release_id, str(people / "other.key"), Death(place=place))
    forced.kill_itself(decide_and_die, installation.environment, *asked)
    assert installation.state(run.release_id) == state
    assert installation.damages() == []

    if state == "sealed":
        outcome = site.decide(run.release_id, decision="approve", key=officer, reason="as agreed")
    else:
        outcome = site.publisher.publish(run.release_id)
    assert outcome.state == "published"
    assert installation.faults() == []


def test_statistic_is_not_drawn_again_where_a_worker_died(tmp_path):
    installation = forced.Installation(tmp_path / "installation", dask_workers=1)
    run = installation.start(
        forced.Tables(tmp_path)(0), shard=DyingShard(str(tmp_path), "label_counts")
    )
    answer = run.answer()
    assert (tmp_path / "label_counts").exists()
    # The sum was computed again, and its noise drawn when it was known: once.
    assert (answer.get("state"), installation.state(run.release_id)) == ("published",) * 2
    (drawn,) = installation.drawn().values()
    assert set(drawn.values()) == {1}
    assert installation.faults() == []


def test_eight_identical_requests_draw_each_statistic_once(tmp_path, installation):
    site = forced.Tables(tmp_path)(0)
    runs = [installation.start(site) for _ in range(8)]
    answers = [run.answer() for run in runs]
    assert [answer.get("state") for answer in answers] == ["published"] * 8, answers
    assert len({answer["release_id"] for answer in answers}) == 1
    assert len({answer["bundle"] for answer in answers}) == 1
    assert sorted(answer["reused"] for answer in answers) == [False] + [True] * 7

    [(measured, drawn)] = installation.drawn().items()
    assert drawn == Counter({"feature_by_label_histograms": 1})
    [entry] = installation.entries().values()
    assert (entry.release_id, entry.state.value) == (measured, "published")
    assert measured == answers[0]["release_id"]
    charged = {answer["charged_rho"] for answer in answers}
    assert charged == {"0", f"{entry.rho:f}"}
    assert installation.ledger.balance(entry.cohort).spent_rho == entry.rho
    assert installation.faults() == []


def test_two_that_wait_for_a_run_finish_it_when_it_dies(tmp_path, installation):
    site = forced.Tables(tmp_path)(0)
    first = installation.start(site, disturbance=Pause(place="stage report"))
    try:
        assert first.reach(forced.Moment(place="stage decode"))
        others = [installation.start(site) for _ in range(2)]
        waits = forced.Moment(place="after LedgerDatabase.reserve")
        assert all(other.reach(waits) for other in others)
        first.wait_until_stopped()
    finally:
        assert first.end()
    assert installation.state(first.release_id) == "sealed"
    assert installation.damages() == []

    answers = [other.answer() for other in others]
    assert [answer.get("state") for answer in answers] == ["published"] * 2, answers
    assert {answer["release_id"] for answer in answers} == {first.release_id}
    assert all(answer["reused"] for answer in answers)
    assert list(installation.drawn()) == [first.release_id]
    assert installation.faults() == []
