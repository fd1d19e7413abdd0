"""The protocol of synthesizers: a plan made from public settings, then stages, then a sampler.

`checked_plan` and `measure` are the one way to run any of them, by the flow and by `clustmix`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats, Records
from privacy.calibration import release_mu
from privacy.errors import refusals
from privacy.gaussian import GaussianAccountant
from privacy.parameters import Adjacency, PrivacyParameters
from tasks.measurement.curator import Curator
from tasks.measurement.measurement_plan import MeasurementPlan

refusal = refusals(__package__)

PUBLIC_SEED = 20_221_013
"""Seed of every public random choice (slices, features, starting points): it may be printed."""

Released = Mapping[str, NDArray[Any]]
"""Named public arrays: what earlier stages released or derived. Safe to store and to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a measurement: `run` takes the curator and the released arrays, and adds some."""

    name: str
    run: Callable[[Curator, Released], Released]


class Synthesizer(Protocol):
    """A method bound to a public domain and public settings."""

    def plan(self, *, mu: float) -> MeasurementPlan:
        """Plan every noisy statistic and its noise, from public settings alone."""

    def stages(self) -> tuple[Stage, ...]:
        """Return the steps of the measurement, in order."""

    def sample(self, released: Released, *, n_rows: int, rng: np.random.Generator) -> Records:
        """Sample records from a finished measurement.

        Codes have shape (n_rows, d), labels (n_rows,); their number is public.

        Privacy
        -------
        Post-processing: free, as often as wanted.
        """


@dataclass(frozen=True, kw_only=True)
class Table:
    """Shares (a, b) of one or two columns, by groups of codes; of one column b is 1.

    Estimates and their standard deviations (a, b) are None where nothing was measured. A coarsened
    table was measured with some codes joined; an implied one follows from the model alone.
    """

    columns: tuple[int, ...]
    groups: tuple[tuple[tuple[int, ...], ...], ...]
    origin: Literal["measured", "coarsened", "implied"]
    shares: Floats
    estimates: Floats | None = None
    stddevs: Floats | None = None


Noisy = Callable[[str], tuple[Floats, float]]
"""Sealed values of a statistic by its name, and the standard deviation of the noise of one."""


def budget_left(synthesizer: Synthesizer, curator: Curator, released: Released) -> Released:
    """Check the draws so far against the method's plan (IntegrityError); return ``mu_left``."""
    plan, happened = synthesizer.plan(mu=curator.plan.mu), curator.event
    if happened.events != plan.event.events[: len(happened.events)]:
        raise refusal("PLAN_BROKEN early")
    spent = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(happened).mu
    return {"mu_left": np.array(math.sqrt(max(plan.mu**2 - spent**2, 0.0)))}


def checked_plan(
    synthesizer: Synthesizer, *, parameters: PrivacyParameters, adjacency: Adjacency
) -> MeasurementPlan:
    """Plan a measurement, and check the plan against its guarantee (IntegrityError)."""
    plan = synthesizer.plan(mu=release_mu(parameters, adjacency=adjacency))
    stated = GaussianAccountant(adjacency=adjacency).compose(plan.event)
    if stated.epsilon(delta=parameters.delta) > parameters.epsilon * (1.0 + 1e-9):
        raise refusal("PLAN_OVER_BUDGET")
    return plan


StageRunner = Callable[[Stage, Curator, dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]
"""Runs one stage; returns everything released so far."""


def run_stage(
    stage: Stage, curator: Curator, released: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Run one stage of a method and return everything released so far."""
    return {**released, **stage.run(curator, released)}


def measure(
    synthesizer: Synthesizer, curator: Curator, *, run: StageRunner = run_stage
) -> dict[str, NDArray[Any]]:
    """Run the stages of a method in order, and check all draws against the plan (IntegrityError).

    An orchestrator gives a `run` that makes each stage a task.
    """
    released: dict[str, NDArray[Any]] = {}
    for stage in synthesizer.stages():
        released = run(stage, curator, released)
    if curator.event != curator.plan.event:
        raise refusal("PLAN_BROKEN")
    return released
