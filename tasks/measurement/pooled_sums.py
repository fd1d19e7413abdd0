"""Sums of several measurements of disjoint patients, added up to one release of all of them.

A part is the sealed sums of one measurement with the public values that they were drawn at, as
named arrays: of each statistic ``sum_NAME`` in its own units and ``stddev_NAME``, the noise of one
value; ``mu``; the declared number of ``patients``. Sums add up plainly, so that every patient
counts alike. Post-processing of released values.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import hypot
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from privacy.errors import refusals
from privacy.events import Event
from tasks.measurement.encoded import EncodingDomain
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import Noisy, Released

refusal = refusals(__package__)

Part = Mapping[str, NDArray[Any]]

Pool = tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]
"""Released arrays of a pool, and the noisy sums of all parts with their noise."""


@runtime_checkable
class _Poolable(Protocol):
    """A method whose measurements can be added up."""

    domain: EncodingDomain

    def drawn_at(self, plan: MeasurementPlan, released: Released, sums: Part) -> Part:
        """Return the public arrays at which sealed sums were drawn."""

    def pooled(self, parts: Sequence[Part]) -> Pool:
        """Add up parts; the pool of one part is its release."""


def sums_of(plan: MeasurementPlan, sealed: Part) -> dict[str, NDArray[Any]]:
    """Return sealed sums on the grid in their own units, with their noise."""
    sums = {f"sum_{name}": values / plan[name].scale for name, values in sealed.items()}
    return sums | {f"stddev_{name}": np.array(plan[name].unit_noise_stddev) for name in sealed}


def noisy_of(sums: Part) -> Noisy:
    """Return the sums and their noise by the name of a statistic."""
    return lambda name: (sums[f"sum_{name}"], float(sums[f"stddev_{name}"]))


def part_of(
    method: object,
    plan: MeasurementPlan,
    released: Released,
    *,
    sums: Part,
    events: Iterable[Event],
) -> dict[str, NDArray[Any]]:
    """Return a measurement as a part, of its sealed sums and its events.

    It is an IntegrityError if another version of the method has drawn them.
    """
    poolable = require_poolable(method)
    if plan.event.events != tuple(events):
        raise refusal("OTHER_VERSION")
    # The default of the rule that splits the budget, if the number is undeclared.
    patients = np.array(float(poolable.domain.patients or 10_000))
    drawn_at = poolable.drawn_at(plan, released, sums)
    return {"mu": np.array(plan.mu), "patients": patients, **sums, **drawn_at}


def require_poolable(method: object) -> _Poolable:
    """Return a method whose measurements can be added up (ConfigurationError)."""
    if isinstance(method, _Poolable):
        return method
    raise refusal("NOT_POOLABLE")


def require_alike(first: Any, other: Any, *, place: str = "") -> None:
    """Refuse parts that declare something else (ConfigurationError); names the first difference."""
    if isinstance(first, Mapping) and isinstance(other, Mapping):
        for key in (*first, *(other.keys() - first.keys())):
            require_alike(first.get(key), other.get(key), place=f"{place}.{key}".strip("."))
    elif isinstance(first, list) and isinstance(other, list) and len(first) == len(other):
        for index, pair in enumerate(zip(first, other, strict=True)):
            named = pair[0].get("name", index) if isinstance(pair[0], Mapping) else index
            require_alike(*pair, place=f"{place}[{named}]")
    elif first != other:
        raise refusal("PARTS_DIFFER", place=place, first=first, other=other)


def added(parts: Sequence[Part], name: str) -> dict[str, NDArray[Any]]:
    """Add up the noisy sums of a name; noise adds in squares."""
    stddev = hypot(*(float(part[f"stddev_{name}"]) for part in parts))
    total = np.sum([part[f"sum_{name}"] for part in parts], axis=0)
    return {f"sum_{name}": total, f"stddev_{name}": np.array(stddev)}


def joint_mu(parts: Sequence[Part]) -> tuple[float, float]:
    """Return the declared patients of all parts, and the budget of one draw with equal noise.

    Noise of sums adds in squares: T parts at one mu are like one draw at ``mu / sqrt(T)``.
    """
    total = sum(float(part["patients"]) for part in parts)
    return total, 1.0 / hypot(*(1.0 / float(part["mu"]) for part in parts))


def redrawn(part: Part, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return a parametric bootstrap draw of a part: its sums with fresh noise of the same size."""
    found = dict(part)
    for name in filter(lambda name: name.startswith("sum_"), part):
        stddev = float(part[f"stddev_{name.removeprefix('sum_')}"])
        found[name] = part[name] + rng.normal(0.0, stddev, part[name].shape)
    return found


def draws_of(method: object, part: Part, n_draws: int, *, rng: np.random.Generator) -> list[Pool]:
    """Fit bootstrap draws of a part (see `redrawn`), in parallel."""
    poolable, drawn = require_poolable(method), [redrawn(part, rng) for _ in range(n_draws)]
    # The fits limit BLAS, too; without a limit around them the last one would leave its own behind.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as workers:
        return list(workers.map(lambda one: poolable.pooled([one]), drawn))


def pool_of(method: object, parts: Sequence[Part]) -> Pool:
    """Add up parts, the first of which is trusted; IntegrityError if another one is invalid.

    Arrays must be finite, with the names, shapes and types of the first part, except for pairs and
    the number of rounds. Budgets, sizes and noise must be above 0.
    """
    poolable = require_poolable(method)
    with suppress(ValueError, KeyError, TypeError, IndexError):
        if all(_form(part) == _form(parts[0]) for part in parts):
            return poolable.pooled(parts)
    raise refusal("PART_INVALID")


def _form(part: Part) -> set[tuple[object, ...]]:
    """Return shapes, types and validity of values, with names without numbers of rounds."""
    form = set[tuple[object, ...]]()
    for name, values in part.items():
        above = name.startswith(("mu", "patients", "stddev", "pair_scale"))
        sound = np.isfinite(values).all() and ((values > 0.0).all() or not above)
        shape = () if name == "sum_pair_tables" else values.shape
        form.add((re.sub("[0-9]+", "", name), shape, values.dtype.kind, bool(sound)))
    return form
