import made_up_release as made
import pytest

from privacy.ledger import EntryState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def deliver(installation, name, frame):
    table = installation.landing / f"{name}.csv"
    frame.to_csv(table, index=False)
    installation.announce(table, "ward")


def test_planted_values_reach_nothing_that_the_server_keeps(installation):
    # What the orchestrator keeps is a file below the home as well.
    earlier = installation.entries().values()
    n_published = sum((e.dataset, e.state) == ("ward", EntryState.PUBLISHED) for e in earlier)
    deliver(installation, "planted", made.made_up_cohort())
    installation.wait_for_state("ward", EntryState.PUBLISHED, n=n_published + 1)
    # A table that breaks a rule of its column by a planted value.
    deliver(installation, "broken", made.made_up_cohort().assign(age=made.CANARY_NOTE))
    installation.wait_for_state("ward", EntryState.VOID)
    installation.wait_until_quiet()
    run = installation.latest_run("measure", "on-arrival")
    assert run.state == "FAILED", run
    assert run.message.startswith("INPUT_REFUSED: "), run

    home = installation.home
    assert list((home / "server" / "prefect").rglob("*.db"))
    kept = (installation.tables, home / "diagnostics")
    found = made.found_in_tree(installation.folder, made.CANARIES, skip=kept)
    assert found == []
    assert made.found_in_tree(home / "diagnostics", made.CANARIES)
