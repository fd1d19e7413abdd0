"""Session-wide environment: a Prefect of the tests' own, silent and away from any home."""

import atexit
import contextlib
import importlib
import os
import shutil
import tempfile
import threading
from pathlib import Path

import prefect_database
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from storage.settings import Settings
from tasks.execution.runtime import configure_prefect

_HOME = Path(tempfile.mkdtemp(prefix="clustmix-tests-"))
# Registered before Prefect registers the stop of its server, hence run after it.
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)

# The processes of one run of the tests compile the same programs again and again; they share what
# is compiled. A largest size makes JAX lock the folder, so that no process reads half an entry.
_COMPILED = "JAX_COMPILATION_CACHE_DIR"
if _COMPILED not in os.environ:
    os.environ[_COMPILED] = tempfile.mkdtemp(prefix="clustmix-compiled-")
    atexit.register(shutil.rmtree, os.environ[_COMPILED], ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**33)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

# They share the empty database of Prefect as well (`prefect_database`).
if prefect_database.VARIABLE not in os.environ:
    os.environ[prefect_database.VARIABLE] = tempfile.mkdtemp(prefix="clustmix-prefect-")
    atexit.register(shutil.rmtree, os.environ[prefect_database.VARIABLE], ignore_errors=True)

# Copies of public tables, where they lie beside the checkout; tests that need others are skipped.
_COPIES = Path(__file__).resolve().parents[2] / "shared" / "data"
if _COPIES.is_dir():
    os.environ.setdefault("CLUSTMIX_DATA_DIR", str(_COPIES))

# A server named by the developer's environment must not receive the runs of tests.
os.environ.pop("PREFECT_API_URL", None)
configure_prefect(Settings(home=_HOME))
# Its logging closes the streams of loggers that were set up before it, among them pytest's own.
importlib.import_module("prefect.main")


def pytest_sessionstart(session):
    """Make the database while the processes of this run collect their tests."""
    if session.config.getoption("numprocesses", None):
        threading.Thread(target=prefect_database.make, daemon=True).start()


@pytest.fixture(scope="session", autouse=True)
def database_of_this_process():
    """Put the database in place, where many tests run: by itself, a test may need none."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        prefect_database.put_database(Settings(home=_HOME).prefect_home)


@pytest.fixture(scope="session", autouse=True)
def nowhere():
    """Work in an empty folder: `releases`, `landing` and `.clustmix` of the checkout stay unseen.

    Their places are relative to the working directory where no variable names others.
    """
    folder = _HOME / "nowhere"
    folder.mkdir()
    with contextlib.chdir(folder):
        yield


@pytest.fixture(autouse=True)
def environment_as_it_was(nowhere):
    """Take back what a command sets that finds a server, and tells Prefect and Dask of it.

    And the umask: tests set it, and a workspace closes it for its process.
    """

    def ours():
        return {
            k: v for k, v in os.environ.items() if k.startswith(("PREFECT", "DASK", "CLUSTMIX"))
        }

    before, umask = ours(), os.umask(0o022)
    yield
    os.umask(umask)
    for name in ours().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


# A test must not fail because the machine is busy: speed is measured by the benchmarks. CI judges
# every change by the same examples; new ones are looked for where somebody can mend what they find.
hypothesis_settings.register_profile(
    "clustmix",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
hypothesis_settings.load_profile("clustmix")
