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


def in_the_middle(installation, dataset, content):
    """Begin a release of another table; return its run and its id once it has drawn."""
    installation.change_source(dataset, content)
    run_id = installation.request("measure", "on-demand", dataset=dataset)
    name = wait_until(
        lambda: next(
            (r.name for r in installation.flow_runs() if r.id == run_id and "/" in r.name), ""
        ),
        lambda: installation.run(run_id),
    )
    return run_id, name.split("/")[1]


def assert_drawn_once_and_published(installation, release_id):
    installation.wait_for_release(release_id)
    assert set(installation.drawn()[release_id].values()) == {1}
    installation.verify(release_id)
    installation.wait_until_quiet()
    assert installation.damages() + installation.leftovers() == []


def test_a_dask_worker_is_killed_between_two_draws(installation, contents):
    with installation.holding() as wait:
        run_id, release_id = in_the_middle(installation, MIXED, next(contents))
        wait(release_id)
        killed = installation.dask_workers()
        assert killed
        for worker in killed:
            worker.kill()
    ended = installation.wait_for_run(run_id)
    assert ended.state == "COMPLETED", ended
    assert_drawn_once_and_published(installation, release_id)
    wait_until(installation.dask_workers, lambda: "no worker")


def test_a_run_that_is_killed_after_its_draw_is_charged_once(installation, told, contents):
    content = next(contents)
    known = set(installation.entries())
    with installation.holding() as wait:
        installation.arrive(WARD, content)
        (release_id,) = wait_until(lambda: set(installation.entries()) - known, installation.states)
        wait(release_id)
        for process in installation.run_processes():
            process.kill()
    # The charge stands, the operator hears of it, and nobody pays again without a person.
    told.wait_for(lambda body: "release.burned" in body and release_id in body, timeout_seconds=240)
    assert installation.entries()[release_id].state is EntryState.BURNED
    withheld = wait_until(
        lambda: [r for r in installation.flow_runs() if "ARRIVAL_BURNED" in r.message],
        lambda: installation.flow_runs()[:5],
    )
    assert withheld[0].state_name == "Withheld", withheld
    installation.wait_until_quiet()
    assert set(installation.entries()) == {*known, release_id}
    assert installation.damages() + installation.leftovers() == []
    installation.arrive(WARD, content)
    (anew,) = wait_until(
        lambda: set(installation.entries()) - {*known, release_id}, installation.states
    )
    assert_drawn_once_and_published(installation, anew)


def test_nothing_listens_beyond_this_machine(installation):
    others = set()
    for process in installation.processes():
        with suppress(psutil.Error):
            others |= {
                (process.name(), *one.laddr)
                for one in process.net_connections(kind="inet")
                if one.status == psutil.CONN_LISTEN and not ip_address(one.laddr.ip).is_loopback
            }
    assert others == set()
