"""Two installations that run side by side, shared by the tests that disturb neither."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import process_patches
import pytest
import webhook_receiver
from hospital import no_postgres, prepare, usual_database
from served_installation import ServedInstallation, running


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Print a line that is not captured."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def line(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  {text}", flush=True)  # noqa: T201 -- the figures are the result

    return line


@pytest.fixture(scope="session")
def told() -> Iterator[webhook_receiver.WebhookReceiver]:
    """Return the address that is told of what goes wrong."""
    with webhook_receiver.listening() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for pictures; E2E_SCREENSHOTS names one that stays."""
    folder = os.environ.get("E2E_SCREENSHOTS")
    return tmp_path_factory.mktemp("screenshots") if folder is None else Path(folder)


@pytest.fixture(scope="session")
def hospital(
    tmp_path_factory: pytest.TempPathFactory, told: webhook_receiver.WebhookReceiver
) -> Iterator[Callable[[str], ServedInstallation]]:
    """Return the installation of a database; it is started when it is first asked for."""
    started: dict[str, ServedInstallation] = {}
    with ExitStack() as stack:

        def installation(database: str) -> ServedInstallation:
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
def installation(
    request: pytest.FixtureRequest, hospital: Callable[[str], ServedInstallation]
) -> ServedInstallation:
    """Return the installation of each database in turn."""
    return hospital(request.param)


@pytest.fixture
def usual(hospital: Callable[[str], ServedInstallation]) -> ServedInstallation:
    """Return the installation with the database that a start of the server chooses here."""
    return hospital(usual_database())
