import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privacy.calibration import (
    affordable_epsilon,
    discrete_noise_stddev,
    gdp_mu,
    gdp_rho,
    release_rho,
)
from privacy.charges import RHO_STEP
from privacy.errors import ConfigurationError
from privacy.events import Gaussian
from privacy.gaussian import GaussianAccountant, gaussian_delta
from privacy.parameters import Adjacency, PrivacyParameters


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
    assert Fraction(mu) ** 2 / 2 > Fraction(rho) * (1 - Fraction(1, 10**15))


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
        event = Gaussian(
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
        (2.0**50, 1e-6, r"expected noise_stddev to be a number from 50\.0 to .* grid units"),
    ],
)
def test_arguments_outside_their_range_are_refused(l2_sensitivity, mu, message):
    with pytest.raises(ConfigurationError, match=message):
        discrete_noise_stddev(l2_sensitivity=l2_sensitivity, mu=mu)
