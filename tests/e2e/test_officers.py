"""An officer decides through the server; the signature proves who it was, not the server."""

import pytest
from hospital import DECIDED

from privacy.ledger import EntryState
from storage.keys.keys import SigningKey
from storage.releases.manifest import MANIFEST_FILE, Manifest
from storage.releases.signatures import Approval, ApprovalStatement

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def contents():
    """Number tables: every release is of another one."""
    return iter(range(100, 200))


@pytest.fixture
def waiting(installation, contents):
    """Return a release that waits, with the run that says so."""
    installation.change_source(DECIDED, next(contents))
    measured = installation.wait_for_run(
        installation.request("measure", "on-demand", dataset=DECIDED)
    )
    assert measured.state == "COMPLETED", measured
    installation.wait_until_quiet()
    run = installation.latest_run("publish", "on-seal")
    assert (run.state, run.state_name) == ("COMPLETED", "Waiting"), run
    assert run.name == measured.name
    return measured.name.split("/")[1]


def decision_of(installation, release_id, person, *, decision="approve"):
    """Return what a person's own program signs, which refuses nobody."""
    manifest = Manifest.from_bytes(
        (installation.home / "pending" / release_id / MANIFEST_FILE).read_bytes()
    )
    statement = ApprovalStatement.of(manifest, decision=decision, reason="as agreed")
    key = SigningKey.read(installation.people / f"{person}.key")
    return Approval.signed(key, statement=statement).to_bytes().decode()


def sign(installation, release_id, person):
    """Return how the command of a person ends that has a copy of the folder."""
    return installation.try_command(
        "sign", str(installation.home / "pending" / release_id), "--decision", "approve",
        "--key", str(installation.people / f"{person}.key"), "--reason", "as agreed",
    )  # fmt: skip


def carry_out(installation, release_id, decision):
    run_id = installation.request(
        "publish", "on-demand", dataset=DECIDED, release_id=release_id, decision=decision
    )
    return installation.wait_for_run(run_id)


@pytest.mark.parametrize("person", ["requester", "stranger"])
def test_whoever_may_not_decide_is_refused(installation, waiting, person):
    ended = carry_out(installation, waiting, decision_of(installation, waiting, person))
    assert ended.state == "FAILED", ended
    assert installation.entries()[waiting].state is EntryState.SEALED
    assert not (installation.releases / DECIDED / waiting).exists()
    # The command that signs refuses the requester by itself.
    signed = sign(installation, waiting, "requester")
    assert signed.returncode == 2
    assert "APPROVER_IS_REQUESTER" in signed.stderr


def test_an_officer_approves(installation, waiting):
    signed = sign(installation, waiting, "officer").stdout.strip()
    ended = carry_out(installation, waiting, signed)
    assert ended.state == "COMPLETED", ended
    assert installation.entries()[waiting].state is EntryState.PUBLISHED
    assert SigningKey.read(installation.people / "officer.key").key_id in installation.verify(
        waiting
    )
    assert carry_out(installation, waiting, signed).state == "FAILED"
    assert installation.damages() == []
