import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import ConfigurationError
from privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    ParallelEvent,
    event_from_dict,
    event_to_dict,
    leaves,
)
from privacy.parameters import Adjacency


def discrete_draw(**changes: Any) -> DiscreteGaussianEvent:
    fields = {"statistic": "a", "l2_sensitivity": 1.0, "noise_stddev": 100.0, "n_values": 3}
    return DiscreteGaussianEvent(**{**fields, **changes})


def draws(adjacency: st.SearchStrategy[Adjacency]) -> st.SearchStrategy[Event]:
    fields = {
        "statistic": st.text(min_size=1),
        "l2_sensitivity": st.floats(1e-3, 1e9),
        "noise_stddev": st.floats(50.0, 2.0**55),
        "n_values": st.integers(1, 2**62),
        "adjacency": adjacency,
    }
    return st.builds(GaussianEvent, **fields) | st.builds(DiscreteGaussianEvent, **fields)


def containers(members: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    tuples = st.lists(members, max_size=3).map(tuple)
    return st.builds(ComposedEvent, events=tuples)


def parallel(members: st.SearchStrategy[Event]) -> st.SearchStrategy[Event]:
    tuples = st.lists(members, max_size=3).map(tuple)
    return containers(members) | st.builds(ParallelEvent, events=tuples)


any_event = st.recursive(
    draws(st.sampled_from(Adjacency)), containers, max_leaves=6
) | st.recursive(draws(st.just(Adjacency.ADD_REMOVE)), parallel, max_leaves=6)


@given(event=any_event)
def test_an_event_survives_json_exactly(event: Event) -> None:
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event


def test_the_written_form_is_fixed() -> None:
    event = ParallelEvent(events=(ComposedEvent(events=(discrete_draw(),)),))
    assert event_to_dict(event) == {
        "kind": "parallel",
        "events": [
            {
                "kind": "composed",
                "events": [
                    {
                        "kind": "discrete_gaussian",
                        "statistic": "a",
                        "l2_sensitivity": 1.0,
                        "noise_stddev": 100.0,
                        "n_values": 3,
                        "adjacency": "add_remove",
                    }
                ],
            }
        ],
    }


def test_leaves_are_all_draws_in_order() -> None:
    a, b, c = (discrete_draw(statistic=name) for name in "abc")
    nested = ComposedEvent(events=(a, ParallelEvent(events=(b, ComposedEvent(events=(c,))))))
    assert leaves(nested) == (a, b, c)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"statistic": ""}, "expected the name of a statistic, found ''"),
        ({"l2_sensitivity": 0.0}, "expected l2_sensitivity to be a number from 1e-100 to 1e100"),
        ({"l2_sensitivity": math.nan}, "expected l2_sensitivity to be a number"),
        ({"l2_sensitivity": math.inf}, "expected l2_sensitivity to be a number"),
        ({"l2_sensitivity": True}, "expected l2_sensitivity to be a number"),
        ({"noise_stddev": "100"}, "expected noise_stddev to be a number"),
        ({"noise_stddev": -100.0}, "expected noise_stddev to be a number"),
        ({"noise_stddev": 49.999}, r"expected noise_stddev from 50\.0 to .* found 49\.999; change"),
        ({"noise_stddev": 2.0**55 * 1.01}, r"expected noise_stddev from 50\.0 to "),
        ({"n_values": 0}, "expected n_values to be an integer from 1, found 0"),
        ({"n_values": 1.0}, r"expected n_values to be an integer from 1, found 1\.0"),
        ({"n_values": True}, "expected n_values to be an integer from 1, found True"),
        ({"n_values": 2**63}, "expected n_values to be an integer from 1"),
        ({"adjacency": "add_remove"}, "expected an Adjacency, found 'add_remove'"),
    ],
)
def test_a_draw_outside_its_range_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"EVENT_INVALID: {message}"):
        discrete_draw(**changes)


def test_continuous_noise_has_no_grid() -> None:
    event = GaussianEvent(statistic="a", l2_sensitivity=1.0, noise_stddev=0.5, n_values=1)
    assert event.noise_stddev == 0.5


@pytest.mark.parametrize("container", [ComposedEvent, ParallelEvent])
@pytest.mark.parametrize("members", [[], ("a",), None])
def test_a_container_holds_a_tuple_of_events(container: Any, members: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected a tuple of events"):
        container(events=members)


def test_parallel_composition_is_for_add_remove_only() -> None:
    moved = ComposedEvent(events=(discrete_draw(adjacency=Adjacency.REPLACE_ONE),))
    with pytest.raises(ConfigurationError, match="expected events for add_remove inside a Paral"):
        ParallelEvent(events=(discrete_draw(), moved))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "laplace"}, "expected the kind of an event to be one of discrete_gaussian, "),
        ({"kind": ["composed"]}, "expected the kind of an event to be one of "),
        ({"seed": 1}, "expected a discrete_gaussian event to have the keys "),
        ({"adjacency": "swap"}, "expected adjacency to be one of add_remove, replace_one"),
        ({"adjacency": []}, "expected adjacency to be one of add_remove, replace_one"),
        ({"l2_sensitivity": None}, "expected l2_sensitivity to be a number"),
        ({"kind": "composed"}, "expected a composed event to have the keys events, kind, found "),
    ],
)
def test_an_unknown_kind_key_or_value_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"EVENT_INVALID: {message}"):
        event_from_dict({**event_to_dict(discrete_draw()), **changes})


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(GaussianEvent)])
def test_a_missing_key_is_refused(name: str) -> None:
    values = event_to_dict(discrete_draw())
    del values[name]
    with pytest.raises(ConfigurationError, match="event to have the keys"):
        event_from_dict(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "expected an event to be an object with a kind"),
        ({}, "expected the kind of an event"),
        ({"kind": "parallel", "events": {}}, "expected the events of a parallel event to be a"),
        ({"kind": "parallel", "events": [1]}, "expected an event to be an object with a kind"),
    ],
)
def test_json_that_is_not_an_event_is_refused(values: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        event_from_dict(values)
