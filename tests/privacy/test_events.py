import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring import NoNoise

from benchmarks.in_process import SeededNoise
from privacy.errors import ConfigurationError
from privacy.events import (
    MAX_REPETITIONS,
    Composed,
    Gaussian,
    Repeated,
    counted_draws,
    event_from_dict,
    event_to_dict,
)
from privacy.mechanisms import MAX_EXACT_VALUE, discrete_gaussian_mechanism
from privacy.parameters import Adjacency

DISCRETE = {"statistic": "a", "l2_sensitivity": 1.0, "noise_stddev": 100.0, "n_values": 3}
UNIT = {"adjacency": "add_remove"}


def discrete_draw(**changes):
    return Gaussian(**{**DISCRETE, **changes})


def draws(adjacency):
    fields = {
        "statistic": st.text(min_size=1),
        "l2_sensitivity": st.floats(1e-3, 1e9),
        "noise_stddev": st.floats(50.0, 2.0**55),
        "n_values": st.integers(1, 2**62),
        "adjacency": adjacency,
    }
    return st.builds(Gaussian, **fields)


def containers(members):
    tuples = st.lists(members, max_size=3).map(tuple)
    repeated = st.builds(Repeated, event=members, count=st.integers(1, 50))
    return st.builds(Composed, events=tuples) | repeated


any_event = st.recursive(draws(st.sampled_from(Adjacency)), containers, max_leaves=6)


@given(event=any_event)
def test_an_event_survives_json_exactly(event):
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event


@pytest.mark.parametrize(
    ("event", "written"),
    [
        (
            Composed(events=(discrete_draw(),)),
            {"kind": "composed", "events": [{"kind": "gaussian", **DISCRETE, **UNIT}]},
        ),
        (
            Repeated(event=discrete_draw(), count=7),
            {"kind": "repeated", "event": {"kind": "gaussian", **DISCRETE, **UNIT}, "count": 7},
        ),
    ],
)
def test_the_written_form_is_fixed(event, written):
    assert event_to_dict(event) == written


def test_all_draws_are_counted_in_order():
    a, b, c = (discrete_draw(statistic=name) for name in "abc")
    nested = Composed(events=(a, Composed(events=(b, Composed(events=(c,))))))
    assert [*counted_draws(Repeated(event=nested, count=9))] == [(a, 9), (b, 9), (c, 9)]


# The text of the first alone is refused by Python; the second is far above any float.
HUGE = 10**5000
LARGE = 10**400
OUTSIDE = [
    ({"statistic": ""}, "expected the name of a statistic, found ''"),
    ({"l2_sensitivity": 0.0}, "expected l2_sensitivity to be a number from 1e-100 to 1e\\+100"),
    ({"l2_sensitivity": math.nan}, "expected l2_sensitivity to be a number"),
    ({"l2_sensitivity": math.inf}, "expected l2_sensitivity to be a number"),
    ({"l2_sensitivity": True}, "expected l2_sensitivity to be a number"),
    ({"noise_stddev": "100"}, "expected noise_stddev to be a number"),
    ({"noise_stddev": HUGE}, "found an integer beyond 64 bits"),
    ({"noise_stddev": 49.999}, r"noise_stddev to be a number .*choose the scale.*found 49\.999"),
    ({"noise_stddev": 2.0**55 * 1.01}, r"noise_stddev to be a number from 50\.0 to "),
    ({"n_values": 0}, "expected n_values to be an integer from 1, found 0"),
    ({"n_values": 1.0}, r"expected n_values to be an integer from 1, found 1\.0"),
    ({"n_values": True}, "expected n_values to be an integer from 1, found True"),
    ({"n_values": 2**63}, "expected n_values to be an integer from 1"),
    ({"adjacency": "add_remove"}, "expected an Adjacency, found 'add_remove'"),
]


@pytest.mark.parametrize(("changes", "message"), OUTSIDE)
def test_a_draw_outside_its_range_is_refused(changes, message):
    with pytest.raises(ConfigurationError, match=f"EVENT_INVALID: .*{message}"):
        discrete_draw(**changes)


@pytest.mark.parametrize("members", [[], ("a",), None])
def test_a_container_holds_a_tuple_of_events(members):
    with pytest.raises(ConfigurationError, match="expected a tuple of events"):
        Composed(events=members)


WRITTEN = event_to_dict(discrete_draw())
ONE_MISSING = [
    {key: WRITTEN[key] for key in WRITTEN if key != name} for name in WRITTEN if name != "kind"
]
ONE_OF = "expected an object whose kind is one of "
KEYS = "expected a gaussian event of adjacency, "


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], ONE_OF),
        ({}, ONE_OF),
        ({**WRITTEN, "kind": "laplace"}, f"{ONE_OF}gaussian, "),
        ({**WRITTEN, "kind": ["composed"]}, f"{ONE_OF}.*, found a list"),
        ({**WRITTEN, "kind": {}}, f"{ONE_OF}.*, found a dict"),
        ({**WRITTEN, "kind": None}, f"{ONE_OF}.*, found None"),
        *((values, KEYS) for values in ({**WRITTEN, "seed": 1}, *ONE_MISSING)),
        (
            {**WRITTEN, "adjacency": "swap"},
            "expected adjacency to be one of add_remove, replace_one",
        ),
        ({**WRITTEN, "adjacency": []}, "expected adjacency to be one of add_remove, replace_one"),
        ({**WRITTEN, "l2_sensitivity": None}, "expected l2_sensitivity to be a number"),
        ({**WRITTEN, "kind": "composed"}, "expected a composed event of events, found "),
        ({"kind": "composed", "events": {}}, "expected a list of events in a composed event"),
        ({"kind": "composed", "events": [1]}, ONE_OF),
    ],
)
def test_json_that_is_not_an_event_is_refused(values, message):
    with pytest.raises(ConfigurationError, match=f"EVENT_INVALID: {message}"):
        event_from_dict(values)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([LARGE, -LARGE, 2**63, 10**100])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["composed", "repeated", "gaussian", "add_remove"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
known = [
    discrete_draw(),
    Composed(events=(discrete_draw(),)),
    Repeated(event=discrete_draw(), count=3),
]


def reads_or_refuses(values):
    try:
        event = event_from_dict(values)
    except ConfigurationError:
        return
    assert event_from_dict(event_to_dict(event)) == event


@settings(max_examples=200)
@given(values=json_values)
def test_any_json_is_read_or_refused(values):
    reads_or_refuses(values)


@settings(max_examples=200)
@given(event=st.sampled_from(known), data=st.data())
def test_any_change_inside_a_container_is_read_or_refused(event, data):
    inner = event_to_dict(event)
    inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(json_values)
    reads_or_refuses({"kind": "composed", "events": [event_to_dict(known[0]), inner]})
    reads_or_refuses({"kind": "repeated", "event": inner, "count": data.draw(json_values)})


@pytest.mark.parametrize("event", known, ids=lambda event: type(event).__name__)
def test_an_integer_without_a_text_is_refused_in_every_place(event):
    for name in (*event_to_dict(event), HUGE):
        with pytest.raises(ConfigurationError, match="EVENT_INVALID"):
            event_from_dict({**event_to_dict(event), name: HUGE})


@pytest.mark.parametrize("container", ["composed", "repeated"])
def test_deep_nesting_is_refused(container):
    values = event_to_dict(discrete_draw())
    for _ in range(100_000):
        values = (
            {"kind": "composed", "events": [values]}
            if container == "composed"
            else {"kind": "repeated", "event": values, "count": 1}
        )
    with pytest.raises(ConfigurationError, match="expected events nested at most 32 deep, found"):
        event_from_dict(values)
    while values["kind"] == container:  # an object this deep cannot be freed at once
        values = values["event"] if container == "repeated" else values["events"].pop()


@pytest.mark.parametrize(
    ("event", "count", "message"),
    [
        ("a", 2, "expected an event to repeat"),
        (discrete_draw(), 0, "expected count to be an integer from 1, found 0"),
        (discrete_draw(), True, "expected count to be an integer from 1, found True"),
        (discrete_draw(), MAX_REPETITIONS + 1, "expected at most 1000000000000 repetitions in all"),
        (
            Composed(events=(Repeated(event=discrete_draw(), count=10**7),)),
            10**6,
            "expected at most 1000000000000 repetitions in all",
        ),
    ],
)
def test_a_repetition_that_cannot_be_counted_is_refused(event, count, message):
    with pytest.raises(ConfigurationError, match=f"EVENT_INVALID: {message}"):
        Repeated(event=event, count=count)


def release(exact, **changes):
    arguments = {
        "statistic": "histogram",
        "l2_sensitivity": 16.0,
        "noise_stddev": 100.0,
        "adjacency": Adjacency.ADD_REMOVE,
        "noise_source": NoNoise(),
    }
    return discrete_gaussian_mechanism(exact, **{**arguments, **changes})


def test_noise_is_added_once_and_the_event_says_so():
    exact = np.arange(6, dtype=np.int64).reshape(2, 3)
    released = release(exact, noise_source=SeededNoise(1))
    noise = SeededNoise(1).discrete_gaussian((2, 3), noise_stddev=100.0)
    assert np.array_equal(released.values, exact + noise)
    assert released.event == Gaussian(
        statistic="histogram", l2_sensitivity=16.0, noise_stddev=100.0, n_values=6
    )
    assert not released.values.flags.writeable
    assert np.array_equal(exact, np.arange(6).reshape(2, 3))


def test_extreme_values_do_not_overflow():
    exact = np.array([MAX_EXACT_VALUE, -MAX_EXACT_VALUE])
    released = release(exact, noise_stddev=2.0**55, noise_source=SeededNoise(0))
    assert np.all(np.sign(released.values) == [1, -1])


ZEROS = np.zeros(2, dtype=np.int64)
NOT_INTEGERS = (np.zeros(3), np.zeros(3, np.int32), np.zeros(0, np.int64), [1, 2])
NO_STATISTIC = "STATISTIC_INVALID: expected the exact statistic"


@pytest.mark.parametrize(
    ("exact", "changes", "message"),
    [
        *((exact, {}, NO_STATISTIC) for exact in (*NOT_INTEGERS, np.zeros(3, np.uint64))),
        (ZEROS, {"noise_stddev": 49.0}, r"expected noise_stddev to be a number from 50\.0"),
        (ZEROS, {"l2_sensitivity": 0.0}, "expected l2_sensitivity to be a number"),
        (ZEROS, {"statistic": ""}, "expected the name of a statistic"),
    ],
)
def test_what_is_not_acceptable_is_refused_before_any_draw(exact, changes, message):
    source = NoNoise()
    with pytest.raises(ConfigurationError, match=message):
        release(exact, **changes, noise_source=source)
    assert source.draws == []


@pytest.mark.parametrize("value", [2**61 + 1, -(2**61) - 1, np.iinfo(np.int64).min])
def test_an_overflow_is_refused_without_naming_the_value(value):
    source = NoNoise()
    with pytest.raises(ConfigurationError, match=r"stay below 2\*\*61 in magnitude; use") as caught:
        release(np.array([0, value], dtype=np.int64), noise_source=source)
    assert str(abs(int(value))) not in str(caught.value)
    assert source.draws == []
