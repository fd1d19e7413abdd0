"""Sums of several measurements of disjoint patients, added up to one release of all of them.

A part is the sealed sums of one measurement with the public values that they were drawn at, as
named arrays: of each statistic ``sum_NAME`` in its own units and ``stddev_NAME``, the noise of one
value; ``mu``; the declared number of ``patients``. Sums add up plainly, so that every patient
counts alike. Post-processing of released values.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats
from privacy.errors import ConfigurationError, IntegrityError
from privacy.events import Event
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import Released, Synthesizer

Part = Mapping[str, NDArray[Any]]

Pool = tuple[dict[str, NDArray[Any]], dict[str, tuple[Floats, float]]]
"""Released arrays of a pool, and the noisy sums of all parts with their noise, by name."""


@runtime_checkable
class Poolable(Protocol):
    """A method whose measurements can be added up."""

    def part(
        self, plan: MeasurementPlan, released: Released, sealed: Mapping[str, Floats]
    ) -> dict[str, NDArray[Any]]:
        """Return a measurement as a part, of its sealed sums in their own units."""

    def check_part(self, part: Part) -> None:
        """Refuse arrays that are no part of this domain (ValueError)."""

    def pooled(self, parts: Sequence[Part]) -> Pool:
        """Add up parts; the pool of one part is its release."""


def part_of(
    method: Synthesizer, plan: MeasurementPlan, released: Released, **of: Any
) -> dict[str, NDArray[Any]]:
    """Return a measurement as a part, of its `sealed` sums on the grid and its `events`.

    It is an IntegrityError if another version of the method has drawn them.
    """
    poolable, events = require_poolable(method), tuple[Event, ...](of["events"])
    if plan.event.events != events:
        raise IntegrityError(
            "OTHER_VERSION",
            "expected the draws that this version of the method plans, found those of another; "
            "pool, export and draw again with the version that measured",
        )
    sums = {name: values / plan[name].scale for name, values in of["sealed"].items()}
    return poolable.part(plan, released, sums)


def require_poolable(method: object) -> Poolable:
    """Return a method whose measurements can be added up (ConfigurationError)."""
    if isinstance(method, Poolable):
        return method
    raise ConfigurationError(
        "NOT_POOLABLE",
        "expected ClustMix on a table, or naive Bayes, whose noisy sums can be added up and drawn "
        f"again, found {method.__class__.__name__}; pool tables of one of these methods",
    )


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
        raise ConfigurationError(
            "PARTS_DIFFER",
            f"expected equal declarations of all parts, found that {place} differs: {first!r:.80} "
            f"and {other!r:.80}; pool measurements of one declared table",
        )


def sums_of(
    plan: MeasurementPlan, sealed: Mapping[str, Floats], *, patients: float
) -> dict[str, NDArray[Any]]:
    """Return the sums of a part, with their noise, the budget and the declared patients."""
    noise = {f"stddev_{name}": np.array(plan[name].unit_noise_stddev) for name in sealed}
    sums = {f"sum_{name}": values for name, values in sealed.items()}
    return {"mu": np.array(plan.mu), "patients": np.array(patients), **sums, **noise}


def added(parts: Sequence[Part], name: str) -> tuple[Floats, float]:
    """Add up the noisy sums of a name; noise adds in squares."""
    stddevs = [float(part[f"stddev_{name}"]) for part in parts]
    total = np.sum([part[f"sum_{name}"] for part in parts], axis=0)
    return np.asarray(total), float(np.sqrt(np.square(stddevs).sum()))


def joint_mu(parts: Sequence[Part]) -> tuple[float, float]:
    """Return the declared patients of all parts, and the budget at which one draw is as noisy.

    Noise adds up in squares and patients do not: T equal parts are as one at ``mu / sqrt(T)``.
    """
    patients, mus = (np.array([float(part[name]) for part in parts]) for name in ("patients", "mu"))
    total = float(patients.sum())
    return total, float(np.sqrt(((patients / total * mus) ** 2).sum()))


def redrawn(part: Part, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return a part with as much noise once more: its sums, as another draw could have been."""
    found = dict(part)
    for name in filter(lambda name: name.startswith("sum_"), part):
        stddev = float(part[f"stddev_{name.removeprefix('sum_')}"])
        found[name] = part[name] + rng.normal(0.0, stddev, part[name].shape)
    return found


def require_arrays(part: Part, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse arrays of other names or shapes than these, or without sense (ValueError)."""
    if part.keys() != shapes.keys():
        raise ValueError("the arrays of a part")
    for name, values in part.items():
        above = name in ("mu", "patients", "pair_scale") or name.startswith("stddev_")
        sound = values.shape == shapes[name] and values.dtype.kind in "biuf"
        if not sound or not np.isfinite(values).all() or (above and not (values > 0.0).all()):
            raise ValueError(f"finite numbers of the right shape in array {name}")
