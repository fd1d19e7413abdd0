import forced_installation as forced
import pytest


@pytest.fixture(scope="session")
def forkserver():
    """Processes that start with everything imported and nothing begun."""
    return forced.processes()
