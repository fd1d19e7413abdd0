"""The orchestrator's logging is set up before a test captures the standard streams."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def logging_of_prefect():
    """Let Prefect replace the logging handlers while the streams are those of the session.

    It closes every handler of the process when it starts its first run, and that of absl, which
    comes with jax, then closes its stream unless it is the present ``sys.stderr``. Within a test
    that captures the streams, it is not: pytest would lose its own.
    """
    from prefect.logging.configuration import setup_logging

    setup_logging()
