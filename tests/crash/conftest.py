import signal

import forced_installation as forced
import pytest


@pytest.fixture
def installation(tmp_path):
    return forced.Installation(tmp_path / "installation")


@pytest.fixture
def dies():
    """Return a way to run a function in a process that is expected to be killed."""

    def run(target, *arguments):
        process = forced.processes().Process(target=target, args=arguments)
        process.start()
        process.join(200)
        assert process.exitcode == -signal.SIGKILL, arguments

    return run
