"""A release that nobody starts: a table arrives; how runs end; and two installations at once."""

import time

import pytest
from hospital import POOR, WARD
from served_installation import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

RELEASE_SECONDS = 180.0
"""From the ready file to the bundle, on two cores."""


def test_a_table_that_arrives_becomes_a_signed_bundle(installation, say):
    begin, known = time.monotonic(), set(installation.entries())
    table = installation.arrive(WARD, content=1)
    entry = installation.wait_for_new_release(known, seconds=RELEASE_SECONDS)
    say(f"published {time.monotonic() - begin:.0f} s after the ready file")
    assert "verified" in installation.verify(entry.release_id).lower()
    installation.wait_until_quiet()

    runs = installation.runs_of(f"{WARD}/{entry.release_id}")
    assert {(run.flow, run.deployment) for run in runs} == {
        ("measure", "on-arrival"),
        ("publish", "on-seal"),
    }
    assert {run.state for run in runs} == {"COMPLETED"}, runs
    measured = next(run for run in runs if run.flow == "measure")
    assert set(measured.parameters["request"]) == {"dataset", "arrival"}
    assert set(installation.drawn()) == {*known, entry.release_id}
    assert set(installation.drawn()[entry.release_id].values()) == {1}
    assert not table.exists()
    assert installation.damages() + installation.leftovers() == []


def test_a_budget_that_is_spent_is_an_ordinary_end(installation, told):
    already_told = len(told.bodies)
    first = installation.wait_for_run(installation.request("measure", "on-demand", dataset=POOR))
    assert first.state == "COMPLETED", first
    installation.change_source(POOR, content=3)
    drawn = installation.drawn()
    second = installation.wait_for_run(installation.request("measure", "on-demand", dataset=POOR))
    assert (second.state, second.state_name) == ("CANCELLED", "Refused"), second
    assert second.message.startswith("BUDGET_EXCEEDED: ")
    # Nobody was measured, and somebody was told.
    assert installation.drawn() == drawn

    def says(*words):
        return wait_until(
            lambda: [b for b in told.bodies[already_told:] if all(word in b for word in words)],
            lambda: told.bodies[already_told:],
        )

    says("release.refused", second.name, "BUDGET_EXCEEDED")
    says("budget.low", POOR, '"percent_left": 0')
    installation.wait_until_quiet()
    assert installation.damages() + installation.leftovers() == []
