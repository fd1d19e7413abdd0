"""Force against the whole flow: what is charged is never below what was drawn."""

import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import forced_installation as forced
import numpy as np
import pytest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_800)]

N_KILLS = int(os.environ.get("SOAK_KILLS", "200"))
"""Random moments for each ledger; fewer for a try."""

KILLS_PER_INSTALLATION = 25


@dataclass
class Tally:
    """What was seen of runs that were killed."""

    states: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def kill_and_go_on(installation, tables, n_kills, moment, rng):
    """Kill runs in one installation, each followed by others of the same request."""
    tally, number = Tally(), 0
    while tally.states.total() < n_kills:
        site, killed = tables(number), []
        number += 1
        while True:
            measured = [release for release in killed if installation.is_measured(release)]
            run = installation.start(site)
            if tally.states.total() < n_kills and (not killed or rng.random() < 0.4):
                drawn = moment()
                if run.kill(drawn):
                    killed.append(run.release_id)
                    tally.states[installation.state(run.release_id)] += 1
                    tally.wrong += [f"{text} [{drawn}]" for text in installation.damages()]
                    continue
            break
        tally.wrong += finished(installation, run, killed, measured, tally.endings)
    return tally


def finished(installation, run, killed, measured, endings):
    """Return what is wrong after a run of a request whose earlier runs were killed."""
    answer = run.answer()
    who = f"{run.release_id} after {killed}"
    if answer.get("state") != "published":
        return [f"{who}: {answer}, {run.places[-3:]}"]
    wrong = installation.damages() + [f"left: {name}" for name in installation.leftovers()]
    states = {release: installation.state(release) for release in (*killed, run.release_id)}
    if measured:
        # Paid for once and for all: finished by whoever comes next, at no cost.
        expected = dict.fromkeys(states, "free") | {measured[0]: "published"}
        good = answer["reused"] and answer["release_id"] == measured[0] and len(measured) == 1
        good &= run.release_id not in installation.drawn()
    else:
        expected = dict.fromkeys(states, "free") | {run.release_id: "published"}
        good = not answer["reused"] and answer["release_id"] == run.release_id
    free = ("none", "void", "burned")
    found = {release: "free" if s in free else s for release, s in states.items()}
    if not good or found != expected:
        wrong.append(f"{who}, measured {measured}: {answer}, {states}")
    if killed:
        endings["free" if measured else "paid anew"] += 1
    return wrong


def all_at_once(jobs):
    """Run series of kills, as many at a time as there are processors."""
    tally = Tally()
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2))) as pool:
        for one in pool.map(lambda job: job(), jobs):
            tally.states += one.states
            tally.endings += one.endings
            tally.wrong += one.wrong
    return tally


def test_killed_at_random_moments(install, rng, say, tmp_path):
    started = time.monotonic()
    # As busy as the runs that are killed: two at a time.
    calibrate, whole = forced.Tables(tmp_path / "calibration"), install("calibration")
    forced.Undisturbed.of(whole, calibrate(0))
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda n: forced.Undisturbed.of(whole, calibrate(n)), (1, 2)))
    undisturbed = max(both, key=lambda run: run.seconds)

    def series(number):
        own = np.random.default_rng(rng.integers(2**63, size=4))
        installation = install(f"installation-{number}")
        tables = forced.Tables(tmp_path / f"tables-{number}")
        n_kills = min(KILLS_PER_INSTALLATION, N_KILLS - number * KILLS_PER_INSTALLATION)
        return lambda: kill_and_go_on(
            installation, tables, n_kills, lambda: undisturbed.moment(own), own
        )

    tally = all_at_once([series(n) for n in range(-(-N_KILLS // KILLS_PER_INSTALLATION))])
    say(
        f"{N_KILLS} kills, faults {len(tally.wrong)}; entries when killed: {dict(tally.states)}; "
        f"next runs: {dict(tally.endings)}; {time.monotonic() - started:.0f} s, a run takes "
        f"{undisturbed.seconds:.2f} s and comes to {len(set(undisturbed.places))} places"
    )
    assert tally.states.total() == N_KILLS
    assert not tally.wrong, "\n".join(tally.wrong)
