"""The work of a stage on the workers of a Dask cluster, and again where a worker was lost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from privacy.arrays import Integers
from storage.files.workspace import forbid_core_dumps
from tasks.execution.executor import sum_exactly
from tasks.execution.runtime import PipelineError, guarded_item, unwrapped

if TYPE_CHECKING:
    import distributed

    _Submitted = tuple[distributed.Future[Any], "_Place"]

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

GPU, CPU, PLAIN = "GPU", "CPU", "plain"
"""Sorts of workers: with one of the two resources, or with neither."""

TRIES = 5
"""Attempts per item before its loss ends the run."""

WORKER_WAIT_SECONDS = 60.0
"""Time limit for a worker to return: a nanny or a service manager restarts a dead one."""

FETCH_SECONDS = 600.0
"""Time limit for the transfer of an item's result from a worker."""

POLL_SECONDS = 1.0
"""Interval between checks that the workers are still connected while an item is awaited."""


class DaskExecutor:
    """Runs items on the workers of a Dask cluster, and again where a worker was lost.

    A lost item is computed again, on the workers that are left or come back. A function must
    therefore be deterministic and draw no noise: noise is drawn by the caller, once, on the sums.
    GPU items go to workers with the resource ``GPU``, one at a time each; everything else goes to
    workers with ``CPU`` where there are any, else to those without ``GPU``. Work goes to another
    sort of worker only where the cluster has none of its own, or none that comes back within a
    minute. It is a PipelineError if workers were lost again and again, or all of them.

    Privacy
    -------
    Keys are counted, not hashed: Dask's own keys are hashes of the arguments, and a hash of
    private data in a name is a statistic of it. Functions get paths and public values; what they
    return stays in the memory of worker, scheduler and client and is released once read.
    """

    def __init__(self, client: distributed.Client, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._numbers = itertools.count()
        self._sorts: frozenset[str] = frozenset()

    def sum(
        self, function: Callable[..., Integers], shards: Sequence[S], public: Mapping[str, Any]
    ) -> Integers:
        """Return the exact sum of ``function(shard, **public)``; see `Executor.sum`."""
        item = guarded_item(function)
        # With every item, not once to every worker: data on a worker are lost with it.
        calls = [_Call(item, (shard,), dict(public)) for shard in shards]
        with closing(self._results("sum", calls, gpu=False)) as results:
            return sum_exactly(unwrapped(result) for result in results)

    def map(self, function: Callable[[T], R], items: Iterable[T], *, gpu: bool = False) -> list[R]:
        """Return ``function(item)`` for each item, in order; see `Executor.map`."""
        item = guarded_item(function)
        calls = [_Call(item, (value,), {}) for value in items]
        # Closed here and now, not when a traceback that holds the generator is collected.
        with closing(self._results("map", calls, gpu=gpu)) as results:
            return [cast(R, unwrapped(result)) for result in results]

    def _results(
        self, kind: str, calls: list[_Call], *, gpu: bool
    ) -> Generator[object, None, None]:
        # In the order of submission, so that the same failure is reported every time.
        submitted: list[_Submitted] = []
        try:
            if calls:
                place = self._place(kind, gpu=gpu)
                submitted += [self._submit(kind, call, place) for call in calls]
            for number, call in enumerate(calls):
                for try_number in range(1, TRIES + 1):
                    lost, result = self._outcome(submitted[number])
                    if not lost:
                        break
                    if try_number == TRIES:
                        raise _worker_lost(kind, lost)
                    self._forget([submitted[number]])
                    place = self._place(kind, gpu=gpu)
                    submitted[number] = self._submit(kind, call, place)
                submitted[number][0].release()
                yield result
        finally:
            # Also when the reader stopped at a failure: nothing of this run stays on the cluster.
            self._forget(submitted)

    def _submit(self, kind: str, call: _Call, place: _Place) -> _Submitted:
        future = self._client.submit(
            call,
            key=f"clustmix-{kind}-{self._run_id}-{next(self._numbers)}",
            pure=False,
            resources=place.resources,
            workers=None if place.addresses is None else sorted(place.addresses),
        )
        return future, place

    def _outcome(self, submitted: _Submitted) -> tuple[str, object]:
        """Wait for an item; return an empty text and its result, or why there is none."""
        future, place = submitted
        # Not from the function, which is guarded: an exception here is the cluster's own.
        while True:
            try:
                future.exception(timeout=POLL_SECONDS)
                break
            except TimeoutError:
                if not place.has_worker(self._workers()):
                    return "NoWorker", None
            except Exception as error:
                return type(error).__name__, None
        try:
            # Apart from the waiting: Dask does not recover from a fetch that was given up.
            return "", future.result(timeout=FETCH_SECONDS)
        except Exception as error:
            return type(error).__name__, None

    def _forget(self, submitted: list[_Submitted]) -> None:
        # A dead scheduler keeps nothing, and its error would hide the one being raised.
        with suppress(Exception):
            self._client.cancel([future for future, _ in submitted], force=True)

    def _place(self, kind: str, *, gpu: bool) -> _Place:
        """Wait for a worker of the sort that the work belongs on."""
        preferred = (GPU, CPU, PLAIN) if gpu else (CPU, PLAIN, GPU)
        give_up = time.monotonic() + WORKER_WAIT_SECONDS
        while True:
            workers = self._workers()
            present = frozenset[str]().union(*workers.values())
            # A sort that was there is waited for: its worker may be about to come back.
            self._sorts |= present
            wanted = next((sort for sort in preferred if sort in self._sorts), "")
            if wanted in present:
                return _place_on(wanted, workers, gpu=gpu)
            if time.monotonic() > give_up:
                if not present:
                    raise _worker_lost(kind, "NoWorker")
                self._sorts = present
            time.sleep(POLL_SECONDS / 10)

    def _workers(self) -> dict[str, frozenset[str]]:
        """Return the addresses of the workers that are there, and of what sort each is."""
        if self._client.status != "running":
            return {}
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return {
            address: frozenset({GPU, CPU} & worker.get("resources", {}).keys() or {PLAIN})
            for address, worker in workers.items()
        }


@dataclass(frozen=True, slots=True, repr=False)
class _Call:
    """One item: a guarded function with its arguments. Without a repr: Dask may log it."""

    function: Callable[..., object]
    arguments: tuple[object, ...]
    named: dict[str, object]

    def __call__(self) -> object:
        # For every item, since a restarted worker begins without the limit.
        forbid_core_dumps()
        return self.function(*self.arguments, **self.named)


@dataclass(frozen=True, slots=True)
class _Place:
    """Workers that an item may run on: by resource, by address, or any."""

    resources: dict[str, int] | None = None
    addresses: frozenset[str] | None = None

    def has_worker(self, workers: Mapping[str, frozenset[str]]) -> bool:
        if self.resources is not None:
            return any(self.resources.keys() <= kinds for kinds in workers.values())
        return bool(workers if self.addresses is None else self.addresses & workers.keys())


def _place_on(sort: str, workers: Mapping[str, frozenset[str]], *, gpu: bool) -> _Place:
    if sort == CPU or (sort == GPU and gpu):
        return _Place(resources={sort: 1})
    if sort == PLAIN and not all(kinds == {PLAIN} for kinds in workers.values()):
        return _Place(addresses=frozenset(a for a, kinds in workers.items() if PLAIN in kinds))
    return _Place()


def _worker_lost(kind: str, found: str) -> PipelineError:
    return PipelineError(
        f"{kind}:WorkerLost",
        f"expected every worker to answer, lost at least one ({found}); look at the memory "
        "of the workers and start a new run",
    )
