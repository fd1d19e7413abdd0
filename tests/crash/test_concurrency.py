"""The same request from several processes at once: one measures, the others get its release."""

import time
from collections import Counter

import forced_installation as forced
import psutil
import pytest
from forced_release import Pause

pytestmark = pytest.mark.integration


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
    assert installation.damages() == []
    assert installation.leftovers() == []


def test_two_that_wait_for_a_run_finish_it_when_it_dies(tmp_path, installation):
    site = forced.Tables(tmp_path)(0)
    first = installation.start(site, disturbance=Pause(place="stage report"))
    try:
        assert first.reach(forced.Moment(place="stage decode", time=1, seconds=0.0))
        others = [installation.start(site) for _ in range(2)]
        waits = forced.Moment(place="after LedgerDatabase.reserve", time=1, seconds=0.0)
        assert all(other.reach(waits) for other in others)
        while psutil.Process(first.process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.02)
    finally:
        assert first.end()
    assert installation.state(first.release_id) == "sealed"
    assert installation.damages() == []

    answers = [other.answer() for other in others]
    assert [answer.get("state") for answer in answers] == ["published"] * 2, answers
    assert {answer["release_id"] for answer in answers} == {first.release_id}
    assert all(answer["reused"] for answer in answers)
    assert list(installation.drawn()) == [first.release_id]
    assert installation.damages() == []
    assert installation.leftovers() == []
