import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
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
    """Noise of one everywhere; counts the draws."""

    tainted = True

    def __init__(self):
        self.draws = 0

    def discrete_gaussian(self, shape, *, noise_stddev):
        self.draws += 1
        return np.ones(shape, dtype=np.int64)

    def select_max(self, scores, *, scale):
        self.draws += 1
        return int(np.argmax(scores))

    def secret_key(self):
        raise AssertionError


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
    assert source.draws == 1
    assert np.array_equal(released.values, exact + 1)
    assert released.event == DiscreteGaussianEvent(
        statistic="histogram", l2_sensitivity=16.0, noise_stddev=100.0, n_values=6
    )
    assert not released.values.flags.writeable
    assert np.array_equal(exact, np.arange(6).reshape(2, 3))


# 20,000 values and the bound of Massart for the largest distance of the distribution function: the
# test accepts the stated noise but for 1e-9 and rejects 0.7 and 1.3 times it but for 2e-18, see
# the power computed in tests/privacy/test_randomness.py.
DRAWS = 20_000
LARGEST_DISTANCE = float(np.sqrt(np.log(2 / 1e-9) / (2 * DRAWS)))


@pytest.mark.parametrize("cores", [1, 2])
def test_the_mechanism_adds_the_stated_noise_and_no_other(cores, monkeypatch):
    monkeypatch.setattr("privacy.randomness.PARALLEL_ABOVE", 10)
    monkeypatch.setattr("privacy.randomness._available_cores", lambda: cores)
    exact = np.random.default_rng(3).integers(-(10**9), 10**9, (100, DRAWS // 100))
    released = release(exact, noise_stddev=1000.0, noise_source=OperatingSystemNoise())
    assert released.values.shape == exact.shape
    noise = np.sort((released.values - exact).ravel())
    steps = np.arange(1, DRAWS + 1) / DRAWS

    def distance(stddev):
        # The values are spread so thinly that a tie moves a step by a few parts in 20,000.
        law = ndtr(noise / stddev)
        return float(max(np.max(np.abs(steps - law)), np.max(np.abs(steps - 1 / DRAWS - law))))

    assert distance(1000.0) <= LARGEST_DISTANCE + 1e-3
    for wrong in (700.0, 1300.0):
        assert distance(wrong) > LARGEST_DISTANCE + 1e-3
    # Noise of one coordinate says nothing about another, nor about the statistic.
    for other in (np.roll(released.values - exact, 1), exact):
        found = np.corrcoef((released.values - exact).ravel(), other.ravel())[0, 1]
        assert abs(found) < 6 / np.sqrt(DRAWS)


def test_extreme_values_do_not_overflow():
    exact = np.array([MAX_EXACT_VALUE, -MAX_EXACT_VALUE])
    released = release(exact, noise_stddev=2.0**55, noise_source=SeededNoise(0))
    assert np.all(np.sign(released.values) == [1, -1])


@pytest.mark.parametrize(
    "exact",
    [
        np.zeros(3),
        np.zeros(3, dtype=np.int32),
        np.zeros(3, dtype=np.uint64),
        np.zeros(0, dtype=np.int64),
        [1, 2],
    ],
)
def test_what_is_not_an_integer_statistic_is_refused(exact):
    with pytest.raises(ConfigurationError, match="STATISTIC_INVALID: expected the exact statistic"):
        release(exact)


@pytest.mark.parametrize("value", [2**61 + 1, -(2**61) - 1, np.iinfo(np.int64).min])
def test_an_overflow_is_refused_without_naming_the_value(value):
    source = CountingNoise()
    with pytest.raises(ConfigurationError, match=r"stay below 2\*\*61 in magnitude; use") as caught:
        release(np.array([0, value], dtype=np.int64), noise_source=source)
    assert str(abs(int(value))) not in str(caught.value)
    assert source.draws == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_stddev": 49.0}, r"expected noise_stddev from 50\.0"),
        ({"l2_sensitivity": 0.0}, "expected l2_sensitivity to be a number"),
        ({"statistic": ""}, "expected the name of a statistic"),
    ],
)
def test_an_event_that_is_not_acceptable_is_refused_before_any_draw(changes, message):
    source = CountingNoise()
    with pytest.raises(ConfigurationError, match=message):
        release(np.zeros(2, dtype=np.int64), **changes, noise_source=source)
    assert source.draws == 0


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
    assert source.draws == 1
    assert found.event == ExponentialMechanismEvent(
        statistic="worst", epsilon=0.5, n_candidates=3, adjacency=Adjacency.ADD_REMOVE
    )


# Pearson's statistic of the counts. It is about chi-square with the stated probabilities, and about
# noncentral chi-square with others: false alarm 1e-9, power at least 1 - 1e-6 against every wrong
# law below, `test_the_power_against_wrong_selections_is_what_is_stated`.
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


@pytest.mark.parametrize("shift", [0, 2**60])
@pytest.mark.parametrize("stretch", [1, 2**40])
def test_candidates_are_selected_with_the_stated_probabilities(shift, stretch):
    scores = SCORES * stretch + shift
    source = OperatingSystemNoise()
    counts = np.bincount(
        [
            select(scores, epsilon=1.2, score_sensitivity=3 * stretch, noise_source=source).index
            for _ in range(SELECTIONS // 4)
        ],
        minlength=5,
    )
    expected = STATED * counts.sum()
    # A quarter of the draws: the stated power is that of the next test.
    assert np.sum((counts - expected) ** 2 / expected) <= LARGEST_STATISTIC


def test_the_sampler_of_selections_is_right_candidate_by_candidate():
    source, scale = OperatingSystemNoise(), _selection_scale(3, 1.2)
    drawn = [source.select_max(SCORES, scale=scale) for _ in range(SELECTIONS)]
    counts = np.bincount(drawn, minlength=5)
    assert np.sum((counts - STATED * SELECTIONS) ** 2 / (STATED * SELECTIONS)) <= LARGEST_STATISTIC


def test_seeded_selections_follow_the_same_law_and_can_be_repeated():
    first, second = SeededNoise(5), SeededNoise(5)
    drawn = [first.select_max(SCORES, scale=5.0) for _ in range(SELECTIONS)]
    assert drawn == [second.select_max(SCORES, scale=5.0) for _ in range(SELECTIONS)]
    counts = np.bincount(drawn, minlength=5)
    assert np.sum((counts - STATED * SELECTIONS) ** 2 / (STATED * SELECTIONS)) <= LARGEST_STATISTIC


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


@pytest.mark.parametrize(
    "scores",
    [
        np.zeros(3),
        np.zeros(3, dtype=np.int32),
        np.zeros((2, 2), dtype=np.int64),
        np.zeros(0, dtype=np.int64),
        np.int64(3),
        [1, 2],
    ],
)
def test_what_are_no_integer_scores_is_refused(scores):
    with pytest.raises(
        ConfigurationError,
        match="STATISTIC_INVALID: expected the scores of 'worst' to be an int64 array of one "
        "dimension that is not empty; put them on an integer grid first",
    ):
        select(scores)


@pytest.mark.parametrize("value", [2**61 + 1, -(2**61) - 1, np.iinfo(np.int64).min])
def test_scores_that_overflow_are_refused_without_naming_them(value):
    source = CountingNoise()
    with pytest.raises(
        ConfigurationError, match=r"the scores of 'worst' to stay below 2\*\*61 in magnitude; use a"
    ) as caught:
        select(np.array([0, value], dtype=np.int64), noise_source=source)
    assert str(abs(int(value))) not in str(caught.value)
    assert source.draws == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score_sensitivity": 0}, "STATISTIC_INVALID: expected the sensitivity of the scores of"),
        ({"score_sensitivity": 1.0}, "to be an integer from 1 to 2\\*\\*61, in grid units"),
        ({"score_sensitivity": True}, "expected the sensitivity of the scores of 'worst' to be an"),
        ({"score_sensitivity": 2**61 + 1}, "expected the sensitivity of the scores of 'worst'"),
        ({"epsilon": 0.0}, "EVENT_INVALID: expected epsilon of a selection to be a number"),
        ({"epsilon": math.inf}, "EVENT_INVALID: expected epsilon of a selection to be a number"),
        ({"statistic": ""}, "EVENT_INVALID: expected the name of a statistic"),
    ],
)
def test_a_selection_that_is_not_acceptable_is_refused_before_any_draw(changes, message):
    source = CountingNoise()
    with pytest.raises(ConfigurationError, match=message):
        select(np.zeros(2, dtype=np.int64), **changes, noise_source=source)
    assert source.draws == 0


def test_a_draw_is_announced_when_the_noise_is_there_and_before_it_is_added():
    told = []

    class Source(SeededNoise):
        def discrete_gaussian(self, shape, *, noise_stddev):
            told.append("noise")
            return super().discrete_gaussian(shape, noise_stddev=noise_stddev)

    def stop():
        told.append("announced")
        raise OSError

    arguments = {
        "statistic": "counts",
        "l2_sensitivity": 1.0,
        "noise_stddev": 100.0,
        "adjacency": Adjacency.ADD_REMOVE,
        "noise_source": Source(1),
    }
    exact = np.arange(3)
    with pytest.raises(OSError):  # noqa: PT011
        discrete_gaussian_mechanism(exact, **arguments, before_adding=stop)
    assert told == ["noise", "announced"]
    discrete_gaussian_mechanism(exact, **arguments, before_adding=lambda: told.append("again"))
    assert told == ["noise", "announced", "noise", "again"]
