"""Noisy sums of several measurements of disjoint patients, added up: one release of all of them.

A part is the sealed sums of one measurement with the public values that they were drawn at, as
named arrays: of each statistic ``sum_NAME`` in its own units and ``stddev_NAME``, the noise of one
value; ``mu``; the declared number of ``patients``. Post-processing of released values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats
from privacy.errors import IntegrityError
from privacy.events import Composed
from tasks.measurement.measurement_plan import MeasurementPlan
from tasks.measurement.method import Released

Part = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledSums:
    """Released arrays of a pool, and the noisy sums of all parts with their noise, by name."""

    released: dict[str, NDArray[Any]]
    sums: dict[str, tuple[Floats, float]]


@runtime_checkable
class Poolable(Protocol):
    """A method whose measurements can be added up."""

    def part(
        self, plan: MeasurementPlan, released: Released, sealed: Mapping[str, Floats]
    ) -> dict[str, NDArray[Any]]:
        """Return a measurement as a part, of its sealed sums in their own units."""

    def check_part(self, part: Part) -> None:
        """Refuse a part of other arrays than this method has (ValueError)."""

    def pooled(self, parts: Sequence[Part], *, exchangeable: bool) -> PooledSums:
        """Add up parts; those of one are its own.

        Exchangeable parts are drawn from the same patients by chance: sums are then weighted by
        inverse variance. Others add up plainly, every patient counted alike.
        """


def sums_of(
    plan: MeasurementPlan, sealed: Mapping[str, Floats], *, patients: float
) -> dict[str, NDArray[Any]]:
    """Return the sums of a part, with their noise, the budget and the declared patients."""
    sums = {f"sum_{name}": values for name, values in sealed.items()}
    noise = {f"stddev_{name}": np.array(plan[name].unit_noise_stddev) for name in sealed}
    return {"mu": np.array(plan.mu), "patients": np.array(patients), **sums, **noise}


def require_planned(plan: MeasurementPlan, drawn: Composed) -> None:
    """Refuse events that are not those of a plan: another version of the method has drawn them."""
    if plan.event != drawn:
        raise IntegrityError(
            "OTHER_VERSION",
            "expected the draws that this version of the method plans, found those of another "
            "version; pool, export or resample with the version that measured",
        )


def joint_mu(parts: Sequence[Part]) -> tuple[float, float]:
    """Return the declared patients of all parts, and the budget at which one draw is as noisy.

    Noise adds up in squares and patients do not: T equal parts are as one at ``mu / sqrt(T)``.
    """
    patients = np.array([float(part["patients"]) for part in parts])
    mus = np.array([float(part["mu"]) for part in parts])
    total = float(patients.sum())
    return total, float(np.sqrt(((patients / total * mus) ** 2).sum()))


def amounts_of(patients: Floats, stddevs: Floats, *, exchangeable: bool) -> Floats:
    """Factors (T,) of the sums of parts: 1, or by inverse variance with the same total."""
    if not exchangeable:
        return np.ones(len(patients))
    weights = patients / stddevs**2
    return np.asarray(weights * (patients.sum() / (weights * patients).sum()))


def added(sums: Sequence[Floats], stddevs: Floats, amounts: Floats) -> tuple[Floats, float]:
    """Add noisy sums times these amounts; noise adds in squares."""
    total = np.sum([amount * one for amount, one in zip(amounts, sums, strict=True)], axis=0)
    return np.asarray(total), float(np.sqrt(((amounts * stddevs) ** 2).sum()))


def redrawn(part: Part, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return a part with as much noise once more: its sums, as another draw could have been."""
    return {
        name: values + rng.normal(0.0, float(part[f"stddev_{name[4:]}"]), values.shape)
        if name.startswith("sum_")
        else values
        for name, values in part.items()
    }


def require_arrays(part: Part, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse arrays of other names or shapes than these, or without sense (ValueError)."""
    if part.keys() != shapes.keys():
        raise ValueError("the arrays of a part")
    for name, values in part.items():
        positive = name in ("mu", "patients", "pair_scale") or name.startswith("stddev_")
        if (
            values.shape != shapes[name]
            or values.dtype.kind not in "biuf"
            or not np.isfinite(values).all()
            or (positive and not (values > 0.0).all())
        ):
            raise ValueError(f"finite numbers in array {name}")
