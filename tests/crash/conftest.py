import multiprocessing

import pytest


@pytest.fixture(scope="session")
def forkserver():
    """Processes that start with everything imported and nothing begun."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["flows.release", "tasks.gates.expectations", "great_expectations", "jax", "yaml", "pandas"]
    )
    return context
