import numpy as np
import pytest
from measuring import NoNoise

from benchmarks.in_process import SeededNoise
from privacy.errors import ConfigurationError
from privacy.events import Gaussian
from privacy.mechanisms import MAX_EXACT_VALUE, discrete_gaussian_mechanism
from privacy.parameters import Adjacency


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
