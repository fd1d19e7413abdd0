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
def waiting(usual, contents):
    """Return a release that waits, with the run that says so."""
    usual.change_source(DECIDED, next(contents))
    measured = usual.wait_for_run(usual.request("measure", "on-demand", dataset=DECIDED))
    assert measured.state == "COMPLETED", measured
    usual.wait_until_quiet()
    run = usual.latest_run("publish", "on-seal")
    assert (run.state, run.state_name) == ("COMPLETED", "Waiting"), run
    assert run.name == measured.name
    return measured.name.split("/")[1]


def decision_of(usual, release_id, person, *, decision="approve"):
    """Return what a person's own program signs, which refuses nobody."""
    manifest = Manifest.from_bytes(
        (usual.home / "pending" / release_id / MANIFEST_FILE).read_bytes()
    )
    statement = ApprovalStatement.of(manifest, decision=decision, reason="as agreed")
    key = SigningKey.read(usual.people / f"{person}.key")
    return Approval.signed(key, statement=statement).to_bytes().decode()


def sign(usual, release_id, person):
    """Return how the command of a person ends that has a copy of the folder."""
    return usual.try_command(
        "sign", str(usual.home / "pending" / release_id), "--decision", "approve",
        "--key", str(usual.people / f"{person}.key"), "--reason", "as agreed",
    )  # fmt: skip


def carry_out(usual, release_id, decision):
    run_id = usual.request(
        "publish", "on-demand", dataset=DECIDED, release_id=release_id, decision=decision
    )
    return usual.wait_for_run(run_id)


@pytest.mark.parametrize("person", ["requester", "stranger"])
def test_whoever_may_not_decide_is_refused(usual, waiting, person):
    ended = carry_out(usual, waiting, decision_of(usual, waiting, person))
    assert ended.state == "FAILED", ended
    assert usual.entries()[waiting].state is EntryState.SEALED
    assert not (usual.releases / DECIDED / waiting).exists()
    # The command that signs refuses the requester by itself.
    signed = sign(usual, waiting, "requester")
    assert signed.returncode == 2
    assert "APPROVER_IS_REQUESTER" in signed.stderr


def test_an_officer_approves(usual, waiting):
    signed = sign(usual, waiting, "officer").stdout.strip()
    ended = carry_out(usual, waiting, signed)
    assert ended.state == "COMPLETED", ended
    assert usual.entries()[waiting].state is EntryState.PUBLISHED
    assert SigningKey.read(usual.people / "officer.key").key_id in usual.verify(waiting)
    assert carry_out(usual, waiting, signed).state == "FAILED"
    assert usual.damages() == []
