import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, ncx2

from privacy.errors import ConfigurationError
from privacy.events import DiscreteGaussianEvent, ExponentialMechanismEvent
from privacy.mechanisms import (
    MAX_EXACT_VALUE,
    _selection_scale,
    discrete_gaussian_mechanism,
    exponential_mechanism,
)
from privacy.parameters import Adjacency
from privacy.randomness import OperatingSystemNoise, SeededNoise


class CountingNoise:
    """Noise of one everywhere; notes what it is asked for."""

    tainted = True

    def __init__(self):
        self.draws = []

    def discrete_gaussian(self, shape, *, noise_stddev):
        self.draws.append((shape, noise_stddev))
        return np.ones(shape, dtype=np.int64)

    def select_max(self, scores, *, scale):
        self.draws.append(scale)
        return int(np.argmax(scores))


def release(exact, **changes):
    arguments = {
        "statistic": "histogram",
        "l2_sensitivity": 16.0,
        "noise_stddev": 100.0,
        "adjacency": Adjacency.ADD_REMOVE,
        "noise_source": CountingNoise(),
    }
    return discrete_gaussian_mechanism(exact, **{**arguments, **changes})


def test_noise_is_added_once_and_the_event_says_so():
    source = CountingNoise()
    exact = np.arange(6, dtype=np.int64).reshape(2, 3)
    released = release(exact, noise_source=source)
    assert source.draws == [((2, 3), 100.0)]
    assert np.array_equal(released.values, exact + 1)
    assert released.event == DiscreteGaussianEvent(
        statistic="histogram", l2_sensitivity=16.0, noise_stddev=100.0, n_values=6
    )
    assert not released.values.flags.writeable
    assert np.array_equal(exact, np.arange(6).reshape(2, 3))


def test_extreme_values_do_not_overflow():
    exact = np.array([MAX_EXACT_VALUE, -MAX_EXACT_VALUE])
    released = release(exact, noise_stddev=2.0**55, noise_source=SeededNoise(0))
    assert np.all(np.sign(released.values) == [1, -1])


def select(scores, **changes):
    arguments = {
        "statistic": "worst",
        "score_sensitivity": 3,
        "epsilon": 0.5,
        "adjacency": Adjacency.ADD_REMOVE,
        "noise_source": CountingNoise(),
    }
    return exponential_mechanism(scores, **{**arguments, **changes})


def test_a_candidate_is_selected_once_and_the_event_says_so():
    source = CountingNoise()
    found = select(np.array([4, 9, -2]), noise_source=source)
    assert found.index == 1
    assert source.draws == [12.0]
    assert found.event == ExponentialMechanismEvent(
        statistic="worst", epsilon=0.5, n_candidates=3, adjacency=Adjacency.ADD_REMOVE
    )


# Pearson's statistic of the counts. It is about chi-square with the stated probabilities, and about
# noncentral chi-square with others: false alarm 1e-9, power at least 1 - 1e-6 against wrong laws.
SELECTIONS = 4_000
SCORES = np.array([5, 0, 9, 3, -4], dtype=np.int64)
LARGEST_STATISTIC = float(chi2.ppf(1 - 1e-9, df=SCORES.size - 1))


def law(epsilon, sensitivity):
    weights = np.exp(epsilon * SCORES / (2 * sensitivity))
    return np.asarray(weights / weights.sum())


STATED = law(1.2, 3)


def permute_and_flip():
    """The law of exponential noise of the same scale, by integration."""
    x = np.linspace(0, 60, 60_001)
    scale = 2 * 3 / 1.2
    rest = SCORES - SCORES.min()
    below = [np.where(x > s, -np.expm1(-np.maximum(x - s, 0) / scale), 0.0) for s in rest]
    densities = [np.where(x > s, np.exp(-np.maximum(x - s, 0) / scale) / scale, 0) for s in rest]
    products = [
        densities[i] * np.prod([below[j] for j in range(len(rest)) if j != i], axis=0)
        for i in range(len(rest))
    ]
    found = np.array([product.sum() * (x[1] - x[0]) for product in products])
    return found / found.sum()


@pytest.mark.parametrize(
    "wrong",
    [law(2.4, 3), law(0.6, 3), np.full(5, 0.2), permute_and_flip()],
    ids=["no factor of two", "twice the factor", "uniform", "exponential noise"],
)
def test_the_power_against_wrong_selections_is_what_is_stated(wrong):
    shift = SELECTIONS * np.sum((wrong - STATED) ** 2 / STATED)
    # The statistic is at least as large as with the smallest of the variances.
    smallest = float(np.min(wrong / STATED))
    assert ncx2.cdf(LARGEST_STATISTIC / min(smallest, 1.0), 4, shift) <= 1e-6


@pytest.mark.parametrize("source", [OperatingSystemNoise(), SeededNoise(5)])
@pytest.mark.parametrize(("shift", "stretch"), [(0, 1), (2**60, 1), (0, 2**40)])
def test_the_sampler_of_selections_is_right_candidate_by_candidate(source, shift, stretch):
    arguments = {"epsilon": 1.2, "score_sensitivity": 3 * stretch, "noise_source": source}
    scores = SCORES * stretch + shift
    counts = np.bincount([select(scores, **arguments).index for _ in range(SELECTIONS)])
    expected = STATED * SELECTIONS
    assert np.sum((counts - expected) ** 2 / expected) <= LARGEST_STATISTIC


@pytest.mark.parametrize("source", [OperatingSystemNoise(), SeededNoise(1)])
def test_extreme_scores_do_not_overflow(source):
    scores = np.array([-MAX_EXACT_VALUE, MAX_EXACT_VALUE, MAX_EXACT_VALUE - 1])
    found = {select(scores, noise_source=source, epsilon=0.5).index for _ in range(40)}
    # The last two differ by 1 at a scale of 12: both are found but for 2**-36.
    assert found == {1, 2}
    assert select(np.array([7]), noise_source=source).index == 0


@given(sensitivity=st.integers(1, 2**61), epsilon=st.floats(1e-9, 100))
def test_the_scale_never_makes_epsilon_larger(sensitivity, epsilon):
    scale = _selection_scale(sensitivity, epsilon)
    assert 2 * Fraction(sensitivity) / Fraction(scale) <= Fraction(epsilon)
    less = math.nextafter(scale, 0.0)
    assert 2 * Fraction(sensitivity) / Fraction(less) > Fraction(epsilon)


ZEROS = np.zeros(2, dtype=np.int64)
NOT_INTEGERS = (np.zeros(3), np.zeros(3, np.int32), np.zeros(0, np.int64), [1, 2])
NO_STATISTIC = "STATISTIC_INVALID: expected the exact statistic"
NO_SCORES = (
    "STATISTIC_INVALID: expected the scores of 'worst' to be an int64 array of one dimension that "
    "is not empty; put them on an integer grid first"
)
NO_SENSITIVITY = (
    "STATISTIC_INVALID: expected the sensitivity of the scores of 'worst' to be an integer from 1 "
    r"to 2\*\*61, in grid units"
)
NO_EPSILON = "EVENT_INVALID: expected epsilon of a selection to be a number"


@pytest.mark.parametrize(
    ("call", "exact", "changes", "message"),
    [
        *((release, exact, {}, NO_STATISTIC) for exact in (*NOT_INTEGERS, np.zeros(3, np.uint64))),
        (release, ZEROS, {"noise_stddev": 49.0}, r"expected noise_stddev from 50\.0"),
        (release, ZEROS, {"l2_sensitivity": 0.0}, "expected l2_sensitivity to be a number"),
        (release, ZEROS, {"statistic": ""}, "expected the name of a statistic"),
        *((select, scores, {}, NO_SCORES) for scores in (*NOT_INTEGERS, ZEROS[None], np.int64(3))),
        *(
            (select, ZEROS, {"score_sensitivity": wrong}, NO_SENSITIVITY)
            for wrong in (0, 1.0, True, 2**61 + 1)
        ),
        *((select, ZEROS, {"epsilon": wrong}, NO_EPSILON) for wrong in (0.0, math.inf)),
        (select, ZEROS, {"statistic": ""}, "EVENT_INVALID: expected the name of a statistic"),
    ],
)
def test_what_is_not_acceptable_is_refused_before_any_draw(call, exact, changes, message):
    source = CountingNoise()
    with pytest.raises(ConfigurationError, match=message):
        call(exact, **changes, noise_source=source)
    assert source.draws == []


@pytest.mark.parametrize("value", [2**61 + 1, -(2**61) - 1, np.iinfo(np.int64).min])
@pytest.mark.parametrize("call", [release, select])
def test_an_overflow_is_refused_without_naming_the_value(call, value):
    source = CountingNoise()
    with pytest.raises(ConfigurationError, match=r"stay below 2\*\*61 in magnitude; use") as caught:
        call(np.array([0, value], dtype=np.int64), noise_source=source)
    assert str(abs(int(value))) not in str(caught.value)
    assert source.draws == []
