"""Privacy events: a public record of what a mechanism did, from which any accountant can work.

An event holds no data and no result. A release lists its events in the manifest, so that a reader
can compute the guarantee again without the data and without this software.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privacy.errors import ConfigurationError
from privacy.parameters import Adjacency

MIN_DISCRETE_NOISE_STDDEV = 50.0
"""Least standard deviation of discrete Gaussian noise, in grid units.

Far above the smoothing width of `privacy.accountants.gaussian`, so that the grid costs less than
one part in 300 of ``mu``; a finer grid is free.
"""

MAX_NOISE_STDDEV = 2.0**55
"""Largest standard deviation in grid units: 64 of them are still inside a 64-bit integer."""

_LEAST, _LARGEST = 1e-100, 1e100
"""Range in which squares and their ratio neither overflow nor vanish."""


def _invalid(message: str) -> ConfigurationError:
    return ConfigurationError("EVENT_INVALID", message)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianEvent:
    """One draw of the Gaussian mechanism with continuous noise.

    Parameters
    ----------
    statistic : str
        Public name of the statistic.
    l2_sensitivity : float
        Largest change of the statistic, in the Euclidean norm, between neighbours;
        from 1e-100 to 1e100.
    noise_stddev : float
        Standard deviation of the noise of each coordinate, in the unit of `l2_sensitivity`.
    n_values : int
        Number of coordinates, at least 1.
    adjacency : Adjacency
        The neighbours for which the sensitivity was proven.

    Raises
    ------
    ConfigurationError
        If a field is outside its range or of another type.
    """

    statistic: str
    l2_sensitivity: float
    noise_stddev: float
    n_values: int
    adjacency: Adjacency = Adjacency.ADD_REMOVE

    def __post_init__(self) -> None:
        """Refuse what is not a draw; events are also built from files."""
        if not isinstance(self.statistic, str) or not self.statistic:
            raise _invalid(f"expected the name of a statistic, found {self.statistic!r}")
        for name in ("l2_sensitivity", "noise_stddev"):
            value = getattr(self, name)
            if not (_is_number(value) and _LEAST <= value <= _LARGEST):
                raise _invalid(
                    f"expected {name} to be a number from 1e-100 to 1e100, found {value!r}"
                )
        if (
            not isinstance(self.n_values, int)
            or isinstance(self.n_values, bool)
            or not 1 <= self.n_values < 2**63
        ):
            raise _invalid(f"expected n_values to be an integer from 1, found {self.n_values!r}")
        if not isinstance(self.adjacency, Adjacency):
            raise _invalid(f"expected an Adjacency, found {self.adjacency!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteGaussianEvent(GaussianEvent):
    """One draw of the discrete Gaussian on the integers, added to each coordinate.

    Same fields as `GaussianEvent`, in integer grid units. ``noise_stddev`` is the parameter
    sigma of the weights ``exp(-z**2 / (2 sigma**2))``.

    Raises
    ------
    ConfigurationError
        As `GaussianEvent`, and if ``noise_stddev`` is below `MIN_DISCRETE_NOISE_STDDEV` or above
        `MAX_NOISE_STDDEV`.
    """

    def __post_init__(self) -> None:
        """Refuse a grid that is too coarse or too fine for the noise."""
        # A zero-argument super() does not work in a slotted dataclass, which is a new class.
        GaussianEvent.__post_init__(self)
        if not MIN_DISCRETE_NOISE_STDDEV <= self.noise_stddev <= MAX_NOISE_STDDEV:
            raise _invalid(
                f"expected noise_stddev from {MIN_DISCRETE_NOISE_STDDEV} to {MAX_NOISE_STDDEV} "
                f"grid units, found {self.noise_stddev!r}; change the scale of the grid"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedEvent:
    """Events on the same patients, one after the other, each free to depend on earlier outputs.

    Parameters
    ----------
    events : tuple of Event
        The events; an empty tuple stands for no access to the data.
    """

    events: tuple["Event", ...]

    def __post_init__(self) -> None:
        """Refuse anything that is not a tuple of events."""
        _check_members(self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelEvent:
    """Events on disjoint sets of patients.

    The part of a patient is a function of that patient alone, for example a keyed hash of the
    identifier. Time windows of encounters are not disjoint.

    Parameters
    ----------
    events : tuple of Event
        One event per part, all for add or remove of a patient: a patient who is replaced may
        move from one part to another, which no event for replacement inside a part covers.

    Raises
    ------
    ConfigurationError
        If a part, however deep, is for another adjacency.
    """

    events: tuple["Event", ...]

    def __post_init__(self) -> None:
        """Refuse parts whose adjacency does not allow parallel composition."""
        _check_members(self.events)
        if any(leaf.adjacency is not Adjacency.ADD_REMOVE for leaf in leaves(self)):
            raise _invalid("expected events for add_remove inside a ParallelEvent")


Event = GaussianEvent | DiscreteGaussianEvent | ComposedEvent | ParallelEvent

_LEAVES: Mapping[str, type[GaussianEvent]] = {
    "discrete_gaussian": DiscreteGaussianEvent,
    "gaussian": GaussianEvent,
}
_CONTAINERS: Mapping[str, type[ComposedEvent] | type[ParallelEvent]] = {
    "composed": ComposedEvent,
    "parallel": ParallelEvent,
}
_LEAF_FIELDS = ("statistic", "l2_sensitivity", "noise_stddev", "n_values", "adjacency")


def _check_members(events: object) -> None:
    if not isinstance(events, tuple) or not all(isinstance(event, Event) for event in events):
        raise _invalid("expected a tuple of events")


def leaves(event: Event) -> tuple[GaussianEvent, ...]:
    """Return the draws of an event, in order, whatever composition holds them.

    Parameters
    ----------
    event : Event
        Any event.

    Returns
    -------
    tuple of GaussianEvent
        Gaussian and discrete Gaussian events.
    """
    if isinstance(event, GaussianEvent):
        return (event,)
    return tuple(leaf for member in event.events for leaf in leaves(member))


def event_to_dict(event: Event) -> dict[str, Any]:
    """Return an event as JSON-ready values, with its kind.

    Parameters
    ----------
    event : Event
        Any event.

    Returns
    -------
    dict
        ``kind`` and the fields of the event; containers hold a list under ``events``.
    """
    if isinstance(event, GaussianEvent):
        kind = next(name for name, leaf in _LEAVES.items() if type(event) is leaf)
        fields = {name: getattr(event, name) for name in _LEAF_FIELDS}
        return {"kind": kind, **fields, "adjacency": event.adjacency.value}
    kind = next(name for name, container in _CONTAINERS.items() if type(event) is container)
    return {"kind": kind, "events": [event_to_dict(member) for member in event.events]}


def event_from_dict(values: object) -> Event:
    """Return the event that `event_to_dict` wrote.

    Parameters
    ----------
    values : object
        Parsed JSON.

    Returns
    -------
    Event
        The event, with all its checks passed.

    Raises
    ------
    ConfigurationError
        If the kind is unknown, a key is unknown or missing, or a value is not acceptable.
    """
    if not isinstance(values, Mapping):
        raise _invalid("expected an event to be an object with a kind")
    kind = str(values.get("kind"))
    if kind in _LEAVES:
        expected = {"kind", *_LEAF_FIELDS}
    elif kind in _CONTAINERS:
        expected = {"kind", "events"}
    else:
        known = ", ".join([*_LEAVES, *_CONTAINERS])
        raise _invalid(f"expected the kind of an event to be one of {known}, found {kind!r}")
    if set(values) != expected:
        raise _invalid(
            f"expected a {kind} event to have the keys {', '.join(sorted(expected))}, "
            f"found {', '.join(sorted(map(str, values)))}"
        )
    if kind in _CONTAINERS:
        if not isinstance(values["events"], list):
            raise _invalid(f"expected the events of a {kind} event to be a list")
        return _CONTAINERS[kind](events=tuple(map(event_from_dict, values["events"])))
    if str(values["adjacency"]) not in set(Adjacency):
        raise _invalid(
            f"expected adjacency to be one of {', '.join(Adjacency)}, found {values['adjacency']!r}"
        )
    fields = {name: values[name] for name in _LEAF_FIELDS}
    return _LEAVES[kind](**{**fields, "adjacency": Adjacency(values["adjacency"])})
