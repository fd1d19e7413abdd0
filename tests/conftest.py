"""Session-wide environment: a Prefect of the tests' own, silent and away from any home."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from storage.settings import Settings
from tasks.runtime import configure_prefect

_HOME = Path(tempfile.mkdtemp(prefix="clustmix-tests-"))
# Registered before Prefect registers the stop of its server, hence run after it.
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)

# A server named by the developer's environment must not receive the runs of tests.
os.environ.pop("PREFECT_API_URL", None)
configure_prefect(Settings(home=_HOME))
