"""What an operator sees in a browser: the run, the form, what came of it, and the report."""

import re

import browser
import pytest
from hospital import WARD

from privacy.ledger import EntryState

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(browser.reason_to_skip() is not None, reason=str(browser.reason_to_skip())),
]


@pytest.fixture(scope="module")
def page():
    with browser.start() as page:
        yield page


@pytest.fixture
def release(usual, page):
    """Return the runs of a release, with the operator logged in."""
    found = [e for e in usual.entries().values() if e.dataset == WARD]
    if not found:
        usual.wait_for_run(usual.request("measure", "on-demand", dataset=WARD))
        found = usual.wait_for_state(WARD, EntryState.PUBLISHED)
        usual.wait_until_quiet()
    page.log_in(usual.address, usual.password)
    runs = usual.runs_of(f"{WARD}/{found[-1].release_id}")
    return {run.flow: run for run in runs}


def test_a_page_without_its_password_shows_nothing(usual, page, release):
    page.evaluate("localStorage.clear()")
    page.open(f"{usual.address}/runs/flow-run/{release['measure'].id}")
    page.wait_for("Authentication failed")
    assert WARD not in page.text()


def test_the_run_page_says_what_runs_and_how_far_it_is(usual, page, release):
    run = release["measure"]
    page.open(f"{usual.address}/runs/flow-run/{run.id}")
    page.wait_for(run.name, "Completed", "on-arrival" if "arriv" in run.deployment else "measure")
    page.wait_for("charge the budget", "bound what each patient contributes")
    page.click("Task Runs")
    page.wait_for("reserve", "ingest", "seal")
    page.click("Artifacts")
    page.wait_for(f"progress-{WARD}", f"budget-{WARD}")
    page.click("Parameters")
    page.wait_for('"dataset"')
    assert "seed" not in page.text()


def test_the_publication_shows_guarantee_gate_and_report(usual, page, release):
    run = release["publish"]
    page.open(f"{usual.address}/runs/flow-run/{run.id}")
    page.wait_for(run.name, "Completed")
    page.click("Artifacts")
    page.wait_for(f"guarantee-{WARD}", f"gate-{WARD}", f"report-{WARD}")

    page.open(usual.artifact_page(f"guarantee-{WARD}"))
    shown = page.wait_for("Guarantee of", "epsilon", "delta", "entry of the ledger")
    assert run.name.split("/")[1] in shown
    page.open(usual.artifact_page(f"gate-{WARD}"))
    assert "FAILED" not in page.wait_for("Gate of", "passed")
    page.open(usual.artifact_page(f"budget-{WARD}"))
    page.wait_for("lifetime cap", "Releases left")

    page.open(usual.artifact_page(f"report-{WARD}"))
    page.wait_for("Report of")
    page.open(page.evaluate("[...document.links].find(a => a.href.endsWith('report.html')).href"))
    report = page.wait_for(run.name.split("/")[1], "epsilon")
    assert re.search(r"patient", report)
    assert page.hosts() <= {"127.0.0.1", "localhost"}
