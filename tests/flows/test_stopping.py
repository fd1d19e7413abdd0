import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from made_up_entries import enter
from waiting import until

from flows.supervisor import _lives
from privacy.ledger import EntryState

PROGRAM = """
import subprocess, sys, time
from flows.cli import stopping

with stopping.stoppable(as_json=sys.argv[1] == "json"):
    stopping.note_release(sys.argv[2])
    child = "import time; print('works', flush=True); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", child])
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            print("a library says a lot", file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "nothing is charged"),
        (EntryState.RESERVED, "nothing is charged"),
        (EntryState.EXECUTING, "its charge stands; the next release needs --again and pays anew"),
        (EntryState.SEALED, "its charge stands; without --new-draw the command goes on at no cost"),
    ],
)
def test_a_command_that_does_not_listen_ends_all_the_same(site, state, said):
    """A terminal sends the interrupt to every process of the group; no child says anything."""
    release_id = "r-20261127-00000000" if state is None else enter(site, state).release_id
    form = "json" if state is EntryState.SEALED else "words"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, form, release_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == "works\n"
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - began < 5
    assert err == f"clustmix: STOPPED: stopped from the keyboard; {said}\n"
    assert process.returncode == 1
    if form == "json":
        assert json.loads(out)["error"] == "STOPPED"
    until(lambda: not any(map(_lives, members(process.pid))))


def members(group):
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group:
                yield process
