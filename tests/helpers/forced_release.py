"""Bodies of processes that release, say where they are, and meet what a test has prepared.

A process says through a pipe where it is. What it draws is in a file of its run, on disk, before
anybody sees it. Steps run without Prefect, which has no part in this.
"""

import functools
import os
import resource
import signal
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import made_up_release as made
import process_patches
from shard_functions import die_once

from storage.ledger.ledger_db import LedgerDatabase
from storage.releases.measurements import MeasurementStore

BEGIN = "begin"
"""What a run says first."""

FILLER = "filler"
"""File that fills a disk."""


def _places():
    """Where a run changes something that outlives it."""
    from flows.measurement import _Seals
    from storage.files import workspace
    from storage.ledger.ledger_db import HeadFile
    from storage.releases import pending
    from storage.releases import release_store as releases
    from tasks.measurement import curator
    from tasks.steps import janitor

    return [
        (workspace, "forbid_core_dumps"),  # the first step of a new workspace
        (workspace.PrivateWorkspace, "purge"),
        (janitor, "purge_abandoned"),
        (LedgerDatabase, "reserve"),
        (LedgerDatabase, "transition"),
        (HeadFile, "write"),  # between a commit and the return of the ledger
        (curator, "discrete_gaussian_mechanism"),
        (_Seals, "__call__"),
        (MeasurementStore, "seal"),
        (pending.PendingBundles, "write"),
        (pending.PendingBundles, "remove"),
        (releases.ReleaseStore, "publish"),
        (releases, "verify_bundle"),
        (os, "rename"),
        (os, "replace"),
        (os, "link"),
    ]


@contextmanager
def announcing(say):
    """Say where stages begin, and what is done to disk and ledger, before and after."""
    from tasks.execution.runtime import listen_to_stages

    def announced(owner, name):
        function = getattr(owner, name)
        place = f"{owner.__name__.rpartition('.')[2]}.{name}"

        @functools.wraps(function)
        def run(*args, **kwargs):
            say(f"before {place}")
            result = function(*args, **kwargs)
            say(f"after {place}")
            return result

        return run

    with ExitStack() as stack:
        for owner, name in _places():
            stack.enter_context(mock.patch.object(owner, name, announced(owner, name)))
        stack.enter_context(listen_to_stages(lambda name, seconds: seconds or say(f"stage {name}")))
        yield


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """What happens to a process that comes to a place for the n-th time."""

    place: str
    time: int = 1

    def __call__(self, place, time):
        if (place, time) == (self.place, self.time):
            self.happen()


@dataclass(frozen=True, kw_only=True)
class FullDisk(Disturbance):
    """No space from here on: in the file system of a folder, or, without one, in any file."""

    folder: str | None = None

    def happen(self):
        if self.folder is None:
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
            return
        with (Path(self.folder) / FILLER).open("wb", buffering=0) as handle:
            for size in (1 << 16, 1 << 12, 1):
                with suppress(OSError):
                    while True:
                        handle.write(b"\0" * size)


class Death(Disturbance):
    def happen(self):
        made.die()


class Pause(Disturbance):
    def happen(self):
        os.kill(os.getpid(), signal.SIGSTOP)


@dataclass(frozen=True)
class DyingShard:
    """Contribution of a shard whose worker dies the first time for a statistic, or for each."""

    folder: str
    statistic: str | None = None

    def __call__(self, shard, *, contribution, public):
        from tasks.measurement.curator import contribution_of_shard

        name = contribution.__name__
        if self.statistic in (None, name):
            die_once(Path(self.folder) / name)
        return contribution_of_shard(shard, contribution=contribution, public=public)


def run_and_say(environment, request, pipe, disturbance, shard):
    """Body of a process: release, and say where it is and how it ends."""
    from flows.site.request import SiteRequest
    from tasks.execution.runtime import Failed, guarded_call
    from tasks.measurement import curator

    os.environ.update(environment)
    times = Counter()

    def say(place):
        times[place] += 1
        if disturbance is not None:
            disturbance(place, times[place])
        pipe.send(place)

    say(BEGIN)
    with ExitStack() as patches:
        process_patches.record_draws(curator)
        patches.enter_context(announcing(say))
        if shard is not None:
            patches.enter_context(mock.patch.object(curator, "contribution_of_shard", shard))
        patches.enter_context(made.without_engine())
        # As `flows.release.release_cohort` does it.
        asked = SiteRequest.model_validate(request)
        outcome = guarded_call("release", made.body_of_release, asked)
    if isinstance(outcome, Failed):
        pipe.send({"code": outcome.code, "message": outcome.message})
    else:
        pipe.send(outcome.model_dump())


def decide_and_die(environment, decision, release_id, key_file, death):
    """Body of a process: an officer approves or revokes, and does not come to the end."""
    from stores import Stores

    from storage.keys.keys import SigningKey
    from storage.settings import load_settings

    os.environ.update(environment)
    key, opened = SigningKey.read(Path(key_file)), Stores(load_settings())
    approve = functools.partial(opened.decide, decision="approve")
    decide = {"approve": approve, "revoke": opened.revoke}[decision]
    with announcing(lambda place: death(place, 1)):
        decide(release_id, key=key, reason="as agreed")
