"""The ledger under force, again and again: a grant that is not charged is a loss."""

import json
import os
import signal
import sys
import time
from decimal import Decimal

import ledger_backends
import numpy as np
import postgres_server
import pytest
from ledger_requests import stream

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

both = pytest.mark.parametrize("name", ledger_backends.BOTH)
SEED = 20250101
TENTH = Decimal("0.1")


@pytest.fixture
def report(request, capfd):
    def say(text):
        with capfd.disabled():
            sys.stdout.write(f"\n{request.node.name}: {text}\n")

    return say


def fresh(name, folder):
    folder.mkdir()
    return ledger_backends.backend(name, folder)


def granted_by(lines):
    answers = [json.loads(line) for line in lines if line.endswith("\n")]
    return {answer["release_id"] for answer in answers if answer["granted"]}


def lost(ledger, granted):
    """Return how many grants have no charge; the journal must verify and the sum must be right."""
    ledger.verify()
    charged = {row.release_id for row in ledger.entries()}
    assert ledger.balance("adult").spent_rho == len(charged) * TENTH
    return len(granted - charged)


@both
def test_killed_at_200_random_moments(name, tmp_path, report):
    delays = np.random.default_rng(SEED).uniform(0, 0.3, size=(10, 20))
    grants = losses = unanswered = 0
    for block, of_block in enumerate(delays):
        folder = tmp_path / str(block)
        backend, head_file = fresh(name, folder), folder / "releases" / "head"
        ledger = backend.open(head_file=head_file)
        granted = set()
        for number, delay in enumerate(of_block):
            first = number * 10**6
            with stream(backend.location, head_file=head_file, first=first) as worker:
                assert worker.stdout is not None
                # From the first answer on: before it the process only starts.
                lines = [worker.stdout.readline()]
                time.sleep(delay)
                os.kill(worker.pid, signal.SIGKILL)
                lines += worker.stdout.readlines()
            granted |= granted_by(lines)
            losses += lost(ledger, granted)
        grants += len(granted)
        unanswered += len(ledger.entries()) - len(granted)
    report(f"200 kills, {grants} grants, {unanswered} charged without an answer, {losses} losses")
    assert losses == 0
    assert unanswered <= 200


def test_a_server_that_crashes_20_times(tmp_path, report):
    delays = np.random.default_rng(SEED).uniform(0, 1.0, size=20)
    backend = fresh("postgres", tmp_path / "ledger")
    server = postgres_server.server()
    ledger = backend.open()
    workers = [
        stream(backend.location, keep_going=True, first=n * 10**6, cap="900000") for n in range(3)
    ]
    lines = []
    try:
        for worker in workers:
            assert worker.stdout is not None
            lines.append(worker.stdout.readline())
        for delay in delays:
            time.sleep(delay)
            server.stop("immediate")
            server.start()
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            with worker:
                assert worker.stdout is not None
                lines += worker.stdout.readlines()
    granted = granted_by(lines)
    losses = lost(ledger, granted)
    unanswered = len(ledger.entries()) - len(granted)
    report(
        f"20 crashes under 3 writers, {len(granted)} grants, {unanswered} charged without an "
        f"answer, {losses} losses"
    )
    assert losses == 0
    assert unanswered <= 3 * 21
    assert granted
