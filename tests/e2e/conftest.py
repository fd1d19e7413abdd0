"""Two installations that run side by side, shared by the tests that disturb neither."""

from contextlib import ExitStack

import process_patches
import pytest
import webhook_receiver
from hospital import no_postgres, prepare, usual_database
from served_installation import running


@pytest.fixture(scope="session")
def say(pytestconfig):
    """Print a line that is not captured."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def line(text):
        with capture.global_and_fixture_disabled():
            print(f"\n  {text}", flush=True)  # noqa: T201 -- the figures are the result

    return line


@pytest.fixture(scope="session")
def told():
    """Return the address that is told of what goes wrong."""
    with webhook_receiver.listening() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def hospital(tmp_path_factory, told):
    """Return the installation of a database; it is started when it is first asked for."""
    started = {}
    with ExitStack() as stack:

        def installation(database):
            if database == "postgres" and (reason := no_postgres()):
                pytest.skip(reason)
            if database not in started:
                settings = {"CLUSTMIX_NOTIFY_URL": told.url}
                if database == "sqlite":
                    settings[process_patches.NO_POSTGRES] = "1"
                folder = tmp_path_factory.mktemp(database)
                started[database] = stack.enter_context(running(folder, prepare, **settings))
            return started[database]

        yield installation


@pytest.fixture(params=["sqlite", "postgres"])
def installation(request, hospital):
    """Return the installation of each database in turn."""
    return hospital(request.param)


@pytest.fixture
def usual(hospital):
    """Return the installation with the database that a start of the server chooses here."""
    return hospital(usual_database())
