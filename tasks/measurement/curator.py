"""The curator: the only door between private rows and a method.

A method asks for a planned statistic by name. The curator has the exact integer sum computed
over the shards, adds the planned noise once, seals the noisy array, and returns it. It keeps the
events that really happened. It never draws a statistic twice and never draws one that was not
planned; there is no other way for a proven method to learn anything about the rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from privacy.arrays import Floats, Integers
from privacy.events import ComposedEvent, Event
from privacy.mechanisms import (
    NoisyStatistic,
    SelectedCandidate,
    discrete_gaussian_mechanism,
    exponential_mechanism,
)
from privacy.parameters import Adjacency
from privacy.randomness import NoiseSource
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.measurement.encoded import EncodedRows
from tasks.measurement.plan import MeasurementPlan, PlannedStatistic
from tasks.measurement.sampling import COINS, PoissonCoins, arguments_of_shard, shard_name

T = TypeVar("T")
R = TypeVar("R")

Contribution = Callable[..., Integers]
"""A function of ``tasks.measurement.statistics``: rows of a shard and public arrays to int64."""

Recoding = Callable[..., EncodedRows]
"""Rows of a shard and public arrays to the same rows with other codes, each row by itself."""


class Shard(Protocol):
    """Encoded rows of whole patients, wherever they lie."""

    @property
    def name(self) -> str:
        """Name of the shard, on which the coins of its patients depend."""

    def load(self) -> EncodedRows:
        """Return the rows."""

    def recoded(self, rows: EncodedRows) -> "Shard":
        """Keep these rows, which are those of this shard coded otherwise, where this shard lies."""


@dataclass(frozen=True, slots=True)
class ShardInMemory:
    """A shard whose rows are at hand."""

    rows: EncodedRows
    name: str

    def load(self) -> EncodedRows:
        """Return the rows."""
        return self.rows

    def recoded(self, rows: EncodedRows) -> "ShardInMemory":
        """Return a shard of these rows."""
        return ShardInMemory(rows, self.name)


def in_memory(tables: Sequence[EncodedRows]) -> tuple[ShardInMemory, ...]:
    """Return the shards of tables that are at hand, named by their place."""
    return tuple(ShardInMemory(rows, shard_name(i)) for i, rows in enumerate(tables))


def contribution_of_shard(
    shard: Shard, *, contribution: Contribution, public: dict[str, Any]
) -> Integers:
    """Return the exact contribution of one shard; on a worker, where there are any."""
    return contribution(shard.load(), **arguments_of_shard(public, shard.name))


def _recoded_shard(shard: Shard, *, recoding: Recoding, public: dict[str, Any]) -> Shard:
    return shard.recoded(recoding(shard.load(), **public))


def exact_sum(
    contribution: Contribution,
    public: dict[str, Any],
    shards: Sequence[Shard],
    executor: Executor = IN_PROCESS,
) -> Integers:
    """Return the exact sum of ``contribution(rows, **public)`` over one or more shards.

    Privacy
    -------
    Without noise, and so private.
    """
    arguments = {"contribution": contribution, "public": public}
    return executor.sum(contribution_of_shard, shards, arguments)


class Curator:
    """Draw the statistics of a plan, once each.

    The plan was calibrated before the rows were read; exact sums and post-processing run on the
    executor. `seal` is called with the name and the noisy statistic, or the choice, before a method
    sees it; it must make the draw durable, or raise. The name of a draw of a series ends in its
    number.

    Privacy
    -------
    Adjacency: add or remove one patient. The events of all calls compose adaptively to at most
    the plan's ``mu``.
    """

    def __init__(
        self,
        *,
        plan: MeasurementPlan,
        shards: Sequence[Shard],
        noise_source: NoiseSource,
        executor: Executor = IN_PROCESS,
        seal: Callable[[str, NoisyStatistic | SelectedCandidate], None] | None = None,
    ) -> None:
        self.plan = plan
        self._shards = shards
        self._executor = executor
        self._noise_source = noise_source
        self._seal = seal
        self._n_draws: dict[str, int] = {}
        self._keys: dict[str, bytes] = {}

    @property
    def event(self) -> ComposedEvent:
        """The composition of the events that really happened, in order."""
        events: list[Event] = []
        for name, n_draws in self._n_draws.items():
            planned = self.plan.planned(name)
            events.append(
                planned.event_of(n_draws)
                if isinstance(planned, PlannedStatistic)
                else planned.event
            )
        return ComposedEvent(events=tuple(events))

    @property
    def tainted(self) -> bool:
        """Whether the noise can be reproduced, so that nothing drawn may be published."""
        return self._noise_source.tainted

    def release(self, name: str, contribution: Contribution, **public: Any) -> Floats:
        """Draw the planned statistic ``name`` and return it in its own units.

        It has the planned shape and is drawn once (ValueError; KeyError if it was not planned). The
        arguments of the contribution, the exact statistic of one shard, are public or released.
        """
        planned = self.plan[name]
        if planned.is_series:
            raise ValueError(f"expected a statistic without samples, found the series {name!r}")
        if name in self._n_draws:
            raise ValueError(f"expected statistic {name!r} to be drawn once, found a second draw")
        return self._draw(planned, name, planned.shape, lambda: self._exact(contribution, public))

    def release_sample(
        self, name: str, contribution: Contribution, n_draws: int, **public: Any
    ) -> Floats:
        """Draw the next draws of the planned series ``name`` and return them in its own units.

        The contribution has exact sums of one shard over the samples that its argument ``coins``
        names (`tasks.measurement.sampling.PoissonCoins`), stacked, and other arguments that are
        public or released. The result is of shape (n_draws, *planned shape). It is a ValueError if
        the series has fewer draws left, and a KeyError if it was not planned.

        Privacy
        -------
        Every draw has a fresh sample, by coins that stay secret, and its own noise.
        """
        planned = self.plan[name]
        first = self._n_draws.get(name, 0)
        if not planned.is_series or not 1 <= n_draws <= planned.n_draws - first:
            raise ValueError(
                f"expected at most the {planned.n_draws} planned draws of {name!r}, found "
                f"{n_draws} after {first}"
            )
        key = self._keys.setdefault(name, self._noise_source.secret_key())
        coins = PoissonCoins(
            key=key, probability=planned.sampling_probability, first_draw=first, n_draws=n_draws
        )
        return self._draw(
            planned,
            f"{name}_{first:06d}",
            (n_draws, *planned.shape),
            lambda: self._exact(contribution, {**public, COINS: coins}),
            n_draws=n_draws,
        )

    def select(
        self, name: str, contribution: Contribution, *, centre: Integers, **public: Any
    ) -> int:
        """Choose the candidate whose exact sum is far from a public value, at random.

        A score is the distance of the exact sum of a candidate from its `centre`, both of shape
        (n_candidates,), in grid points; other arguments of the contribution are public or released.
        Returns the index. A choice is made once (ValueError; KeyError if it was not planned).

        Privacy
        -------
        A score changes by at most the planned sensitivity of one sum. Event: one exponential
        mechanism.
        """
        planned = self.plan.selection(name)
        if name in self._n_draws:
            raise ValueError(f"expected the choice {name!r} to be made once, found a second one")
        exact = self._exact(contribution, public)
        if exact.shape != (planned.n_candidates,) or centre.shape != exact.shape:
            raise ValueError(f"expected {planned.n_candidates} candidates for {name!r}")
        chosen = exponential_mechanism(
            np.abs(exact - centre),
            statistic=name,
            score_sensitivity=planned.score_sensitivity,
            epsilon=planned.epsilon,
            adjacency=Adjacency.ADD_REMOVE,
            noise_source=self._noise_source,
        )
        self._n_draws[name] = 1
        if self._seal is not None:
            self._seal(name, chosen)
        return chosen.index

    def recode(self, recoding: Recoding, **public: Any) -> None:
        """Code the rows otherwise for all draws that follow; nothing is released.

        For what is costly to compute and read by many draws. The arguments are public or released.

        Privacy
        -------
        The new codes of a row are a function of that row, its public and released arguments.
        """
        recoded = partial(_recoded_shard, recoding=recoding, public=public)
        self._shards = self._executor.map(recoded, self._shards)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return ``function(item)`` for each item, on GPUs if there are any: post-processing."""
        return self._executor.map(function, items, gpu=True)

    def _exact(self, contribution: Contribution, public: dict[str, Any]) -> Integers:
        return exact_sum(contribution, public, self._shards, self._executor)

    def _draw(
        self,
        planned: PlannedStatistic,
        sealed_name: str,
        shape: tuple[int, ...],
        sum_exactly: Callable[[], Integers],
        *,
        n_draws: int = 1,
    ) -> Floats:
        """Add the planned noise, count the draw, seal it, return it in its own units."""
        exact = sum_exactly()
        _check_shape(planned.name, exact, shape)
        noisy = discrete_gaussian_mechanism(
            exact,
            statistic=planned.name,
            l2_sensitivity=planned.l2_sensitivity,
            noise_stddev=planned.noise_stddev,
            adjacency=Adjacency.ADD_REMOVE,
            noise_source=self._noise_source,
        )
        # Counted before the seal: a draw that could not be sealed was still a draw, and a second
        # one beside it would not be in the plan.
        self._n_draws[planned.name] = self._n_draws.get(planned.name, 0) + n_draws
        if self._seal is not None:
            self._seal(sealed_name, noisy)
        return noisy.values / planned.scale


def _check_shape(name: str, values: Integers, shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise ValueError(f"expected shape {shape} for {name!r}, found {values.shape}")
