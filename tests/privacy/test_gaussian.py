import math
import sys
from statistics import NormalDist

import mpmath
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import ConfigurationError
from privacy.events import Composed, Gaussian, Repeated
from privacy.gaussian import (
    GaussianAccountant,
    gaussian_delta,
    gaussian_epsilon,
    privacy_loss_bound,
)
from privacy.parameters import Adjacency


def delta_by_mpmath(epsilon, mu):
    """Corollary 2.13 as it is printed, with 80 digits."""
    with mpmath.workdps(80):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        first = mpmath.erfc((e / m - m / 2) / mpmath.sqrt(2)) / 2
        return first - mpmath.exp(e) * mpmath.erfc((e / m + m / 2) / mpmath.sqrt(2)) / 2


def draw(mu, adjacency=Adjacency.ADD_REMOVE):
    """A draw of this mu: noise of a thousand after smoothing."""
    return Gaussian(
        statistic="a",
        l2_sensitivity=mu * 1_000.0,
        noise_stddev=math.sqrt(1_000.0**2 + 16.0),
        n_values=1,
        adjacency=adjacency,
    )


ADD_REMOVE = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE)
REPLACE_ONE = GaussianAccountant(adjacency=Adjacency.REPLACE_ONE)


@given(epsilon=st.floats(0, 30), mu=st.floats(0.01, 20))
def test_delta_is_the_exact_value_rounded_up(epsilon, mu):
    exact = delta_by_mpmath(epsilon, mu)
    computed = gaussian_delta(epsilon=epsilon, mu=mu)
    if exact < sys.float_info.min:
        assert computed < 1e-290
    else:
        assert exact <= computed <= exact * (1 + 1e-8)


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [(0.0, 1e-9), (1.0, 0.03), (37.0, 1.0), (600.0, 20.0), (1e4, 120.0), (50.0, 60.0), (0.0, 80.0)],
)
def test_delta_holds_where_the_printed_formula_breaks_in_double_precision(epsilon, mu):
    exact = delta_by_mpmath(epsilon, mu)
    assert exact <= gaussian_delta(epsilon=epsilon, mu=mu) <= min(1.0, exact * (1 + 1e-4) + 1e-300)


@pytest.mark.parametrize(("epsilon", "mu"), [(1.0, 1e-5), (1e6, 1.0), (1.0, 1e-308)])
def test_delta_is_never_zero_for_a_positive_mu(epsilon, mu):
    assert gaussian_delta(epsilon=epsilon, mu=mu) == sys.float_info.min


def test_delta_is_a_probability_for_any_mu():
    assert gaussian_delta(epsilon=1.0, mu=0.0) == 0.0
    for exponent in range(0, 300, 7):
        assert 0.3 < gaussian_delta(epsilon=0.0, mu=10.0**exponent) <= 1.0


@given(delta=st.floats(1e-12, 1e-2), mu=st.floats(0.05, 5))
def test_epsilon_is_the_least_one_rounded_up(delta, mu):
    epsilon = gaussian_epsilon(delta=delta, mu=mu)
    assert delta_by_mpmath(epsilon, mu) <= delta
    if epsilon > 0:
        assert delta_by_mpmath(epsilon * (1 - 1e-8) - 1e-12, mu) > delta


def test_composition_agrees_with_privacy_loss_distributions():
    independent = PLDAccountant(value_discretization_interval=1e-4)
    accountant = ADD_REMOVE
    for mu in (0.1, 0.3, 0.25):
        independent.compose(dp_event.GaussianDpEvent(noise_multiplier=1 / mu), 2)
        accountant = accountant.compose(draw(mu)).compose(draw(mu))
    assert accountant.epsilon(delta=1e-6) == pytest.approx(independent.get_epsilon(1e-6), rel=2e-3)


@pytest.mark.parametrize(
    ("epsilon", "mu", "releases", "composed"),
    # One release at (1, 1e-6), repeated: known values.
    [(1.0, 0.2367, 2, 1.46), (1, 0.2367, 52, 9.10)],
)
def test_golden_values_of_repeated_releases(epsilon, mu, releases, composed):
    accountant = ADD_REMOVE.compose(Composed(events=(draw(mu),) * releases))
    assert accountant.epsilon(delta=1e-6) == pytest.approx(composed, abs=6e-3)
    assert ADD_REMOVE.compose(draw(mu)).epsilon(delta=1e-6) == pytest.approx(epsilon, 2e-4)


def test_golden_value_of_replacement():
    accountant = REPLACE_ONE.compose(draw(0.2367))
    assert accountant.mu == pytest.approx(2 * 0.2367, rel=1e-12)
    assert accountant.epsilon(delta=1e-6) == pytest.approx(2.12, abs=5e-3)


@pytest.mark.parametrize(("rows", "row_epsilon", "group_epsilon"), [(5, 1.0, 5.9), (10, 1.0, 13.5)])
def test_golden_values_of_groups(rows, row_epsilon, group_epsilon):
    assert gaussian_epsilon(delta=1e-6, mu=0.2367) == pytest.approx(row_epsilon, rel=2e-4)
    assert gaussian_epsilon(delta=1e-6, mu=rows * 0.2367) == pytest.approx(group_epsilon, abs=0.06)


@given(mu=st.floats(0.01, 2), count=st.integers(1, 10**9))
def test_repetition_multiplies_the_square(mu, count):
    repeated = ADD_REMOVE.compose(Repeated(event=draw(mu), count=count))
    exact = mpmath.mpf(mu) ** 2 * count
    assert exact <= repeated.mu_squared <= exact * (1 + 1e-13)


@given(mus=st.lists(st.floats(0.01, 3), max_size=8))
def test_squares_add_up_and_are_never_rounded_down(mus):
    one_by_one = ADD_REMOVE
    for mu in mus:
        one_by_one = one_by_one.compose(draw(mu))
    at_once = ADD_REMOVE.compose(Composed(events=tuple(map(draw, mus))))
    exact = mpmath.fsum(mpmath.mpf(mu) ** 2 for mu in mus)
    for accountant in (one_by_one, at_once):
        assert exact <= accountant.mu_squared <= exact * (1 + 1e-13) + 1e-300
        assert accountant.mu**2 >= accountant.mu_squared or accountant.mu_squared == 0
        assert accountant.rho == accountant.mu_squared / 2


def test_a_sensitivity_for_replacement_is_taken_as_it_is():
    event = draw(0.5, Adjacency.REPLACE_ONE)
    assert REPLACE_ONE.compose(event).mu == pytest.approx(0.5, rel=1e-12)
    with pytest.raises(ConfigurationError, match="ADJACENCY_MISMATCH: expected the sensitivity of"):
        ADD_REMOVE.compose(event)


@pytest.mark.parametrize(
    ("ask", "name", "expected", "values"),
    [
        (gaussian_delta, "epsilon", "epsilon to be finite and >= 0", (-0.1, math.nan, math.inf)),
        (gaussian_epsilon, "delta", "delta from 1e-300 to below 1", (0.0, 1.0, math.nan)),
    ],
)
def test_arguments_outside_their_range_are_refused(ask, name, expected, values):
    for value in values:
        refused = f"PRIVACY_NUMBER_INVALID: expected {expected}, found {value}"
        with pytest.raises(ConfigurationError, match=refused):
            ask(**{name: value}, mu=1.0)


@pytest.mark.parametrize("mu", [-1.0, math.nan, math.inf])
def test_a_mu_outside_its_range_is_refused(mu):
    for ask, arguments in ((gaussian_delta, {"epsilon": 1.0}), (gaussian_epsilon, {"delta": 1e-6})):
        with pytest.raises(
            ConfigurationError, match="PRIVACY_NUMBER_INVALID: expected mu to be finite and at"
        ):
            ask(**arguments, mu=mu)


@given(mu=st.floats(min_value=0.01, max_value=5), chance=st.floats(min_value=1e-9, max_value=0.01))
def test_a_loss_is_exceeded_as_seldom_as_is_said(mu, chance):
    loss = privacy_loss_bound(chance=chance, mu=mu)
    exact = gaussian_loss(mu, chance)
    assert exact <= loss < exact + 0.5 * mu
    # Two outcomes that lose as much as (epsilon, delta) lets them, for the best epsilon.
    assert any(
        gaussian_delta(epsilon=epsilon, mu=mu) / -math.expm1(epsilon - loss) <= chance * 1.001
        for epsilon in (loss * step / 4096 for step in range(4096))
    )


def gaussian_loss(mu, chance):
    """Loss of one Gaussian that is exceeded with this probability."""
    return max(0.0, mu * mu / 2 + mu * NormalDist().inv_cdf(1 - chance))


def test_a_loss_has_a_chance():
    for chance in (0.0, 1.0, float("nan")):
        with pytest.raises(ConfigurationError, match="chance from"):
            privacy_loss_bound(chance=chance, mu=1.0)
    assert privacy_loss_bound(chance=0.5, mu=0.0) == 0.0
