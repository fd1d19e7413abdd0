"""What every synthesizer is: a plan made from public settings, then stages, then a sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privacy.parameters import Guarantee
from tasks.measurement.curator import Curator
from tasks.measurement.plan import MeasurementPlan

PUBLIC_SEED = 20_221_013
"""Seed of every public random choice (slices, features, starting points): it may be printed."""

Released = Mapping[str, NDArray[Any]]
"""Named public arrays: what earlier stages released or derived. Safe to store and to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a measurement.

    Parameters
    ----------
    name
        The name that the orchestrator shows.
    run
        Takes the curator and everything released so far; returns what it adds.
    checkpoint
        Whether what is released up to its end is kept, so that a run that is stopped goes on from
        there. A method that trains for long says so of its stages; it must come to the same
        result from the same draws.
    """

    name: str
    run: Callable[[Curator, Released], Released]
    checkpoint: bool = False


class Synthesizer(Protocol):
    """A method bound to a public domain and public settings."""

    @property
    def guarantee(self) -> Guarantee:
        """What this method can claim."""

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Plan every noisy statistic and its noise, from public settings alone."""

    def stages(self, *, mu: float) -> tuple[Stage, ...]:
        """Return the steps of the measurement, in order."""

    def sample(
        self, released: Released, *, n_rows: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Sample records from a finished measurement.

        Parameters
        ----------
        released
            Everything that the stages released.
        n_rows
            Number of records, public.
        rng
            Source of post-processing randomness.

        Returns
        -------
        codes : uint16 array of shape (n_rows, d)
        labels : uint16 array of shape (n_rows,)

        Privacy
        -------
        Post-processing: free, as often as wanted.
        """


Mapper = Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]
"""Maps a function over items, in order: the builtin ``map``, or that of a cluster."""


class PaperForm(Protocol):
    """A method as its paper prints it, bound to a public domain and a claimed epsilon.

    It may read the rows as it likes, so it is for public benchmark data alone.
    """

    def synthesize(
        self,
        codes: NDArray[np.uint16],
        labels: NDArray[np.uint16],
        rng: np.random.Generator,
        executor_map: Mapper = map,
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Make synthetic records of real ones.

        Parameters
        ----------
        codes : uint16 array of shape (n, d)
        labels : uint16 array of shape (n,)
        rng
            Source of every random choice, the noise included.
        executor_map
            Runs the items of a method that has some.

        Returns
        -------
        codes : uint16 array of shape (m, d)
        labels : uint16 array of shape (m,)
        """


def measure(synthesizer: Synthesizer, curator: Curator, *, mu: float) -> Released:
    """Run all stages in order, in this process: the serial reference of the release flow."""
    released: dict[str, NDArray[Any]] = {}
    for stage in synthesizer.stages(mu=mu):
        released.update(stage.run(curator, released))
    return released
