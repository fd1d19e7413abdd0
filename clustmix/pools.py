"""Pools of fitted models, other draws of their noise, and conclusions with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from clustmix.guarantee import Charged
from clustmix.synthesizer import Synthesizer
from privacy.errors import refusals

if TYPE_CHECKING:
    from clustmix.guarantee import Guarantee
    from tasks.measurement.pooled_sums import Part, Pool
    from tasks.reporting.conclusions import Interval

refusal = refusals(__package__)

_Model = TypeVar("_Model", bound=Synthesizer)


def pool(models: Sequence[_Model], *, disjoint: bool = False) -> _Model:
    """Make one model of several that have measured different patients. Free: no row is read.

    Noisy sums add up: T equal parts are worth one measurement of all at ``mu / sqrt(T)``.

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
    from tasks.measurement.pooled_sums import require_alike, require_poolable

    first, parts = next(iter(models), None), [_part(model) for model in models]
    if first is None or len({model._measured().file for model in models}) < len(models):
        raise refusal("PARTS_TWICE")
    for model in models[1:]:
        require_alike(_declared(first), _declared(model))
    guarantee = _joint([model.guarantee_ for model in models], disjoint=disjoint)
    sizes = [model.patients for model in models]
    patients = None if None in sizes else sum(filter(None, sizes))
    made = require_poolable(first._measured().method).pooled(parts)
    return _fitted(first, made, guarantee, epsilon=guarantee.epsilon, patients=patients)


def draws(model: _Model, m: int) -> list[_Model]:
    """Return models of other draws of the noise, fitted in parallel; see `Synthesizer.draws`."""
    from privacy.randomness import system_generator
    from tasks.measurement.pooled_sums import draws_of

    method = model._measured().method
    drawn = draws_of(method, _part(model), m, rng=system_generator())
    return [_fitted(model, one, model.guarantee_) for one in drawn]


def contrast(
    model: Synthesizer, kind: str, of: str, *, by: str | None = None, against: str | None = None
) -> Interval:
    """Estimate a share, mean, risk or odds ratio from the sealed tables of a model, free.

    See `tasks.reporting.conclusions.contrast`, which refuses a quantity without a valid interval.
    """
    from tasks.measurement.pooled_sums import noisy_of
    from tasks.reporting import conclusions

    fitted = model._measured()
    sealed = fitted.method, model.schema, fitted.released, noisy_of(fitted.sums)
    return conclusions.contrast(*sealed, kind=kind, of=of, by=by, against=against)


def _part(model: Synthesizer) -> Part:
    """Return the measurement of a model as a part, with its rounds replayed."""
    from tasks.measurement.pooled_sums import part_of

    fitted = model._measured()
    if fitted.file is None:
        raise refusal("PARTS_POOLED")
    plan, events = model.plan().measurement, fitted.guarantee.events
    return part_of(fitted.method, plan, fitted.released, sums=fitted.sums, events=events)


def _declared(model: Synthesizer) -> dict[str, Any]:
    own = {**model.get_params(), "method": model.kind}
    own["schema"] = model.schema.model_dump(mode="json")
    differ = ("epsilon", "patients", "patient_column")
    return {name: value for name, value in own.items() if name not in differ}


def _joint(guarantees: Sequence[Guarantee], *, disjoint: bool) -> Guarantee:
    """Return the guarantee of all parts: that of the largest, or of their sum."""
    largest = max(guarantees, key=lambda one: one.mu)
    entries = [one.charged.entry for one in guarantees if one.charged is not None]
    charged = Charged(entry=", ".join(entries)) if len(entries) == len(guarantees) else None
    events = tuple(event for one in guarantees for event in one.events)
    found = replace(largest, charged=charged, tainted=any(one.tainted for one in guarantees))
    if not disjoint:
        return replace(found, events=events)
    unit = f"{found.privacy_unit}, on the assumption that no patient is in two of the parts"
    return replace(found, privacy_unit=unit)


def _fitted(origin: _Model, made: Pool, guarantee: Guarantee, **changes: Any) -> _Model:
    """Return a fitted model of the settings of another, with changes."""
    model, (released, sums) = origin.__class__(**{**origin.get_params(), **changes}), made
    model._spent = True
    model._fitted = replace(
        origin._measured(), released=released, sums=sums, guarantee=guarantee, file=None
    )
    return model
