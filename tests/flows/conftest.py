"""The orchestrator's logging is set up before a test captures the standard streams."""

import os

import desks
import pytest

from tasks.execution import runtime


@pytest.fixture(scope="session", autouse=True)
def logging_of_prefect():
    """Let Prefect replace the logging handlers while the streams are those of the session.

    It closes every handler of the process when it starts its first run, and that of absl, which
    comes with jax, then closes its stream unless it is the present ``sys.stderr``. Within a test
    that captures the streams, it is not: pytest would lose its own.
    """
    from prefect.logging.configuration import setup_logging

    setup_logging()


@pytest.fixture
def desk(tmp_path, capsys, monkeypatch):
    """A desk whose releases lie in the folder `releases` beside its site file."""
    desks.set_environment(monkeypatch, tmp_path / "releases")
    monkeypatch.chdir(tmp_path)
    umask = os.umask(0o022)
    yield desks.Desk(tmp_path, capsys)
    os.umask(umask)


@pytest.fixture
def before_the_flow(monkeypatch):
    """Let nothing past the point where the orchestrator would be started."""

    def started(settings):
        raise AssertionError("the orchestrator was started")

    monkeypatch.setattr(runtime, "configure_prefect", started)
