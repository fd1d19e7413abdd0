"""The curator: the only door between private rows and a method.

A method asks for a planned statistic by name. The curator has the exact integer sum computed
over the shards, adds the planned noise once, seals the noisy array, and returns it. It keeps the
events that really happened. It never draws a statistic twice and never draws one that was not
planned; there is no other way for a proven method to learn anything about the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privacy.events import ComposedEvent
from privacy.mechanisms import NoisyStatistic, discrete_gaussian_mechanism
from privacy.parameters import Adjacency
from privacy.randomness import NoiseSource
from tasks.synthesizers.encoded import EncodedRows
from tasks.synthesizers.plan import MeasurementPlan

Contribution = Callable[..., NDArray[np.int64]]
"""A function of ``tasks.synthesizers.statistics``: rows of a shard and public arrays to int64."""


class Compute(Protocol):
    """Where sums and post-processing run: this process, or Dask workers."""

    def sum(self, contribution: Contribution, public: dict[str, Any]) -> NDArray[np.int64]:
        """Exact sum of ``contribution(rows, **public)`` over all shards."""

    def map(self, function: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        """``[function(item) for item in items]``; sees released values only."""


class InProcessCompute:
    """Run over shards held in memory, one after the other. The reference for every other one."""

    def __init__(self, shards: Sequence[EncodedRows]) -> None:
        self._shards = shards

    def sum(self, contribution: Contribution, public: dict[str, Any]) -> NDArray[np.int64]:
        """Exact sum of ``contribution(rows, **public)`` over all shards."""
        parts = [contribution(rows, **public) for rows in self._shards]
        # No dtype: it would hide a contribution that forgot to go to the grid.
        return np.asarray(np.sum(parts, axis=0))

    def map(self, function: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        """``[function(item) for item in items]``."""
        return [function(item) for item in items]


class Curator:
    """Draw the statistics of a plan, once each.

    Parameters
    ----------
    plan
        The measurement plan, calibrated before the rows were read.
    compute
        Where exact sums run.
    noise_source
        Operating-system entropy, or seeded noise in tests.
    seal
        Called with the name and the noisy statistic before a method sees it; it must make the
        draw durable, or raise.

    Privacy
    -------
    Adjacency: add or remove one patient. The events of all calls compose adaptively to at most
    the plan's ``mu``.
    """

    def __init__(
        self,
        *,
        plan: MeasurementPlan,
        compute: Compute,
        noise_source: NoiseSource,
        seal: Callable[[str, NoisyStatistic], None] | None = None,
    ) -> None:
        self.plan = plan
        self.compute = compute
        self._noise_source = noise_source
        self._seal = seal
        self._drawn: dict[str, NoisyStatistic] = {}

    @property
    def event(self) -> ComposedEvent:
        """The composition of the events that really happened, in order."""
        return ComposedEvent(events=tuple(drawn.event for drawn in self._drawn.values()))

    @property
    def tainted(self) -> bool:
        """Whether the noise can be reproduced, so that nothing drawn may be published."""
        return self._noise_source.tainted

    def release(self, name: str, contribution: Contribution, **public: Any) -> NDArray[np.float64]:
        """Draw the planned statistic ``name`` and return it in its own units.

        Parameters
        ----------
        name
            Name of a planned statistic that has not been drawn.
        contribution
            Exact statistic of one shard.
        **public
            Public or released arguments of ``contribution``.

        Returns
        -------
        float64 array of the planned shape

        Raises
        ------
        ValueError
            If the statistic was drawn before, or its shape is not the planned one.
        KeyError
            If it was not planned.
        """
        planned = self.plan[name]
        if name in self._drawn:
            raise ValueError(f"expected statistic {name!r} to be drawn once, found a second draw")
        exact = self.compute.sum(contribution, public)
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
        # Counted before the seal: a draw that could not be sealed was still a draw, and a second
        # one beside it would not be in the plan.
        self._drawn[name] = noisy
        if self._seal is not None:
            self._seal(name, noisy)
        return noisy.values / planned.scale
