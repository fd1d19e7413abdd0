"""Where the work of a stage is done: in this process, or on the workers of a Dask cluster.

A stage hands over a function and public references; it never hands over rows. Sums are integer
sums, hence the same bits whatever the number of workers and the order in which they finish.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import distributed
import numpy as np
from numpy.typing import NDArray

from privacy.errors import ConfigurationError, IntegrityError
from tasks.runtime import Failed, PipelineError, guarded_item

T = TypeVar("T")
R = TypeVar("R")

IntegerSum = NDArray[np.int64] | dict[str, NDArray[np.int64]]
"""One int64 array, or several by name."""


class Executor(Protocol):
    """Runs guarded functions over shards or items."""

    def sum(
        self,
        function: Callable[..., IntegerSum],
        shards: Sequence[Path],
        public: Mapping[str, Any],
    ) -> IntegerSum:
        """Return the exact sum of ``function(shard, **public)`` over the shards."""

    def map(self, function: Callable[[T], R], items: Iterable[T], *, gpu: bool = False) -> list[R]:
        """Return ``function(item)`` for each item, in order."""


class LocalExecutor:
    """Runs everything in this process, one item after the other."""

    def sum(
        self,
        function: Callable[..., IntegerSum],
        shards: Sequence[Path],
        public: Mapping[str, Any],
    ) -> IntegerSum:
        """Return the exact sum of ``function(shard, **public)`` over the shards.

        Parameters
        ----------
        function
            Function of a shard's path and of public keyword arguments; returns an int64 array or
            a dict of them, of the same names and shapes for every shard.
        shards
            Paths of one or more shards.
        public
            Public keyword arguments, the same for every shard.

        Returns
        -------
        ndarray of int64, or dict of them
            As the function returns, summed.

        Raises
        ------
        ConfigurationError
            If there is no shard.
        IntegrityError
            If a sum leaves the range of int64, or a term is not of the first one's form.
        ClustMixError
            What the function raised, see `tasks.runtime.guarded_item`.
        """
        item = guarded_item(function)
        return sum_exactly(item(shard, **public) for shard in shards)

    def map(self, function: Callable[[T], R], items: Iterable[T], *, gpu: bool = False) -> list[R]:
        """Return ``function(item)`` for each item, in order.

        Parameters
        ----------
        function
            Function of one item.
        items
            Items, in order.
        gpu
            Of no effect here: the process uses what it finds.

        Raises
        ------
        ClustMixError
            What the function raised for the first item that failed.
        """
        item = guarded_item(function)
        return [cast(R, _unwrap(item(value))) for value in items]


class DaskExecutor:
    """Runs items on the workers of a Dask cluster.

    Parameters
    ----------
    client
        Connected client, see `tasks.cluster`.
    run_id
        Public name of the run, used in the keys of its items.

    Notes
    -----
    A scheduler may give the items of a lost worker to another one. A function must therefore draw
    no noise: noise is drawn by the caller, once, on the sums.

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

    def sum(
        self,
        function: Callable[..., IntegerSum],
        shards: Sequence[Path],
        public: Mapping[str, Any],
    ) -> IntegerSum:
        """Return the exact sum of ``function(shard, **public)``; see `LocalExecutor.sum`.

        Raises
        ------
        PipelineError
            Also if workers were lost ("sum:WorkerLost").
        """
        item = guarded_item(function)
        # Sent once to each worker; hash=False, for a name without a hash of what it holds.
        [shared] = self._client.scatter([dict(public)], broadcast=True, hash=False)
        futures = [
            self._client.submit(
                _call_with_public, item, shard, shared, key=self._key("sum"), pure=False
            )
            for shard in shards
        ]
        with closing(self._results("sum", futures)) as results:
            return sum_exactly(results)

    def map(self, function: Callable[[T], R], items: Iterable[T], *, gpu: bool = False) -> list[R]:
        """Return ``function(item)`` for each item, in order; see `LocalExecutor.map`.

        Parameters
        ----------
        function
            Importable function of one item.
        items
            Items, in order; pass references to large or private ones.
        gpu
            True runs the items on workers that offer the resource ``GPU``, one at a time each,
            where the cluster has such workers; it runs them anywhere where it has none.

        Raises
        ------
        PipelineError
            Also if workers were lost ("map:WorkerLost").
        """
        item = guarded_item(function)
        resources = {"GPU": 1} if gpu and self._has_gpu() else None
        futures = [
            self._client.submit(item, value, key=self._key("map"), pure=False, resources=resources)
            for value in items
        ]
        # Closed here and now, not when a traceback that holds the generator is collected.
        with closing(self._results("map", futures)) as results:
            return [cast(R, _unwrap(result)) for result in results]

    def _key(self, kind: str) -> str:
        return f"clustmix-{kind}-{self._run_id}-{next(self._numbers)}"

    def _has_gpu(self) -> bool:
        workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        return any("GPU" in worker.get("resources", {}) for worker in workers)

    def _results(
        self, kind: str, futures: list[distributed.Future[Any]]
    ) -> Generator[object, None, None]:
        # In the order of submission, so that the same failure is reported every time.
        lost = ""
        try:
            for future in futures:
                try:
                    result = future.result()
                except Exception as error:
                    # Not from the function, which is guarded: the cluster itself failed.
                    lost = type(error).__name__
                    break
                future.release()
                yield result
        finally:
            # Also when the reader stopped at a failure: nothing of this run stays on the cluster.
            self._client.cancel(futures, force=True)
        if lost:
            raise PipelineError(
                f"{kind}:WorkerLost",
                f"expected every worker to answer, lost at least one ({lost}); look at the memory "
                "of the workers and start a new run",
            )


def sum_exactly(terms: Iterable[object]) -> IntegerSum:
    """Add int64 arrays, or dicts of them, and refuse to leave the range of int64.

    Parameters
    ----------
    terms
        One or more terms of the same form; a `Failed` is raised.

    Returns
    -------
    ndarray of int64, or dict of them
        The sum, of the form of the terms.

    Raises
    ------
    ConfigurationError
        If there is no term.
    IntegrityError
        On overflow, or if a term is not of the form of the first.
    """
    total: dict[str, NDArray[np.int64]] | None = None
    single = False
    for term in terms:
        found = _unwrap(term)
        arrays = found if isinstance(found, dict) else {"": found}
        if not all(isinstance(a, np.ndarray) and a.dtype == np.int64 for a in arrays.values()):
            raise IntegrityError(
                "SUM_TERM", "expected int64 arrays from a function that is summed; fix the function"
            )
        named = cast(dict[str, NDArray[np.int64]], arrays)
        if total is None:
            single = not isinstance(found, dict)
            total = {name: array.copy() for name, array in named.items()}
            continue
        if {k: a.shape for k, a in named.items()} != {k: a.shape for k, a in total.items()}:
            raise IntegrityError(
                "SUM_TERM", "expected the same names and shapes from every shard; fix the function"
            )
        for name, array in named.items():
            _add_in_place(total[name], array)
    if total is None:
        raise ConfigurationError(
            "NO_SHARDS", "expected one or more shards to sum over, found none; read a cohort first"
        )
    return total[""] if single else total


def _call_with_public(
    item: Callable[..., object], shard: Path, public: Mapping[str, Any]
) -> object:
    return item(shard, **public)


def _unwrap(result: object) -> object:
    if isinstance(result, Failed):
        raise result.error()
    return result


def _add_in_place(total: NDArray[np.int64], term: NDArray[np.int64]) -> None:
    added = total + term
    # Two's complement: an overflow happened where both summands differ from the sum in sign.
    if np.any(((total ^ added) & (term ^ added)) < 0):
        raise IntegrityError(
            "SUM_OVERFLOW",
            "a sum left the range of 64-bit integers; use a coarser grid or fewer rows per release",
        )
    total[...] = added
