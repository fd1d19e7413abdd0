"""Two installations that run side by side, shared by the tests that disturb neither."""

from contextlib import ExitStack

import pytest
import webhook_receiver
from hospital import prepare
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
    """Return the installation of a name; it is started when it is first asked for."""
    started = {}
    with ExitStack() as stack:

        def installation(name):
            if name not in started:
                folder = tmp_path_factory.mktemp(name)
                made = running(folder, prepare, CLUSTMIX_NOTIFY_URL=told.url)
                started[name] = stack.enter_context(made)
            return started[name]

        yield installation


@pytest.fixture
def installation(hospital):
    """Return the first installation."""
    return hospital("first")
