import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privacy.accountants.approximate_gaussian import ApproximateGaussianAccountant
from privacy.accountants.calibration import (
    affordable_epsilon,
    booked_noise_multiplier,
    discrete_noise_stddev,
    gdp_mu,
    gdp_rho,
    release_rho,
)
from privacy.accountants.gaussian import GaussianAccountant, gaussian_delta
from privacy.charges import RHO_STEP, charged_rho
from privacy.errors import ConfigurationError
from privacy.events import DiscreteGaussianEvent
from privacy.parameters import Adjacency, PrivacyParameters
from tests.privacy.accountants.draws import series


@pytest.mark.parametrize(
    ("delta", "mu", "rho"), [(1e-6, 0.2367, "0.028014481912"), (1e-5, 0.2681, "0.03593")]
)
def test_golden_values_at_epsilon_one(delta, mu, rho):
    assert gdp_mu(epsilon=1.0, delta=delta) == pytest.approx(mu, abs=5e-5)
    found = gdp_rho(epsilon=1.0, delta=delta)
    assert found.quantize(Decimal(rho)) == Decimal(rho)


@given(epsilon=st.floats(0.05, 20), delta=st.floats(1e-12, 9e-4))
def test_mu_meets_the_target_and_hardly_more_would(epsilon, delta):
    mu = gdp_mu(epsilon=epsilon, delta=delta)
    assert gaussian_delta(epsilon=epsilon, mu=mu) <= delta
    assert gaussian_delta(epsilon=epsilon, mu=mu * (1 + 1e-6)) > delta


@given(epsilon=st.floats(0.05, 20), delta=st.floats(1e-12, 9e-4))
def test_the_charge_of_a_release_is_the_budget_of_its_target(epsilon, delta):
    # A lifetime epsilon equal to the epsilon of one release pays for exactly one release.
    rho, mu = gdp_rho(epsilon=epsilon, delta=delta), gdp_mu(epsilon=epsilon, delta=delta)
    assert rho % RHO_STEP == 0
    assert Fraction(mu) ** 2 / 2 <= Fraction(rho)
    assert charged_rho(mu**2 / 2 * (1 - 1e-15)) == rho


@given(epsilon=st.floats(0.05, 20), delta=st.floats(1e-12, 9e-4), part=st.floats(0.01, 1))
@example(epsilon=1.0, delta=0.0007729046904329257, part=1.0)
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_an_affordable_epsilon_is_the_largest_of_three_decimals(epsilon, delta, part, adjacency):
    left = gdp_rho(epsilon=epsilon, delta=delta) * Decimal(part)
    found = affordable_epsilon(left, delta=delta, adjacency=adjacency)

    def charged(of):
        return release_rho(PrivacyParameters(epsilon=of, delta=delta), adjacency=adjacency)

    assert charged(found + 0.001) > left
    assert found == 0.0 or charged(found) <= left


def test_a_target_outside_its_range_or_below_one_step_of_the_ledger_is_refused():
    with pytest.raises(ConfigurationError, match="EPSILON_INVALID: expected epsilon to be"):
        gdp_mu(epsilon=0.0, delta=1e-6)
    with pytest.raises(ConfigurationError, match="expected epsilon and delta that allow a rho of"):
        gdp_rho(epsilon=1e-7, delta=1e-9)


@given(l2_sensitivity=st.floats(1.0, 2.0**30), mu=st.floats(1e-4, 3))
def test_noise_is_the_least_that_the_accountant_accepts(l2_sensitivity, mu):
    noise_stddev = discrete_noise_stddev(l2_sensitivity=l2_sensitivity, mu=mu)

    def spent(stddev):
        event = DiscreteGaussianEvent(
            statistic="a", l2_sensitivity=l2_sensitivity, noise_stddev=stddev, n_values=1
        )
        return GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(event).mu

    assert spent(noise_stddev) <= mu
    if noise_stddev * (1 - 1e-12) > 50:
        assert spent(noise_stddev * (1 - 1e-12)) > mu


@pytest.mark.parametrize(
    ("l2_sensitivity", "mu", "message"),
    [
        (0.0, 1.0, "expected l2_sensitivity to be finite and above 0"),
        (math.inf, 1.0, "expected l2_sensitivity to be finite and above 0"),
        (1.0, 0.0, "expected mu to be finite and above 0"),
        (1.0, math.nan, "expected mu to be finite and above 0"),
        (2.0**50, 1e-6, r"expected noise_stddev from 50\.0 to .* grid units"),
    ],
)
def test_arguments_outside_their_range_are_refused(l2_sensitivity, mu, message):
    with pytest.raises(ConfigurationError, match=message):
        discrete_noise_stddev(l2_sensitivity=l2_sensitivity, mu=mu)


def booked(probability, noise_multiplier, steps):
    accountant = ApproximateGaussianAccountant(adjacency=Adjacency.ADD_REMOVE)
    return accountant.compose(series(probability, noise_multiplier, steps)).mu


@pytest.mark.parametrize(
    ("probability", "steps", "mu", "noise_multiplier"),
    [(0.01, 2000, 0.2681, 1.868), (0.5, 500, 0.2681, 41.82)],
)
def test_a_series_is_booked_at_its_budget_and_less_noise_would_not_do(
    probability, steps, mu, noise_multiplier
):
    found = booked_noise_multiplier(sampling_probability=probability, steps=steps, mu=mu)
    assert found == pytest.approx(noise_multiplier, rel=2e-3)
    assert booked(probability, found, steps) <= mu
    assert booked(probability, found * (1 - 2e-3), steps) > mu
    # Roundings on the way to an event do no harm.
    assert booked(probability, found * (1 - 2.0**-19), steps) <= mu


@pytest.mark.parametrize("mu", [0.01, 0.3, 400.0])
def test_a_series_of_everybody_has_the_plain_gaussian_noise(mu):
    found = booked_noise_multiplier(sampling_probability=1.0, steps=7, mu=mu)
    exact = max(math.sqrt(7) / mu, 0.01)
    assert exact <= found <= exact * (1 + 1e-12)
    accountant = ApproximateGaussianAccountant(adjacency=Adjacency.ADD_REMOVE)
    spent = accountant.compose(series(1.0, found, 7))
    assert spent.mu <= mu
    assert spent.slack_delta == 0


def test_a_budget_beyond_any_need_takes_the_least_noise():
    assert booked_noise_multiplier(sampling_probability=0.5, steps=1, mu=1e3) == 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mu": 0.0},
            r"CALIBRATION_ARGUMENT_INVALID: expected mu to be finite and above 0, found 0\.0",
        ),
        ({"mu": math.inf}, "CALIBRATION_ARGUMENT_INVALID: expected mu to be finite and above 0"),
        ({"mu": math.nan}, "CALIBRATION_ARGUMENT_INVALID: expected mu to be finite and above 0"),
        ({"steps": 0}, "EVENT_INVALID: expected count to be an integer from 1"),
        ({"sampling_probability": 0.0}, "EVENT_INVALID: expected sampling_probability"),
        ({"sampling_probability": 1.5}, "EVENT_INVALID: expected sampling_probability"),
        (
            {"sampling_probability": 1.0, "steps": 10**10, "mu": 0.01},
            r"CALIBRATION_UNREACHABLE: expected mu that some noise multiplier up to 1000000\.0 "
            r"meets, found 0\.01 for 10000000000 samples with probability 1\.0: epsilon is too "
            "small for the schedule; choose a larger epsilon or fewer and smaller samples",
        ),
        (
            {"sampling_probability": 0.9, "steps": 10**9, "mu": 1e-3},
            r"CALIBRATION_UNREACHABLE: .* probability 0\.9: epsilon is too small for the schedule",
        ),
        ({"mu": 1e-7}, "CALIBRATION_UNREACHABLE: .*: epsilon is too small for the schedule"),
    ],
)
def test_a_series_that_cannot_be_booked_is_refused(changes, message):
    arguments = {"sampling_probability": 0.1, "steps": 10, "mu": 0.1}
    with pytest.raises(ConfigurationError, match=message):
        booked_noise_multiplier(**{**arguments, **changes})
