"""A hundred tables at once: what the budget pays for is released, the rest is refused."""

import time
from collections import Counter

import pytest
from served_installation import running

from privacy.calibration import gdp_rho
from privacy.ledger import EntryState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2_400)]

DATASET = "flooded"
N_ARRIVALS, N_CONTENTS = 100, 50
"""Every table is announced twice, under two names."""

N_GRANTED = 4
"""Releases that the budget pays for."""


def prepare(installation):
    """Declare the smallest lifetime epsilon that pays for the releases of epsilon 1."""
    cap, charge = 1.0, gdp_rho(epsilon=1.0, delta=1e-5)
    while gdp_rho(epsilon=cap, delta=1e-5) < N_GRANTED * charge:
        cap *= 1.001
    installation.add_site(DATASET, lifetime_epsilon=cap)


def test_a_burst_ends_with_what_the_budget_allows(tmp_path, say):
    with running(tmp_path / "burst", prepare) as installation:
        begin = time.monotonic()
        for number in range(N_ARRIVALS):
            installation.arrive(DATASET, 1_000 + number % N_CONTENTS, name=f"burst-{number}")
        installation.wait_until_quiet(seconds=2_000)
        runs = [run for run in installation.flow_runs() if run.started]
        ends = Counter(f"{run.flow} {run.state_name}" for run in runs)
        say(f"{N_ARRIVALS} arrivals in {time.monotonic() - begin:.0f} s: {dict(ends)}")
        # Exactly what the budget pays for was drawn and published; the rest was never measured.
        entries = installation.entries()
        assert installation.states() == {EntryState.PUBLISHED.value: N_GRANTED}
        assert set(installation.drawn()) == set(entries)
        for release_id in entries:
            installation.verify(release_id)
        assert set(ends) == {"measure Completed", "measure Refused", "publish Completed"}
        assert ends["measure Completed"] + ends["measure Refused"] >= N_ARRIVALS
        assert installation.damages() + installation.leftovers() == []
