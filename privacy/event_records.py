"""Privacy events as JSON: the form in which a manifest lists them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from privacy.events import Composed, Event, Gaussian, Repeated, event_invalid, shown
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
    if depth < 0:
        raise event_invalid(f"expected events nested at most {_MAX_DEPTH} deep, found more")
    if not isinstance(values, Mapping):
        raise event_invalid("expected an event to be an object with a kind")
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise event_invalid(
            f"expected the kind of an event to be one of {', '.join(_KINDS)}, found {shown(kind)}"
        )
    names = [field.name for field in fields(_KINDS[kind])]
    if set(values) != {"kind", *names}:
        raise event_invalid(
            f"expected a {kind} event to have the keys {', '.join(sorted(['kind', *names]))}, "
            f"found {', '.join(sorted(map(shown, values)))}"
        )
    given = {name: values[name] for name in names}
    if "events" in given:
        if not isinstance(given["events"], list):
            raise event_invalid(f"expected the events of a {kind} event to be a list")
        given["events"] = tuple(_from_json(member, depth - 1) for member in given["events"])
    if "event" in given:
        given["event"] = _from_json(given["event"], depth - 1)
    if "adjacency" in given:
        word = given["adjacency"]
        if not isinstance(word, str) or word not in set(Adjacency):
            raise event_invalid(
                f"expected adjacency to be one of {', '.join(Adjacency)}, found {shown(word)}"
            )
        given["adjacency"] = Adjacency(word)
    event: Event = _KINDS[kind](**given)
    return event
