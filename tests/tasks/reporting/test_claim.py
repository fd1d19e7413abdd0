import math
from decimal import Decimal
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privacy.calibration import discrete_noise_stddev, gdp_mu
from tasks.reporting.claim import Claim, rounded_up


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_a_rounded_number_is_not_smaller_and_close(value):
    written = Decimal(rounded_up(value))
    assert Decimal(repr(value)) <= written <= Decimal(repr(value)) * Decimal("1.001")


def test_the_statement_has_all_public_facts(make_manifest):
    statement = Claim(make_manifest()).statement
    assert statement == (
        "Adding or removing all records of one patient changes the probability of any outcome of "
        "this release by at most a factor of 2.72 (epsilon = 1), plus "
        "delta = 1e-6. Somebody who knows every other record and tests whether one patient "
        "is in the data, allowing 5 false alarms for 100 absent patients, recognises at most 8 "
        "of 100 present ones. Guessing would recognise 5. The unit of protection is one patient "
        "(column patient_nbr); at most 3 records of a patient have any influence. For neighbours "
        "in which one patient is replaced by another (replace-one), epsilon = 2.12 at the same "
        "delta."
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mu=st.floats(min_value=0.001, max_value=10))
def test_the_reading_as_a_test_bounds_the_likelihood_ratio_test(make_manifest, mu):
    # The best test of N(0, 1) against N(mu, 1), written out: reject above the 95 % quantile.
    claim = Claim(make_manifest(mu=mu))
    threshold = NormalDist().inv_cdf(0.95)
    power = 1 - NormalDist(mu, 1).cdf(threshold)
    assert 100 * power <= claim.present_per_hundred + 1e-9
    assert claim.present_per_hundred == min(100, math.ceil(100 * power - 1e-9)) or math.isclose(
        100 * power, round(100 * power), abs_tol=1e-6
    )


def test_replace_one_speaks_of_a_replacement(make_manifest):
    statement = Claim(make_manifest(adjacency="replace_one", max_rows_per_patient=1)).statement
    assert statement.startswith(
        "Replacing all records of one patient by those of another changes the probability"
    )
    assert "which of two sets of records one patient has" in statement
    assert "one record per patient has any influence" in statement


def test_seeded_noise_guarantees_nothing(make_manifest):
    claim = Claim(make_manifest(tainted=True))
    assert claim.statement.startswith("WARNING: Made with seeded noise, for tests only")
    assert claim.as_a_test is None
    assert claim.headline == "No guarantee: this table was made for tests."


@pytest.mark.parametrize("presence", [True, False], ids=["presence", "a fact"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_beliefs_are_those_of_simulated_releases(make_manifest, epsilon, presence):
    """600,000 noisy counts: a belief that is exceeded twice as often is found in every run."""
    n_releases, patient = 600_000, 50
    mu = gdp_mu(epsilon=epsilon, delta=1e-6)
    claim = Claim(make_manifest(mu=mu, adjacency="add_remove"))
    sigma = discrete_noise_stddev(l2_sensitivity=patient, mu=mu)
    # A patient adds to the count, or takes the same away, where the fact is not true.
    otherwise = 0 if presence else -patient
    noise = np.arange(-round(12 * sigma), round(12 * sigma) + 1)
    shares = np.exp(-0.5 * (noise / sigma) ** 2)
    found = patient + np.random.default_rng(11).choice(
        noise, size=n_releases, p=shares / shares.sum()
    )
    loss = ((found - otherwise) ** 2 - (found - patient) ** 2) / (2 * sigma**2)
    for prior in (0.01, 0.5):
        odds = prior / (1 - prior) * np.exp(loss)
        for chance in (1e-2, 1e-4):
            bound = claim.belief(prior, chance=chance, presence=presence)
            n_above = np.count_nonzero(odds / (1 + odds) > bound)
            assert chance / 10 * n_releases < n_above
            assert n_above < chance * n_releases + 4 * math.sqrt(chance * n_releases)


def test_epsilon_is_no_bound_of_a_belief(make_manifest):
    claim = Claim(make_manifest(mu=gdp_mu(epsilon=1.0, delta=1e-6), adjacency="replace_one"))
    for presence in (True, False):
        assert claim.belief(0.5, chance=1e-6, presence=presence) > np.e / (1 + np.e)
