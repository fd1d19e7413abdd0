"""Pools of fitted models, other draws of their noise, and conclusions with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from clustmix.guarantee import Charged
from clustmix.synthesizer import Synthesizer
from privacy.errors import ConfigurationError

if TYPE_CHECKING:
    from clustmix.guarantee import Guarantee
    from clustmix.synthesizer import _Fitted
    from tasks.measurement.pooled_sums import Part
    from tasks.reporting.conclusions import Interval

_Model = TypeVar("_Model", bound=Synthesizer)


def pool(models: Sequence[_Model], *, disjoint: bool = False) -> _Model:
    """Make one model of several that have measured different patients. Free: no row is read.

    Noisy sums of different patients add up, so that T equal parts are worth one measurement of all
    at ``mu / sqrt(T)``.

    Parameters
    ----------
    models
        Fitted models of ClustMix on a table or of naive Bayes, with equal schemas and settings.
    disjoint
        The caller states that no patient is in two of them: the guarantee is then that of the
        largest part, with this assumption in its words. Otherwise it is that of the sum.

    Raises
    ------
    ConfigurationError
        If parts declare different things (the first difference is named), one is given twice, or
        the method cannot be pooled.
    """
    from tasks.measurement.pooled_sums import require_alike

    if not models:
        raise ConfigurationError("PARTS_MISSING", "expected fitted models to pool, found none")
    first, parts = models[0], [_part(model) for model in models]
    for model in models[1:]:
        mine, theirs = ({**one.get_params(), "method": one.kind} for one in (first, model))
        for declared, of in ((mine, first), (theirs, model)):
            declared["schema"] = of.schema.model_dump(mode="json")
            for name in ("epsilon", "patients", "patient_column"):
                del declared[name]
        require_alike(mine, theirs)
    if len({model._measured().file for model in models}) < len(models):
        raise ConfigurationError("PART_TWICE", "expected each measurement once, found one twice")
    guarantees = [model.guarantee_ for model in models]
    found = _joint(guarantees, disjoint=disjoint) if len(models) > 1 else guarantees[0]
    sizes = [model.patients for model in models]
    patients = None if None in sizes else sum(filter(None, sizes))
    changes = {"epsilon": found.epsilon, "patients": patients}
    return _fitted(first, parts, found, **changes)


def draws(model: _Model, m: int) -> list[_Model]:
    """Return models of other draws; see `Synthesizer.draws`."""
    from privacy.randomness import system_generator
    from tasks.measurement.pooled_sums import redrawn

    part, rng = _part(model), system_generator()
    return [_fitted(model, [redrawn(part, rng)], model.guarantee_) for _ in range(m)]


def contrast(
    model: Synthesizer, kind: str, of: str, *, by: str | None = None, against: str | None = None
) -> Interval:
    """Estimate a share, mean, risk or odds ratio from the sealed tables of a model, free.

    See `tasks.reporting.conclusions.contrast`, which refuses by name what no interval covers.
    """
    from tasks.reporting import conclusions

    fitted, plan = _sealed(model), model.plan().measurement

    def noisy(name: str) -> tuple[Any, float]:
        return fitted.sealed[name] / plan[name].scale, plan[name].unit_noise_stddev

    asked = conclusions.Question(kind=kind, of=of, by=by, against=against)
    return conclusions.contrast(fitted.method, model.schema, fitted.released, noisy, asked=asked)


def combine(
    estimates: Sequence[float],
    variances: Sequence[float],
    *,
    rows: int | None = None,
    patients: float | None = None,
) -> Interval:
    """Make an interval of an estimate of a release and of its draws.

    See `tasks.reporting.conclusions.combine`.
    """
    from tasks.reporting.conclusions import combine

    return combine(estimates, variances, rows=rows, patients=patients)


def _part(model: Synthesizer) -> Part:
    """Return the measurement of a model as a part, with its rounds replayed."""
    from tasks.measurement.pooled_sums import part_of

    fitted, plan = _sealed(model), model.plan().measurement
    events = fitted.guarantee.events
    return part_of(fitted.method, plan, fitted.released, sealed=fitted.sealed, events=events)


def _sealed(model: Synthesizer) -> _Fitted:
    """Return a measurement with its sealed sums, where it keeps them (ConfigurationError)."""
    from tasks.measurement.pooled_sums import require_poolable

    fitted = model._measured()
    require_poolable(fitted.method)
    if fitted.sealed:
        return fitted
    raise ConfigurationError(
        "SUMS_MISSING",
        "expected a model that keeps its sealed sums, found a pool, a draw or a file that has "
        "none; use what it was made of",
    )


def _joint(guarantees: Sequence[Guarantee], *, disjoint: bool) -> Guarantee:
    """Return the guarantee of all parts: that of the largest, or of their sum."""
    largest = max(guarantees, key=lambda one: one.mu)
    entries = [one.charged.entry for one in guarantees if one.charged is not None]
    charged = Charged(entry=", ".join(entries)) if len(entries) == len(guarantees) else None
    events = tuple(event for one in guarantees for event in one.events)
    tainted = any(one.tainted for one in guarantees)
    if not disjoint:
        return replace(largest, events=events, charged=charged, tainted=tainted)
    unit = f"{largest.privacy_unit}, on the assumption that no patient is in two of the parts"
    return replace(largest, privacy_unit=unit, charged=charged, tainted=tainted)


def _fitted(origin: _Model, parts: Sequence[Part], guarantee: Guarantee, **changes: Any) -> _Model:
    """Return a model of the settings of another, with changes, fitted to parts."""
    from tasks.measurement.pooled_sums import require_poolable

    fitted, model = origin._measured(), origin.__class__(**{**origin.get_params(), **changes})
    released, _ = require_poolable(fitted.method).pooled(parts)
    model._spent = True
    model._fitted = replace(fitted, released=released, sealed={}, guarantee=guarantee, file=None)
    return model
