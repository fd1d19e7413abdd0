"""A release that nobody starts: a table arrives; how runs end; and two installations at once."""

import time

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

RELEASE_SECONDS = 180.0
"""From the ready file to the bundle, on two cores."""


def test_a_table_that_arrives_becomes_a_signed_bundle(installation, say):
    begin, known = time.monotonic(), set(installation.entries())
    drawn = set(installation.drawn())
    table = installation.arrive("ward", content=1)
    entry = installation.wait_for_new_release(known, seconds=RELEASE_SECONDS)
    say(f"published {time.monotonic() - begin:.0f} s after the ready file")
    assert "verified" in installation.verify(entry.release_id).lower()
    installation.wait_until_quiet()

    runs = installation.runs_of(f"ward/{entry.release_id}")
    assert {(run.flow, run.deployment) for run in runs} == {
        ("measure", "on-arrival"),
        ("publish", "on-seal"),
    }
    assert {run.state for run in runs} == {"COMPLETED"}, runs
    measured = next(run for run in runs if run.flow == "measure")
    assert set(measured.parameters["request"]) == {"dataset", "arrival"}
    assert set(installation.drawn()) - drawn == {entry.release_id}
    assert set(installation.drawn()[entry.release_id].values()) == {1}
    assert not table.exists()
    assert installation.damages() + installation.leftovers() == []
