"""Requests to a ledger from processes of their own, for tests that race them or kill them.

As a script it reads one JSON object from standard input, reserves one release after the other and
says so after each, in one JSON object per line.
"""

import json
import os
import resource
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from privacy.charges import CHARGE_FIELDS, Caps, Charge  # noqa: E402
from privacy.errors import ClustMixError  # noqa: E402
from privacy.ledger import GENESIS_HASH, EntryState, LedgerEntry  # noqa: E402
from privacy.parameters import Adjacency  # noqa: E402
from storage.ledger.ledger_db import LedgerDatabase  # noqa: E402

DIGEST = "ab" * 32
OFFICERS = ("0" * 15 + "1", "0" * 15 + "2")
REQUESTER = "0" * 15 + "9"


def charge(number, **changes):
    """Return a charge of rho 0.1 under a cap of 0.3; every number is another request."""
    arguments = {
        "cohort": "adult",
        "dataset": "adult-yearly",
        "release_id": f"r-{number}",
        "request_key": f"{number:064x}",
        "rho": Decimal("0.1"),
        "epsilon": 1.0,
        "delta": 1e-6,
        "adjacency": Adjacency.ADD_REMOVE,
        "unit": "one patient",
        "caps": Caps(lifetime_rho=Decimal("0.3")),
        "partition": None,
        "owner": "site-1",
        "requester": None,
        "needs_approval": False,
    }
    return Charge(**{**arguments, **changes})


def row_of(paid, state="reserved", *, name="", recorded_at="2025-01-01T00:00:00.000Z"):
    """Return a row of a journal that is the first of its entry."""
    return LedgerEntry(
        sequence=1,
        entry_id=name or paid.release_id,
        state=EntryState(state),
        **{field: getattr(paid, field) for field in CHARGE_FIELDS},
        digest=None,
        note=None,
        signers=(),
        recorded_at=recorded_at,
        previous_hash=GENESIS_HASH,
        hash=GENESIS_HASH,
    )


def location(text):
    return text if "://" in text else Path(text)


def race(ledger, jobs):
    from forced_installation import processes

    gate, said = processes().Barrier(len(jobs)), processes().SimpleQueue()
    for number, job in enumerate(jobs):
        processes().Process(target=_race, args=(gate, said, str(ledger), number, job)).start()
    outcomes = dict(said.get() for _ in jobs)
    return [outcomes[number] for number in range(len(jobs))]


def _race(gate, said, ledger, number, job):
    gate.wait()
    said.put((number, _do(LedgerDatabase(location(ledger)), job)))


def stream(ledger, **how):
    """Start a process that reserves and prints one line for each answer.

    It ends after so many ``grants`` or ``attempts``, or at the first refusal unless it is to
    ``keep_going``; ``bytes_per_file`` is the most that it can write.
    """
    usual = {"grants": 10**6, "attempts": 10**6, "first": 0, "cap": "1000", "head_file": None}
    usual |= {"bytes_per_file": None, "keep_going": False}
    request = {"ledger": str(ledger), **usual, **how}
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(request, default=str))
    process.stdin.close()
    process.stdin = None
    return process


def _do(ledger, job):
    try:
        if job["kind"] == "reserve":
            caps = Caps(lifetime_rho=Decimal(job["cap"]))
            wanted = charge(job["request"], release_id=job["release_id"], caps=caps)
            reservation = ledger.reserve(wanted, new_draw=job.get("new_draw", False))
            outcome = "created" if reservation.created else "repeated"
            return {"outcome": outcome, "entry": reservation.entry.entry_id}
        details = {"expected_from": EntryState(job["from"]), "digest": job.get("digest")}
        entry = ledger.transition(job["entry"], EntryState(job["to"]), **details)
        return {"outcome": entry.state.value, "entry": entry.entry_id}
    except ClustMixError as error:
        return {"outcome": error.code, "entry": None}


def _stream(request):
    head_file = request["head_file"] and Path(request["head_file"])
    ledger = LedgerDatabase(location(request["ledger"]), head_file=head_file)
    if request["bytes_per_file"] is not None:
        limit = request["bytes_per_file"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    granted = 0
    for number in range(request["first"], request["first"] + request["attempts"]):
        answer = {"release_id": f"r-{number}"}
        try:
            wanted = charge(number, caps=Caps(lifetime_rho=Decimal(request["cap"])))
            answer["granted"] = ledger.reserve(wanted).created
        except ClustMixError as error:
            answer |= {"granted": False, "code": error.code}
        os.write(1, (json.dumps(answer) + "\n").encode())
        granted += answer["granted"]
        if granted == request["grants"]:
            return
        if not answer["granted"]:
            if not request["keep_going"]:
                return
            time.sleep(0.2)  # a server that is down answers at once


if __name__ == "__main__":
    _stream(json.load(sys.stdin))
