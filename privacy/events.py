"""Privacy events: a public record of what a mechanism did, from which a guarantee is computed.

An event holds no data and no result. A release lists its events in the manifest, as JSON, so that a
reader can compute the guarantee again without the data and without this software.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from privacy.errors import ConfigurationError
from privacy.parameters import Adjacency

MIN_DISCRETE_NOISE_STDDEV = 50.0
"""Least standard deviation of discrete Gaussian noise, in grid units.

Far above the smoothing width of `privacy.gaussian`, so that the grid costs less than one part in
300 of ``mu``; a finer grid is free.
"""

MAX_NOISE_STDDEV = 2.0**55
"""Largest standard deviation in grid units: 64 of them are still inside a 64-bit integer."""

MAX_REPETITIONS = 10**12
"""Largest number of times that a draw happens inside one event."""

_LEAST, _LARGEST = 1e-100, 1e100
"""Range in which squares and their ratio neither overflow nor vanish."""


def _require(condition: bool, expected: str, found: object) -> None:
    """Refuse what is no event (ConfigurationError)."""
    if not condition:
        raise ConfigurationError("EVENT_INVALID", f"expected {expected}, found {_shown(found)}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63


def _shown(value: object) -> str:
    """Return a value as an error may quote it: repr has limits for huge and deep values."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return "an integer beyond 64 bits"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value[:60])
    return f"a {type(value).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """One draw of the Gaussian mechanism on the integers: noise on each coordinate of a statistic.

    The statistic has a public name and at least one value. `l2_sensitivity` is its largest change
    between neighbours, in the Euclidean norm, from 1e-100 to 1e100; `noise_stddev` is the parameter
    sigma of the weights ``exp(-z**2 / (2 sigma**2))`` of the noise, from
    `MIN_DISCRETE_NOISE_STDDEV` to `MAX_NOISE_STDDEV`. Both are in grid units. The sensitivity was
    proven for the adjacency, of patients with all their rows. A field outside its range or of
    another type is a ConfigurationError.
    """

    statistic: str
    l2_sensitivity: float
    noise_stddev: float
    n_values: int
    adjacency: Adjacency = Adjacency.ADD_REMOVE

    def __post_init__(self) -> None:
        is_name = isinstance(self.statistic, str) and bool(self.statistic)
        _require(is_name, "the name of a statistic", self.statistic)
        _require(_is_count(self.n_values), "n_values to be an integer from 1", self.n_values)
        _require(isinstance(self.adjacency, Adjacency), "an Adjacency", self.adjacency)
        numbers = {
            "l2_sensitivity": (_LEAST, _LARGEST),
            "noise_stddev": (MIN_DISCRETE_NOISE_STDDEV, MAX_NOISE_STDDEV),
        }
        for name, (least, most) in numbers.items():
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_inside = is_number and least <= value <= most
            expected = f"{name} to be a number from {least} to {most} grid units (choose the scale)"
            _require(is_inside, expected, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """Events on the same patients, each free to depend on earlier outputs; () reads no data."""

    events: tuple["Event", ...]

    def __post_init__(self) -> None:
        are_events = isinstance(self.events, tuple) and all(
            isinstance(event, Event) for event in self.events
        )
        _require(are_events, "a tuple of events", self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """`count` repetitions of an event, with fresh noise each; nested, up to `MAX_REPETITIONS`."""

    event: "Event"
    count: int

    def __post_init__(self) -> None:
        _require(isinstance(self.event, Event), "an event to repeat", self.event)
        _require(_is_count(self.count), "count to be an integer from 1", self.count)
        most = max((times for _, times in counted_draws(self)), default=0)
        _require(most <= MAX_REPETITIONS, f"at most {MAX_REPETITIONS} repetitions in all", most)


Event = Gaussian | Composed | Repeated


def counted_draws(event: Event, times: int = 1) -> Iterator[tuple[Gaussian, int]]:
    """Yield the draws of an event in order, each with how often it happens."""
    if isinstance(event, Repeated):
        yield from counted_draws(event.event, times * event.count)
    elif isinstance(event, Composed):
        for member in event.events:
            yield from counted_draws(member, times)
    else:
        yield event, times


_MAX_DEPTH = 32
"""Deepest nesting that is read from a file; a deeper one would exhaust the stack."""

_KINDS = {"gaussian": Gaussian, "composed": Composed, "repeated": Repeated}


def event_to_dict(event: Event) -> dict[str, Any]:
    """Return an event as JSON-ready values, its kind and its member or members among them."""
    kind = next(name for name, known in _KINDS.items() if type(event) is known)
    return {"kind": kind, **{f.name: _to_json(getattr(event, f.name)) for f in fields(event)}}


def _to_json(value: Any) -> Any:
    if isinstance(value, Adjacency):
        return value.value
    if isinstance(value, tuple):
        return [event_to_dict(member) for member in value]
    return event_to_dict(value) if isinstance(value, Event) else value


def event_from_dict(values: object) -> Event:
    """Return the event that `event_to_dict` wrote, from parsed JSON.

    It is a ConfigurationError if the kind is unknown, a key is unknown or missing, a value is not
    acceptable, or events are nested too deep. Nothing else is raised, whatever the file holds.
    """
    return _from_json(values, _MAX_DEPTH)


def _from_json(values: object, depth: int) -> Event:
    _require(depth >= 0, f"events nested at most {_MAX_DEPTH} deep", values)
    given = dict(values) if isinstance(values, Mapping) else {}
    kind = given.pop("kind", None)
    is_known = isinstance(kind, str) and kind in _KINDS
    _require(is_known, f"an object whose kind is one of {', '.join(_KINDS)}", kind)
    names = sorted(field.name for field in fields(_KINDS[kind]))
    found = ", ".join(sorted(map(_shown, given)))
    _require(set(given) == set(names), f"a {kind} event of {', '.join(names)}", found)
    if "events" in given:
        members = given["events"]
        _require(isinstance(members, list), f"a list of events in a {kind} event", members)
        given["events"] = tuple(_from_json(member, depth - 1) for member in members)
    if "event" in given:
        given["event"] = _from_json(given["event"], depth - 1)
    if "adjacency" in given:
        word = given["adjacency"]
        is_word = isinstance(word, str) and word in set(Adjacency)
        _require(is_word, f"adjacency to be one of {', '.join(Adjacency)}", word)
        given["adjacency"] = Adjacency(word)
    event: Event = _KINDS[kind](**given)
    return event
