"""Two years of monthly releases by the schedule of a site file, with a clock of whole months."""

import os
import time
from collections import Counter
from functools import partial
from pathlib import Path

import canary_entries as canaries
import numpy as np
import process_patches
import pytest
from served_installation import running, wait_until

from privacy.ledger import EntryState

MINUTES = 8
ENTRY = {"by": "entry", "column": "admitted", "every": "month"}
_DONE = (EntryState.PUBLISHED, EntryState.BURNED)
_UNDERWAY = (EntryState.EXECUTING, EntryState.SEALED, EntryState.APPROVED)


def put(path, text):
    """Put a file in the place of another at once."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_years_by_the_schedule_read_nobody_twice_and_cost_one_release(tmp_path_factory, capsys):
    """Every minute is a run of the schedule; of every third month the first run is killed."""
    stays, schema = canaries.two_years()
    folder, ends = tmp_path_factory.mktemp("years"), Counter()
    asked = {
        "schema": schema,
        "privacy": {"epsilon": 200.0},
        "lifetime_epsilon": 500.0,
        "privacy_unit": {"partition": ENTRY},
        "publish": {"pool": {"last": 12}},
        "arrival": None,
        "schedule": {"cron": "* * * * *", "timezone": "UTC"},
    }

    def prepare(installation):
        path = installation.add_site("years", **asked)
        months(installation, 0)
        assert path.is_file()

    def months(installation, place):
        """Deliver everything that is known at the end of a month, and set the date."""
        known = stays[stays["admitted"] < f"{canaries.MONTHS[place]}-99"]
        put(installation.tables / "years" / "cohort.csv", known.to_csv(index=False))
        year, month = divmod(place + 1, 12)
        put(folder / process_patches.TODAY, f"{2023 + year}-{month + 1:02d}-01T06:00:00")

    def of(installation, period, states=(*_DONE, *_UNDERWAY)):
        entries = installation.entries().values()
        return [e for e in entries if e.partition.part == period and e.state in states]

    with running(folder, prepare) as installation:
        for place, period in enumerate(canaries.MONTHS):
            months(installation, place)
            if place % 3 == 1:
                wait_until(partial(of, installation, period), period, seconds=60 * MINUTES)
                time.sleep(np.random.default_rng().uniform(0.0, 1.0))
                for process in installation.run_processes():
                    process.kill()
                ends["killed"] += 1

            [entry] = wait_until(
                partial(of, installation, period, states=_DONE),
                installation.states,
                seconds=60 * MINUTES,
            )
            ends[entry.state.value] += 1
            if entry.state is EntryState.BURNED:  # a person decides to read those who are left
                site = str(installation.sites / "years.yaml")
                installation.command("release", site, "--period", period, "--again")
        installation.wait_until_quiet()
        entries, by_schedule = installation.entries(), installation.flow_runs()
        pools = [
            path
            for path in Path(installation.releases / "years").iterdir()
            if path.name not in entries and (path / "manifest.json").is_file()
        ]
        states = Counter(e.state.value for e in entries.values())
        started = Counter(r.state_name for r in by_schedule if r.deployment == "scheduled-years")
        home = installation.home / "measurements"
        times = canaries.times_read(entries.values(), home, [canaries.N_DAYS])
        with capsys.disabled():
            print(  # noqa: T201
                f"\n  {dict(ends)} {dict(states)} {dict(started)}, {len(pools)} pools, "
                f"canaries read: {Counter(times.values())}"
            )
        assert {e.partition.part for e in entries.values()} == {*canaries.MONTHS}
        assert set(times.values()) == {1}
        assert len(times) == canaries.N_CANARIES or states["burned"]
        assert len(pools) == states["published"] - 11
        assert len({e.rho for e in entries.values()}) == 1
        assert "add 0% of the cap" in installation.command("status")
        assert installation.damages() + installation.leftovers() == []
