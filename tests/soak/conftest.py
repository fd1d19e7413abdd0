"""Installations with either ledger, moments drawn at random, and a line that is always seen."""

import os

import forced_installation as forced
import numpy as np
import postgres_server
import pytest

SEED = int(os.environ.get("SOAK_SEED", int.from_bytes(os.urandom(4))))
"""Other moments every time, unless those of an earlier run are wanted again."""


@pytest.fixture
def say(capsys):
    """Print a line that is not captured."""

    def line(text):
        with capsys.disabled():
            print(f"\n  {text}", flush=True)  # noqa: T201 -- the figures are the result

    return line


@pytest.fixture
def rng(request, say):
    """Return the generator of this test; its seed is printed."""
    say(f"{request.node.name}: SOAK_SEED={SEED}")
    return np.random.default_rng([SEED, *request.node.name.encode()])


@pytest.fixture(params=["sqlite", "postgres"])
def install(request, tmp_path):
    """Return a maker of installations with a ledger in a file, or in a database of its own."""
    server = postgres_server.server() if request.param == "postgres" else None

    def make(name, *, draws=None):
        url = None if server is None else server.url(server.new_database())
        return forced.Installation(tmp_path / name, ledger_url=url, draws=draws)

    return make
