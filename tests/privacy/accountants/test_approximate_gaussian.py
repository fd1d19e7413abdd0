import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from privacy.accountants.approximate_gaussian import (
    LEAST_SERIES_MU,
    MAX_SERIES,
    SLACK_DELTA,
    ApproximateGaussianAccountant,
    _gaussian_delta_below,
    series_mu,
)
from privacy.accountants.gaussian import (
    GaussianAccountant,
    gaussian_delta,
    gaussian_epsilon,
    unsampled_draw,
)
from privacy.accountants.loss_distribution import DELTA_MARGIN
from privacy.errors import ConfigurationError
from privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    ExponentialMechanismEvent,
    GaussianEvent,
    RepeatedEvent,
)
from privacy.parameters import Adjacency
from tests.privacy.accountants.draws import draw, poisson, series
from tests.privacy.accountants.tight_accountant import TightAccountant

NOTHING = ApproximateGaussianAccountant(adjacency=Adjacency.ADD_REMOVE)
EXACT = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE)
TIGHT = TightAccountant()


SERIES = series(0.01, 2.0, 2000)
SERIES_MU = series_mu(sampling_probability=0.01, noise_multiplier=2.0, steps=2000)


@pytest.mark.parametrize(
    ("probability", "noise", "steps", "mu"),
    [(0.01, 2.0, 2000, 0.2469), (0.5, 20.0, 500, 0.5614), (0.02, 1.2857, 100, 0.2678)],
)
def test_golden_values_of_a_series(probability, noise, steps, mu):
    found = series_mu(sampling_probability=probability, noise_multiplier=noise, steps=steps)
    assert found == pytest.approx(mu, rel=1e-3)


def one_draw_deltas(probability, noise, epsilon):
    """Exact delta of one draw in both directions; each is taken over a half-line."""
    q, e = probability, np.exp(epsilon)

    def crossing(ratio):
        return noise**2 * np.log((ratio - 1 + q) / q) + 0.5

    def somebody_above(x):
        return (1 - q) * ndtr(-x / noise) + q * ndtr((1 - x) / noise)

    with np.errstate(all="ignore"):  # where nobody crosses, the crossing is not used
        above, below = crossing(e), crossing(1 / e)
    removed = somebody_above(above) - e * ndtr(-above / noise)
    added = ndtr(below / noise) - e * (1 - somebody_above(below))
    return np.maximum(removed, np.where(1 / e > 1 - q, added, 0.0))


@pytest.mark.parametrize(("probability", "noise"), [(0.01, 0.8), (0.3, 1.5), (0.9, 1.0)])
def test_one_draw_is_booked_at_the_least_mu_of_its_exact_curve(probability, noise):
    epsilon = np.linspace(0, 20, 40_001)
    delta = one_draw_deltas(probability, noise, epsilon)
    above = delta > SLACK_DELTA

    def meets(mu):
        allowed = ndtr(-epsilon / mu + mu / 2) - np.exp(epsilon) * ndtr(-epsilon / mu - mu / 2)
        return bool(np.all(delta[above] <= allowed[above]))

    low, high = 1e-3, 1 / noise
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    booked = series_mu(sampling_probability=probability, noise_multiplier=noise, steps=1)
    assert high <= booked <= high * (1 + 3e-3)


@pytest.mark.parametrize(("probability", "noise", "steps"), [(0.02, 1.2, 100), (0.3, 5.0, 40)])
def test_a_booked_curve_lies_above_the_tight_one_and_hardly_more(probability, noise, steps):
    event = series(probability, noise, steps)
    booked, tight = NOTHING.compose(event), TIGHT.compose(event)
    for delta in (SLACK_DELTA, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3):
        assert booked.epsilon(delta=delta) >= tight.epsilon(delta=delta)
    for epsilon in np.linspace(0, booked.epsilon(delta=SLACK_DELTA) * 1.2, 40):
        assert tight.delta(epsilon=epsilon) <= booked.delta(epsilon=epsilon)
    # Where the two touch, half a percent less would be too little.
    touch = tight.epsilon(delta=1.05 * SLACK_DELTA)
    less = max(gaussian_delta(epsilon=touch, mu=booked.mu * 0.995), SLACK_DELTA)
    assert tight.delta(epsilon=touch) > less


@settings(max_examples=8)
@given(probability=st.floats(1e-3, 1), noise=st.floats(0.8, 20))
def test_no_draw_is_booked_below_the_truth_or_above_everybody(probability, noise):
    booked = NOTHING.compose(poisson(probability, noise))
    everybody = EXACT.compose(unsampled_draw(poisson(probability, noise)))
    assert booked.mu_squared <= everybody.mu_squared * (1 + 1e-14)
    epsilon = np.linspace(0, 9 / noise, 300)
    exact = one_draw_deltas(probability, noise, epsilon)
    for at, delta in zip(epsilon, exact, strict=True):
        assert delta <= booked.delta(epsilon=float(at)) + 1e-15


@pytest.mark.parametrize(
    ("probability", "noise", "steps"), [(0.5, 1.0, 10**7), (0.5, 0.01, 10), (0.5, 0.01, 10**5)]
)
def test_a_series_beyond_the_engine_is_booked_as_if_everybody_were_read(probability, noise, steps):
    found = NOTHING.compose(series(probability, noise, steps))
    everybody = EXACT.compose(
        RepeatedEvent(event=unsampled_draw(poisson(probability, noise)), count=steps)
    )
    assert found.mu == pytest.approx(everybody.mu, rel=1e-14)


def test_a_sample_that_the_slack_covers_is_booked_at_the_least_mu():
    least = series_mu(sampling_probability=1e-12, noise_multiplier=1.0, steps=10)
    assert least == LEAST_SERIES_MU


def test_noise_that_differs_by_a_rounding_is_booked_at_the_same_amount():
    for noise in (2.0 * (1 + 2.0**-52), 2.0 * (1 + 2.0**-21)):
        assert series_mu(sampling_probability=0.01, noise_multiplier=noise, steps=2000) == SERIES_MU
    more = series_mu(sampling_probability=0.01, noise_multiplier=2.0 * (1 + 2.0**-18), steps=2000)
    assert more < SERIES_MU


@settings(max_examples=60)
@given(epsilon=st.floats(0, 60), mu=st.floats(1e-6, 60))
def test_the_bound_from_below_is_one_and_tight(epsilon, mu):
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        exact = mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)
        found = float(_gaussian_delta_below(np.array([epsilon]), mu)[0])
        assert found <= exact
        if exact > 1e-12:
            assert found >= exact * (1 - 1e-6)


@pytest.mark.parametrize(
    "event", [SERIES, ComposedEvent(events=(ComposedEvent(events=()), SERIES)), poisson(0.1, 3.0)]
)
def test_one_series_alone_loses_nothing_to_its_slack(event):
    found = NOTHING.compose(event)
    assert found.slack_delta == SLACK_DELTA
    for delta in (SLACK_DELTA, 1e-6):
        assert found.epsilon(delta=delta) == gaussian_epsilon(delta=delta, mu=found.mu)
    assert found.delta(epsilon=0.1) == gaussian_delta(epsilon=0.1, mu=found.mu)
    assert found.delta(epsilon=30.0) == SLACK_DELTA


def test_with_other_draws_the_slack_is_added_to_delta():
    found = NOTHING.compose(ComposedEvent(events=(draw(0.3), SERIES)))
    assert found.mu == pytest.approx(math.hypot(0.3, SERIES_MU), rel=1e-12)
    assert found.rho == pytest.approx((0.3**2 + SERIES_MU**2) / 2, rel=1e-12)
    assert found.slack_delta == SLACK_DELTA
    remaining = (1e-6 - SLACK_DELTA) / (1 - SLACK_DELTA)
    assert found.epsilon(delta=1e-6) == pytest.approx(
        gaussian_epsilon(delta=remaining, mu=found.mu), rel=1e-9
    )
    inner = gaussian_delta(epsilon=0.7, mu=found.mu)
    exact = SLACK_DELTA + (1 - SLACK_DELTA) * inner
    assert exact <= found.delta(epsilon=0.7) <= exact * (1 + 1e-12)
    assert found.delta(epsilon=50.0) >= SLACK_DELTA
    # The order does not matter, nor whether the parts come in one event or in several.
    for one, other in ((draw(0.3), SERIES), (SERIES, draw(0.3))):
        again = NOTHING.compose(one).compose(other)
        assert again.mu == pytest.approx(found.mu, rel=1e-14)
        assert (again.n_series, again.slack_adds) == (1, True)


def test_every_series_has_its_own_mu_and_slack():
    inside = RepeatedEvent(event=ComposedEvent(events=(poisson(0.01, 2.0), draw(0.01))), count=2000)
    found = NOTHING.compose(ComposedEvent(events=(SERIES, SERIES, inside)))
    assert found.n_series == 3
    assert found.slack_delta == pytest.approx(3 * SLACK_DELTA, rel=1e-15)
    assert found.mu_squared == pytest.approx(3 * SERIES_MU**2 + 2000 * 1e-4, rel=1e-12)


@pytest.mark.parametrize("parts", [(SERIES, SERIES), (SERIES, series(0.2, 4.0, 20), draw(0.2))])
def test_a_composition_lies_above_the_joint_distribution(parts):
    booked = NOTHING.compose(ComposedEvent(events=parts))
    joint = TIGHT.compose(ComposedEvent(events=parts))
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 3.0):
        assert joint.delta(epsilon=epsilon) <= booked.delta(epsilon=epsilon)
    for delta in (3e-9, 1e-7, 1e-5):
        assert joint.epsilon(delta=delta) <= booked.epsilon(delta=delta)


def test_the_coins_of_the_proof_lose_what_is_stated():
    # Two pairs of the comparator, joined exactly: a coin shows the table, or there is a normal law.
    slack, mus, epsilon = 0.05, (0.4, 0.7), 0.3
    x = np.linspace(-9, 9, 1201)
    width = x[1] - x[0]
    first, second = (np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * width for _ in range(2))
    moved = [np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi) * width for mu in mus]
    p = (1 - slack) ** 2 * np.outer(first, second)
    q = (1 - slack) ** 2 * np.outer(moved[0], moved[1])
    found = 1 - (1 - slack) ** 2 + np.maximum(p - math.exp(epsilon) * q, 0).sum()
    inner = gaussian_delta(epsilon=epsilon, mu=math.hypot(*mus))
    assert found == pytest.approx(1 - (1 - slack) ** 2 * (1 - inner), abs=1e-5)
    assert found <= 2 * slack + (1 - 2 * slack) * inner


gaussian_draws = st.builds(
    GaussianEvent,
    statistic=st.just("g"),
    l2_sensitivity=st.floats(1e-3, 1e3),
    noise_stddev=st.floats(1e-2, 1e3),
    n_values=st.just(1),
) | st.builds(
    ExponentialMechanismEvent,
    statistic=st.just("s"),
    epsilon=st.floats(1e-3, 5),
    n_candidates=st.just(3),
)
gaussian_events = st.recursive(
    gaussian_draws,
    lambda inner: (
        st.builds(ComposedEvent, events=st.lists(inner, max_size=3).map(tuple))
        | st.builds(RepeatedEvent, event=inner, count=st.integers(1, 9))
    ),
    max_leaves=5,
)


@settings(max_examples=50)
@given(events=st.lists(gaussian_events, max_size=3), adjacency=st.sampled_from(Adjacency))
def test_without_samples_it_is_the_exact_accountant_to_the_last_digit(events, adjacency):
    found = ApproximateGaussianAccountant(adjacency=adjacency)
    exact = GaussianAccountant(adjacency=adjacency)
    for event in events:
        found, exact = found.compose(event), exact.compose(event)
    assert (found.mu, found.rho) == (exact.mu, exact.rho)
    assert found.slack_delta == 0
    assert not found.slack_adds
    assert found.epsilon(delta=1e-6) == exact.epsilon(delta=1e-6)
    assert found.delta(epsilon=0.5) == exact.delta(epsilon=0.5)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_sample_of_everybody_has_no_slack(adjacency):
    event = series(1.0, 5.0, 7)
    found = ApproximateGaussianAccountant(adjacency=adjacency).compose(event)
    exact = GaussianAccountant(adjacency=adjacency).compose(
        RepeatedEvent(event=unsampled_draw(poisson(1.0, 5.0)), count=7)
    )
    assert found.slack_delta == 0
    assert found.mu_squared == pytest.approx(exact.mu_squared, rel=1e-14)
    assert found.epsilon(delta=1e-12) == pytest.approx(exact.epsilon(delta=1e-12), rel=1e-12)


GRID = DiscreteGaussianEvent(
    statistic="d",
    l2_sensitivity=1.0,
    noise_stddev=60.0,
    n_values=1,
    adjacency=Adjacency.REPLACE_ONE,
)


@pytest.mark.parametrize(
    ("event", "adjacency", "message"),
    [
        (
            ComposedEvent(events=(draw(0.1), SERIES)),
            Adjacency.REPLACE_ONE,
            "ACCOUNTANT_UNSUITABLE: expected the question about add_remove for the samples of 'p', "
            "found replace_one, for which their slack has no fixed bound; use privacy.accountants",
        ),
        (
            ComposedEvent(events=(SERIES,) * (MAX_SERIES + 1)),
            Adjacency.ADD_REMOVE,
            "ACCOUNTANT_UNSUITABLE: expected at most 64 series of sampled draws in an event, found",
        ),
        (
            ComposedEvent(events=(GRID, SERIES)),
            Adjacency.ADD_REMOVE,
            "ADJACENCY_MISMATCH: expected the sensitivity of 'd' to be proven for add_remove",
        ),
    ],
)
def test_what_has_no_booked_value_is_refused(event, adjacency, message):
    with pytest.raises(ConfigurationError, match=message):
        ApproximateGaussianAccountant(adjacency=adjacency).compose(event)


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (SERIES, 0.9e-9),
        (ComposedEvent(events=(SERIES, draw(0.1))), SLACK_DELTA),
        (ComposedEvent(events=(SERIES, SERIES)), 1.5e-9),
    ],
)
def test_delta_below_the_slack_is_refused(event, delta):
    found = NOTHING.compose(event)
    with pytest.raises(
        ConfigurationError,
        match="ACCOUNTANT_ARGUMENT_INVALID: expected delta above the slack of the sampled draws, "
        r"[12]e-09, found .*; choose a larger delta",
    ):
        found.epsilon(delta=delta)


def test_the_margin_covers_the_rounding_of_the_engine():
    # A known Gaussian, composed by the engine from 1,000 draws. Its pessimism ends at the rounding
    # of its transform, whose sign is the processor's: below the exact delta by a tenth of the
    # margin at most, so that with the margin no epsilon is too low.
    engine = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=math.sqrt(1000), value_discretization_interval=1e-4
    ).self_compose(1000)
    for delta in (1e-10, 1e-9, 1e-8, 1e-6):
        exact = gaussian_epsilon(delta=delta, mu=1.0)
        assert engine.get_delta_for_epsilon(exact) > delta - DELTA_MARGIN / 10
        assert engine.get_epsilon_for_delta(delta - DELTA_MARGIN) >= exact
