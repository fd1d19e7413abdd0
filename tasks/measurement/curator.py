"""The curator: the only door between private rows and a method.

A method asks for a planned statistic by name. The curator has the exact integer sum computed
over the shards, adds the planned noise, seals the noisy array, and returns it. It keeps the events
that really happened. It never draws a statistic more often than planned and never one that was not
planned; there is no other way for a method to learn anything about the rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from privacy.arrays import Floats, Integers
from privacy.events import Composed
from privacy.mechanisms import NoisyStatistic, discrete_gaussian_mechanism
from privacy.parameters import Adjacency
from privacy.randomness import NoiseSource
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.measurement_plan import MeasurementPlan

T = TypeVar("T")
R = TypeVar("R")

Contribution = Callable[..., Integers]
"""A function of ``tasks.measurement.statistics``: rows of a shard and public arrays to int64."""

Recoding = Callable[..., EncodedRows]
"""Rows of a shard and public arrays to the same rows with other codes, each row by itself."""


class _Shard(Protocol):
    """Encoded rows of whole patients, wherever they lie; `EncodedRows` lie in memory."""

    def load(self) -> EncodedRows:
        """Return the rows."""

    def recoded(self, rows: EncodedRows) -> "_Shard":
        """Return a shard of these rows, which are this shard's rows recoded, stored where it is."""


def contribution_of_shard(
    shard: _Shard, *, contribution: Contribution, public: dict[str, Any]
) -> Integers:
    """Return the exact contribution of one shard; on a worker, where there are any."""
    return contribution(shard.load(), **public)


def _recoded_shard(shard: _Shard, *, recoding: Recoding, public: dict[str, Any]) -> _Shard:
    return shard.recoded(recoding(shard.load(), **public))


def exact_sum(
    contribution: Contribution,
    public: dict[str, Any],
    shards: Sequence[_Shard],
    executor: Executor = IN_PROCESS,
) -> Integers:
    """Return the exact sum of ``contribution(rows, **public)`` over one or more shards.

    Privacy
    -------
    The sum has no noise: it is private.
    """
    arguments = {"contribution": contribution, "public": public}
    return executor.sum(contribution_of_shard, shards, arguments)


class Curator:
    """Draw the statistics of a plan, each as often as planned.

    The plan was calibrated before the rows were read; exact sums and post-processing run on the
    executor. `seal` is called with the name and the noisy statistic before a method sees it; it
    must make the draw durable, or raise. The name of one of several draws ends in its number.
    `beside` are the shards of other tables of the same patients, by name.

    Privacy
    -------
    Adjacency: add or remove one patient. All calls compose adaptively to the plan's ``mu`` at most.
    """

    def __init__(
        self,
        *,
        plan: MeasurementPlan,
        shards: Sequence[_Shard],
        noise_source: NoiseSource,
        executor: Executor = IN_PROCESS,
        seal: Callable[[str, NoisyStatistic], None] | None = None,
        beside: Mapping[str, Sequence[_Shard]] | None = None,
    ) -> None:
        self.plan = plan
        self._shards = shards
        self._executor = executor
        self._noise_source = noise_source
        self._seal = seal
        self._beside = beside or {}
        self._n_draws: dict[str, int] = {}
        self._prefix = ""

    @property
    def event(self) -> Composed:
        """The composition of the events that really happened, in order."""
        own = {self._prefix + one.name: one for one in self.plan.statistics}
        drawn = [(own[name], n) for name, n in self._n_draws.items() if name in own]
        return Composed(events=tuple(one.event_of(n) for one, n in drawn))

    def of(self, plan: MeasurementPlan, table: str | None = None, prefix: str = "") -> "Curator":
        """Return the curator of a part of the plan, of these rows or of a table beside them.

        The prefix precedes the names of the part in the whole plan and in sealed draws.

        Privacy
        -------
        Every draw of a part is one of the whole plan (else ValueError), and counts in it.
        """
        named = [replace(one, name=prefix + one.name) for one in plan.statistics]
        if any(self.plan[one.name] != one for one in named):
            raise ValueError("expected a part of the plan, found another statistic")
        part = copy(self)
        part.plan, part._prefix = plan, self._prefix + prefix
        part._shards = self._shards if table is None else self._beside[table]
        return part

    @property
    def tainted(self) -> bool:
        """True if the noise can be reproduced, so that nothing drawn may be published."""
        return self._noise_source.tainted

    def release(self, name: str, contribution: Contribution, **public: Any) -> Floats:
        """Draw the planned statistic ``name`` and return it in its own units.

        It has the planned shape and number of draws, by default one (ValueError; KeyError if not
        planned). A contribution is a shard's exact statistic; its arguments are public or released.

        Privacy
        -------
        Every draw has its own noise. Event: one discrete Gaussian.
        """
        planned = self.plan[name]
        name = self._prefix + name
        earlier = self._n_draws.get(name, 0)
        if earlier >= planned.n_draws:
            raise ValueError(
                f"expected at most {planned.n_draws} draws of {name!r}, as planned, found another"
            )
        sealed_name = name if planned.n_draws == 1 else f"{name}_{earlier:06d}"
        exact = exact_sum(contribution, public, self._shards, self._executor)
        if exact.shape != planned.shape:
            raise ValueError(f"expected shape {planned.shape} for {name!r}, found {exact.shape}")
        noisy = discrete_gaussian_mechanism(
            exact,
            statistic=name,
            l2_sensitivity=planned.l2_sensitivity,
            noise_stddev=planned.noise_stddev,
            adjacency=Adjacency.ADD_REMOVE,
            noise_source=self._noise_source,
        )
        # Counted before the seal: a draw that could not be sealed counts, so no second one follows.
        self._n_draws[name] = earlier + 1
        if self._seal is not None:
            self._seal(sealed_name, noisy)
        return noisy.values / planned.scale

    def recode(self, recoding: Recoding, **public: Any) -> None:
        """Replace the codes of the rows for all later draws; nothing is released.

        It saves the repeated computation of costly codes. The arguments are public or released.

        Privacy
        -------
        The new codes of a row are a function of that row, its public and released arguments.
        """
        recoded = partial(_recoded_shard, recoding=recoding, public=public)
        self._shards = self._executor.map(recoded, self._shards)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return ``function(item)`` for each item, on GPUs if there are any: post-processing."""
        return self._executor.map(function, items, gpu=True)
