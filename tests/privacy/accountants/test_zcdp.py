import math
from typing import Any

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.accountants.gaussian import GaussianAccountant, gaussian_epsilon
from privacy.accountants.zcdp import ZCDPAccountant, zcdp_delta, zcdp_epsilon, zcdp_rho
from privacy.errors import ConfigurationError
from privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    ParallelEvent,
    PoissonSampledGaussianEvent,
    RepeatedEvent,
)
from privacy.parameters import Adjacency

ADD_REMOVE = ZCDPAccountant(adjacency=Adjacency.ADD_REMOVE)
REPLACE_ONE = ZCDPAccountant(adjacency=Adjacency.REPLACE_ONE)


def draw(mu: float) -> GaussianEvent:
    return GaussianEvent(statistic="a", l2_sensitivity=mu, noise_stddev=1.0, n_values=1)


def epsilon_on_a_grid(delta: float, rho: float) -> mpmath.mpf:
    """Proposition 12 as it is printed, with 40 digits, at 400 orders."""
    with mpmath.workdps(40):
        d, r = mpmath.mpf(delta), mpmath.mpf(rho)
        orders = [1 + mpmath.mpf(10) ** (mpmath.mpf(k) / 40 - 4) for k in range(400)]
        return min(r * a + mpmath.log(1 - 1 / a) - mpmath.log(d * a) / (a - 1) for a in orders)


@pytest.mark.parametrize(
    ("epsilon", "rho"), [(0.5, 0.00664), (1.0, 0.02436), (2.0, 0.08815), (3.0, 0.18507)]
)
def test_golden_values_of_rho(epsilon: float, rho: float) -> None:
    assert zcdp_rho(epsilon=epsilon, delta=1e-6) == pytest.approx(rho, abs=5e-6)


@pytest.mark.parametrize(("releases", "epsilon"), [(2, 1.56), (4, 2.28), (12, 4.18), (52, 9.68)])
def test_golden_values_of_repeated_releases(releases: int, epsilon: float) -> None:
    total = ADD_REMOVE.compose(RepeatedEvent(event=draw(0.2367), count=releases))
    assert total.rho == pytest.approx(releases * 0.2367**2 / 2, rel=1e-12)
    assert total.epsilon(delta=1e-6) == pytest.approx(epsilon, abs=5e-3)


def test_golden_value_of_the_moments_accountant() -> None:
    # sigma = 2, delta = 1e-5. The corrected moments lemma with the first published conversion,
    # rho + 2 sqrt(rho log(1/delta)), gives 2.52; its printed form, half the moments, 1.76.
    rho = ADD_REMOVE.compose(draw(0.5)).rho
    basic = rho + 2 * math.sqrt(rho * math.log(1e5))
    assert basic == pytest.approx(2.52, abs=5e-3)
    assert rho / 2 + 2 * math.sqrt(rho / 2 * math.log(1e5)) == pytest.approx(1.76, abs=5e-3)
    assert gaussian_epsilon(delta=1e-5, mu=0.5) <= zcdp_epsilon(delta=1e-5, rho=rho) <= basic


@given(delta=st.floats(1e-12, 0.5), rho=st.floats(1e-6, 100))
def test_epsilon_is_the_least_over_all_orders_rounded_up(delta: float, rho: float) -> None:
    grid = epsilon_on_a_grid(delta, rho)
    found = zcdp_epsilon(delta=delta, rho=rho)
    # The grid is coarser than the search, so the search is below it, by no more than its spacing.
    assert max(grid * (1 - 1e-2) - 1e-4, 0) <= found <= max(grid, 0) + 1e-12
    assert gaussian_epsilon(delta=delta, mu=math.sqrt(2 * rho)) <= found


@given(epsilon=st.floats(0, 50), rho=st.floats(1e-6, 50))
def test_delta_is_above_the_exact_curve_and_undoes_epsilon(epsilon: float, rho: float) -> None:
    delta = zcdp_delta(epsilon=epsilon, rho=rho)
    if 1e-250 < delta < 1:
        assert zcdp_epsilon(delta=delta, rho=rho) == pytest.approx(epsilon, rel=1e-6, abs=1e-6)
        assert gaussian_epsilon(delta=delta, mu=math.sqrt(2 * rho)) <= epsilon * (1 + 1e-12) + 1e-12


@given(epsilon=st.floats(0.01, 30), delta=st.floats(1e-12, 1e-3))
def test_rho_meets_the_target_and_hardly_more_would(epsilon: float, delta: float) -> None:
    rho = zcdp_rho(epsilon=epsilon, delta=delta)
    assert zcdp_epsilon(delta=delta, rho=rho) <= epsilon
    assert zcdp_epsilon(delta=delta, rho=rho * (1 + 1e-9)) > epsilon * (1 - 1e-9)


def test_costs_add_up_and_parts_do_not() -> None:
    event = ComposedEvent(
        events=(draw(1.0), ParallelEvent(events=(draw(2.0), draw(3.0))), draw(2.0))
    )
    assert ADD_REMOVE.compose(event).rho == pytest.approx((1 + 9 + 4) / 2, rel=1e-13)
    assert ADD_REMOVE.compose(event).compose(draw(2.0)).rho >= 9.0
    assert REPLACE_ONE.compose(event).rho == pytest.approx(28.0, rel=1e-13)
    assert ADD_REMOVE.compose(draw(1.0)).for_group(3).rho == pytest.approx(4.5, rel=1e-13)
    assert ADD_REMOVE.rho == 0.0
    assert ADD_REMOVE.epsilon(delta=1e-6) == ADD_REMOVE.delta(epsilon=0.0) == 0.0


@given(noise_stddev=st.floats(50, 1e6), sensitivity=st.floats(0.1, 1e6))
def test_discrete_noise_costs_the_same_as_continuous_noise(
    noise_stddev: float, sensitivity: float
) -> None:
    event = DiscreteGaussianEvent(
        statistic="a", l2_sensitivity=sensitivity, noise_stddev=noise_stddev, n_values=3
    )
    exact = mpmath.mpf(sensitivity) ** 2 / mpmath.mpf(noise_stddev) ** 2 / 2
    assert exact <= ADD_REMOVE.compose(event).rho <= exact * (1 + 1e-13)
    gaussian = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(event)
    assert ADD_REMOVE.compose(event).rho <= gaussian.rho * (1 + 1e-14)


def test_other_draws_and_adjacencies_are_refused() -> None:
    sampled = PoissonSampledGaussianEvent(
        statistic="a", noise_multiplier=1.0, sampling_probability=0.1, n_values=1
    )
    with pytest.raises(ConfigurationError, match="ACCOUNTANT_UNSUITABLE: expected draws from all"):
        ADD_REMOVE.compose(sampled)
    replaced = GaussianEvent(
        statistic="a",
        l2_sensitivity=1.0,
        noise_stddev=1.0,
        n_values=1,
        adjacency=Adjacency.REPLACE_ONE,
    )
    with pytest.raises(ConfigurationError, match="ADJACENCY_MISMATCH"):
        ADD_REMOVE.compose(replaced)


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (zcdp_epsilon, {"delta": 0.0, "rho": 1.0}, "expected delta from 1e-300 to below 1"),
        (zcdp_epsilon, {"delta": 1e-6, "rho": -1.0}, "expected rho to be finite and at least 0"),
        (zcdp_epsilon, {"delta": 1e-6, "rho": math.inf}, "expected rho to be finite"),
        (zcdp_delta, {"epsilon": -1.0, "rho": 1.0}, "expected epsilon to be finite and >= 0"),
        (zcdp_delta, {"epsilon": 1.0, "rho": math.nan}, "expected rho to be finite"),
        (zcdp_rho, {"epsilon": 0.0, "delta": 1e-6}, "expected epsilon to be finite and above 0"),
    ],
)
def test_arguments_outside_their_range_are_refused(
    call: Any, arguments: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"ACCOUNTANT_ARGUMENT_INVALID: {message}"):
        call(**arguments)
