"""Privacy events as JSON: the form in which a manifest lists them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from privacy.events import Composed, Event, Gaussian, Repeated, require_event, shown
from privacy.parameters import Adjacency

_MAX_DEPTH = 32
"""Deepest nesting that is read from a file; a deeper one would exhaust the stack."""

_KINDS: Mapping[str, type[Any]] = {
    "gaussian": Gaussian,
    "composed": Composed,
    "repeated": Repeated,
}


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
    require_event(depth >= 0, f"events nested at most {_MAX_DEPTH} deep", values)
    given = dict(values) if isinstance(values, Mapping) else {}
    kind = given.pop("kind", None)
    is_known = isinstance(kind, str) and kind in _KINDS
    require_event(is_known, f"an object whose kind is one of {', '.join(_KINDS)}", kind)
    names = sorted(field.name for field in fields(_KINDS[kind]))
    found = ", ".join(sorted(map(shown, given)))
    require_event(set(given) == set(names), f"a {kind} event of {', '.join(names)}", found)
    if "events" in given:
        members = given["events"]
        require_event(isinstance(members, list), f"a list of events in a {kind} event", members)
        given["events"] = tuple(_from_json(member, depth - 1) for member in members)
    if "event" in given:
        given["event"] = _from_json(given["event"], depth - 1)
    if "adjacency" in given:
        word = given["adjacency"]
        is_word = isinstance(word, str) and word in set(Adjacency)
        require_event(is_word, f"adjacency to be one of {', '.join(Adjacency)}", word)
        given["adjacency"] = Adjacency(word)
    event: Event = _KINDS[kind](**given)
    return event
