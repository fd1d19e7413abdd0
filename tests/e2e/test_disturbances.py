from contextlib import suppress
from ipaddress import ip_address

import psutil
import pytest
from served_installation import wait_until

from flows.supervisor import Supervisor
from privacy.ledger import EntryState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_a_run_that_is_killed_after_its_draw_is_charged_once(installation, told):
    content = 300
    known = set(installation.entries())
    with installation.holding() as wait:
        installation.arrive("ward", content)
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
    installation.arrive("ward", content)
    (anew,) = wait_until(
        lambda: set(installation.entries()) - {*known, release_id}, installation.states
    )
    installation.wait_for_release(anew)
    assert set(installation.drawn()[anew].values()) == {1}
    installation.verify(anew)
    installation.wait_until_quiet()
    assert installation.damages() + installation.leftovers() == []
    # What the worker gave its run, a password among it, is below the server.
    assert list((installation.folder / "tmp").iterdir()) == []


def test_dead_parts_are_named_and_a_small_table_needs_no_cluster(installation, told):
    supervisor, cluster = Supervisor(installation.home / "server"), ("scheduler", "cpu-workers")
    known = set(installation.entries())
    try:
        for part in cluster:
            supervisor._ask("stopProcess", part)
        installation.arrive("ward", 301)
        installation.wait_for_new_release(known)
        told.wait_for(lambda body: "part.down scheduler" in body)
        failed = installation.try_command("status")
        assert failed.returncode == 1
        assert "FAIL  scheduler" in " ".join(failed.stdout.split("\n"))
        supervisor._ask("stopProcess", "orchestrator")
        told.wait_for(lambda body: "part.down orchestrator" in body)
    finally:
        for part in (*cluster, "orchestrator"):
            supervisor._ask("startProcess", part)
        installation.wait_until_answers()
    told.wait_for(lambda body: "part.up orchestrator" in body)
    installation.wait_until_quiet()


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
