"""One empty Prefect database for every installation of a run of the tests.

Prefect makes its tables by some hundred migrations, which take it nine seconds of processor time.
The first installation of a run makes them; the others start from a copy.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tasks.execution.runtime import safe_environment

VARIABLE = "TESTS_PREFECT_DATABASES"
"""Folder that the processes of one run share; `tests/conftest.py` sets it."""


def put_database(prefect_home):
    """Put an empty database into the home of a Prefect server that is to be started."""
    database = make()
    prefect_home.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copy(database, prefect_home / "prefect.db")


def make():
    """Make the empty database of this run, once; wait where another process is at it."""
    kept = Path(os.environ[VARIABLE])
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (kept / "prefect.db").exists():
            _migrate(kept)
    return kept / "prefect.db"


def _migrate(kept):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "CLUSTMIX"))}
    with tempfile.TemporaryDirectory(dir=kept) as home:
        subprocess.run(
            [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"],
            env={**inherited, **safe_environment(), "PREFECT_HOME": home},
            capture_output=True,
            check=True,
            timeout=300,
        )
        # Closed by its only user: nothing is left in a journal beside it.
        assert not (Path(home) / "prefect.db-wal").exists()
        Path(home, "prefect.db").rename(kept / "prefect.db")
