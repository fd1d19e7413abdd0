"""Parts that end in the middle of a release: nothing is lost, nothing is drawn twice."""

from contextlib import suppress
from ipaddress import ip_address

import psutil
import pytest
from hospital import MIXED, WARD
from served_installation import wait_until

from privacy.ledger import EntryState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def contents():
    return iter(range(300, 400))


def in_the_middle(usual, dataset, content):
    """Begin a release of another table; return its run and its id once it has drawn."""
    usual.change_source(dataset, content)
    run_id = usual.request("measure", "on-demand", dataset=dataset)
    name = wait_until(
        lambda: next((r.name for r in usual.flow_runs() if r.id == run_id and "/" in r.name), ""),
        lambda: usual.run(run_id),
    )
    return run_id, name.split("/")[1]


def assert_drawn_once_and_published(usual, release_id):
    usual.wait_for_release(release_id)
    assert set(usual.drawn()[release_id].values()) == {1}
    usual.verify(release_id)
    usual.wait_until_quiet()
    assert usual.damages() + usual.leftovers() == []


def test_a_dask_worker_is_killed_between_two_draws(usual, contents):
    with usual.holding() as wait:
        run_id, release_id = in_the_middle(usual, MIXED, next(contents))
        wait(release_id)
        killed = usual.dask_workers()
        assert killed
        for worker in killed:
            worker.kill()
    ended = usual.wait_for_run(run_id)
    assert ended.state == "COMPLETED", ended
    assert_drawn_once_and_published(usual, release_id)
    wait_until(usual.dask_workers, lambda: "no worker")


def test_a_run_that_is_killed_after_its_draw_is_charged_once(usual, told, contents):
    content = next(contents)
    known = set(usual.entries())
    with usual.holding() as wait:
        usual.arrive(WARD, content)
        (release_id,) = wait_until(lambda: set(usual.entries()) - known, usual.states)
        wait(release_id)
        for process in usual.run_processes():
            process.kill()
    # The charge stands, the operator hears of it, and nobody pays again without a person.
    told.wait_for(lambda body: "release.burned" in body and release_id in body, timeout_seconds=240)
    assert usual.entries()[release_id].state is EntryState.BURNED
    withheld = wait_until(
        lambda: [r for r in usual.flow_runs() if "ARRIVAL_BURNED" in r.message],
        lambda: usual.flow_runs()[:5],
    )
    assert withheld[0].state_name == "Withheld", withheld
    usual.wait_until_quiet()
    assert set(usual.entries()) == {*known, release_id}
    assert usual.damages() + usual.leftovers() == []
    usual.arrive(WARD, content)
    (anew,) = wait_until(lambda: set(usual.entries()) - {*known, release_id}, usual.states)
    assert_drawn_once_and_published(usual, anew)


def test_nothing_listens_beyond_this_machine(usual):
    others = set()
    for process in usual.processes():
        with suppress(psutil.Error):
            others |= {
                (process.name(), *one.laddr)
                for one in process.net_connections(kind="inet")
                if one.status == psutil.CONN_LISTEN and not ip_address(one.laddr.ip).is_loopback
            }
    assert others == set()
