"""The protocol of executors, which run the work of a stage, and the one of this process.

A stage hands over a function and public references, never rows. Sums are of integers, hence the
same bits for any number and order of workers. See `tasks.execution.dask_executor` for a cluster.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from privacy.arrays import Integers
from privacy.errors import refusals

refusal = refusals(__package__)

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """Runs functions over shards or items."""

    def sum(
        self, function: Callable[..., Integers], shards: Sequence[S], public: Mapping[str, Any]
    ) -> Integers:
        """Return the exact sum of ``function(shard, **public)`` over one or more shards.

        It sums int64 arrays of one shape. It is a ConfigurationError if there is no shard, and an
        IntegrityError if a sum leaves int64 or a term has another form.
        """

    def map(self, function: Callable[[T], R], items: Iterable[T], *, gpu: bool = False) -> list[R]:
        """Return ``function(item)`` for each item, in order; on GPU workers if there are any."""


class InProcessExecutor:
    """Runs everything here, one item after the other: the reference for every other.

    A guarded item fails as on a worker (`tasks.execution.runtime`); others raise what they raise.
    """

    def __init__(self, *, guarded: bool = False) -> None:
        self._guarded = guarded

    def sum(
        self, function: Callable[..., Integers], shards: Sequence[S], public: Mapping[str, Any]
    ) -> Integers:
        """Return the exact sum of ``function(shard, **public)`` over the shards."""
        item = self._item(function)
        return sum_exactly(item(shard, **public) for shard in shards)

    def map(self, function: Callable[[T], R], items: Iterable[T], *, gpu: bool = False) -> list[R]:
        """Return ``function(item)`` for each item, in order; the process uses what it finds."""
        item = self._item(function)
        return [item(value) for value in items]

    def _item(self, function: Callable[..., R]) -> Callable[..., R]:
        if not self._guarded:
            return function
        from tasks.execution.runtime import guarded_item, unwrapped

        guarded = guarded_item(function)
        return lambda *args, **kwargs: unwrapped(guarded(*args, **kwargs))


IN_PROCESS = InProcessExecutor()
"""Default executor. It has no state, so one instance serves everybody."""


def sum_exactly(terms: Iterable[object]) -> Integers:
    """Add int64 arrays; overflow, or a term of another form, is an IntegrityError."""
    total: Integers | None = None
    for term in terms:
        shape = None if total is None else total.shape
        if (
            not isinstance(term, np.ndarray)
            or term.dtype != np.int64
            or shape not in (None, term.shape)
        ):
            raise refusal("SUM_TERM")
        if total is None:
            total = term.copy()
            continue
        added = total + term
        # Two's complement: an overflow happened where both summands differ from the sum in sign.
        if np.any(((total ^ added) & (term ^ added)) < 0):
            raise refusal("SUM_OVERFLOW")
        total[...] = added
    if total is None:
        raise refusal("NO_SHARDS")
    return total
