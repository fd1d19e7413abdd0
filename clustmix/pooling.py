"""Pools of fitted models, other draws of their noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from clustmix.guarantee import Charged
from clustmix.synthesizer import Synthesizer
from privacy.errors import ConfigurationError

if TYPE_CHECKING:
    from clustmix.guarantee import Guarantee
    from tasks.measurement.pooling import Part, PooledSums

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
    from tasks.measurement.pooling import require_alike

    if not models:
        raise ConfigurationError("PARTS_MISSING", "expected fitted models to pool, found none")
    first, *others = models
    parts = [_part(model) for model in models]
    for model in others:
        require_alike(_declared(first), _declared(model))
    if len({model._measured().file for model in models}) < len(models):
        raise ConfigurationError("PART_TWICE", "expected each measurement once, found one twice")
    guarantees = [model.guarantee_ for model in models]
    found = _joint(guarantees, disjoint=disjoint) if others else guarantees[0]
    declared = [model.patients for model in models]
    settings = {**first.get_params(), "epsilon": found.epsilon}
    settings["patients"] = None if None in declared else sum(filter(None, declared))
    return _fitted(first.__class__(**settings), first, _pooled(first, parts).released, found)


def draws(model: _Model, m: int) -> list[_Model]:
    """Return models of other draws; see `Synthesizer.draws`."""
    from privacy.randomness import system_generator
    from tasks.measurement.pooling import redrawn

    part, rng = _part(model), system_generator()
    return [
        _fitted(
            model.__class__(**model.get_params()),
            model,
            _pooled(model, [redrawn(part, rng)]).released,
            model.guarantee_,
        )
        for _ in range(m)
    ]


def _part(model: Synthesizer) -> Part:
    """Return the measurement of a model as a part, with its rounds replayed."""
    from tasks.measurement.method import checked_plan
    from tasks.measurement.pooling import require_planned, require_poolable

    fitted, target = model._measured(), model._target()
    method = require_poolable(fitted.method)
    if not fitted.sealed:
        raise ConfigurationError(
            "SUMS_MISSING",
            "expected a model that has measured and keeps its sealed sums, found a pool, a draw, "
            "or a file of an earlier version; use what it was made of",
        )
    plan = checked_plan(fitted.method, parameters=target.parameters, adjacency=target.adjacency)
    require_planned(plan, fitted.guarantee.events)
    sums = {name: values / plan[name].scale for name, values in fitted.sealed.items()}
    return method.part(plan, fitted.released, sums)


def _pooled(model: Synthesizer, parts: Sequence[Part]) -> PooledSums:
    from tasks.measurement.pooling import require_poolable

    return require_poolable(model._measured().method).pooled(parts, exchangeable=False)


def _declared(model: Synthesizer) -> Mapping[str, Any]:
    """Return what parts have to declare alike."""
    settings = model._settings().model_dump(mode="json")
    names = ("delta", "adjacency", "max_rows_per_patient")
    return {
        "method": settings,
        "schema": model.schema.model_dump(mode="json"),
        **{name: getattr(model, name) for name in names},
    }


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


def _fitted(model: _Model, origin: _Model, released: Any, guarantee: Guarantee) -> _Model:
    fitted = origin._measured()
    model._spent = True
    model._fitted = replace(fitted, released=released, sealed={}, guarantee=guarantee, file=None)
    return model
