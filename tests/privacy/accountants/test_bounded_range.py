import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from privacy import events
from privacy.accountants.bounded_range import selection_epsilon, selection_mu, selection_rho
from privacy.accountants.gaussian import GaussianAccountant, event_mu_squared, gaussian_delta
from privacy.accountants.renyi import RenyiAccountant
from privacy.errors import ConfigurationError
from privacy.parameters import Adjacency
from tests.privacy.accountants.tight_accountant import TightAccountant


def selection(epsilon, adjacency=Adjacency.ADD_REMOVE):
    return events.ExponentialMechanismEvent(
        statistic="s", epsilon=epsilon, n_candidates=4, adjacency=adjacency
    )


def probabilities(scores, epsilon, sensitivity):
    exponents = epsilon * np.asarray(scores, dtype=float) / (2 * sensitivity)
    weights = np.exp(exponents - exponents.max())
    return np.asarray(weights / weights.sum())


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(0.1, 0.0626629), (1.0, 0.6238926), (4.0, 2.3579615), (20.0, 7.8279144)]
)
def test_golden_values(epsilon, mu):
    assert selection_mu(epsilon) == pytest.approx(mu, rel=1e-6)
    assert selection_rho(epsilon) == pytest.approx(epsilon**2 / 8, rel=1e-11)


@given(epsilon=st.floats(events.MIN_SELECTION_EPSILON, events.MAX_SELECTION_EPSILON))
def test_mu_is_rounded_up_over_the_whole_range(epsilon):
    with mpmath.workdps(60):
        p = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon) / 2))
        mu = mpmath.mpf(selection_mu(epsilon))
        # Phi(-mu/2) <= p: at least the exact mu; and hardly more.
        assert mpmath.ncdf(-mu / 2) <= p
        assert mpmath.ncdf(-mu * (1 - mpmath.mpf("1e-11")) / 2) >= p


scores = st.lists(st.tuples(st.integers(-40, 40), st.integers(-7, 7)), min_size=1, max_size=6)


@settings(max_examples=150)
@given(pairs=scores, epsilon=st.floats(0.05, 12), at=st.floats(-12, 12))
def test_no_pair_of_score_vectors_beats_the_stated_mu_and_rho(pairs, epsilon, at):
    # Brute force: the exact probabilities of two neighbouring vectors, sensitivity 7.
    here = probabilities([score for score, _ in pairs], epsilon, 7)
    there = probabilities([score + change for score, change in pairs], epsilon, 7)
    mu = selection_mu(epsilon)
    for p, q in ((here, there), (there, here)):
        loss = np.log(p / q)
        assert np.max(np.abs(loss)) <= epsilon * (1 + 1e-9)
        assert np.ptp(loss) <= epsilon * (1 + 1e-9)
        allowed = gaussian_delta(epsilon=abs(at), mu=mu)
        if at < 0:
            allowed = 1 - math.exp(at) + math.exp(at) * allowed
        assert hockey_stick(p, q, at) <= allowed + 1e-12
        for order in (1.5, 2.0, 8.0, 40.0):
            divergence = math.log(np.sum(q * np.exp(order * loss))) / (order - 1)
            assert divergence <= selection_rho(epsilon) * order + 1e-9


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_two_candidates_that_exchange_their_scores_attain_mu(epsilon):
    p, q = probabilities([7, 0], epsilon, 7), probabilities([0, 7], epsilon, 7)
    assert hockey_stick(p, q, 0.0) == pytest.approx(
        gaussian_delta(epsilon=0.0, mu=selection_mu(epsilon)), rel=1e-10
    )
    less = selection_mu(epsilon) * (1 - 1e-3)
    assert hockey_stick(p, q, 0.0) > gaussian_delta(epsilon=0.0, mu=less)


@given(mu=st.floats(1e-8, 100))
def test_epsilon_of_a_selection_undoes_its_mu(mu):
    epsilon = selection_epsilon(mu=mu)
    assert selection_mu(epsilon) <= mu
    assert epsilon == events.MAX_SELECTION_EPSILON or selection_mu(epsilon * (1 + 1e-10)) > mu * (
        1 - 1e-9
    )


@pytest.mark.parametrize(
    ("mu", "message"),
    [
        (0.0, r"CALIBRATION_ARGUMENT_INVALID: expected mu to be finite and above 0, found 0\.0"),
        (math.nan, "CALIBRATION_ARGUMENT_INVALID: expected mu to be finite and above 0"),
        (math.inf, "CALIBRATION_ARGUMENT_INVALID: expected mu to be finite and above 0"),
        (
            1e-12,
            "CALIBRATION_UNREACHABLE: expected mu that allows an epsilon of 1e-09 for a selection, "
            "found 1e-12; choose a larger epsilon for the release or fewer selections",
        ),
    ],
)
def test_mu_without_an_epsilon_is_refused(mu, message):
    with pytest.raises(ConfigurationError, match=message):
        selection_epsilon(mu=mu)


def test_every_accountant_adds_selections_up():
    event = events.RepeatedEvent(event=selection(0.5), count=12)
    gaussian = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(event)
    assert gaussian.mu == pytest.approx(math.sqrt(12) * selection_mu(0.5), rel=1e-12)
    renyi = RenyiAccountant(adjacency=Adjacency.ADD_REMOVE).compose(event)
    assert renyi.bounds[0] == pytest.approx(2 * 12 * selection_rho(0.5), rel=1e-11)
    tight = TightAccountant().compose(event)
    assert tight.epsilon(delta=1e-6) == pytest.approx(gaussian.epsilon(delta=1e-6), rel=1e-12)
    assert event_mu_squared(selection(0.5)) == pytest.approx(selection_mu(0.5) ** 2, rel=1e-14)
    # The exact delta of the worst twelve choices of two candidates, all exchanged.
    p = 1 / (1 + math.exp(-0.25))
    wins = np.arange(13)
    there, back = binom.pmf(wins, 12, p), binom.pmf(wins, 12, 1 - p)
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        exact = float(np.maximum(there - math.exp(epsilon) * back, 0).sum())
        for accountant in (gaussian, tight):
            assert exact <= accountant.delta(epsilon=epsilon)
        assert epsilon <= renyi.epsilon(delta=exact)


def test_composition_agrees_with_privacy_loss_distributions():
    # dp-accounting knows the pair that attains mu as randomised response with half the epsilon.
    epsilon, count = 1.0, 30
    noise = 2 / (1 + math.exp(epsilon / 2))
    engine = privacy_loss_distribution.from_randomized_response(noise, 2).self_compose(count)
    mu = math.sqrt(count) * selection_mu(epsilon)
    for at in (0.5, 2.0, 5.0, 8.0):
        found = engine.get_delta_for_epsilon(at)
        stated = gaussian_delta(epsilon=at, mu=mu)
        assert found <= stated
        # mu is 25 percent above that of the central limit, epsilon / 2 per draw.
        assert found >= gaussian_delta(epsilon=at, mu=0.95 * math.sqrt(count) * epsilon / 2)


@pytest.mark.parametrize("kind", [GaussianAccountant, RenyiAccountant])
def test_replacement_costs_four_times_and_is_no_answer_for_add_or_remove(kind):
    event = events.ComposedEvent(events=(selection(0.5),))
    once = kind(adjacency=Adjacency.ADD_REMOVE).compose(event)
    replaced = kind(adjacency=Adjacency.REPLACE_ONE).compose(event)
    exact = kind(adjacency=Adjacency.REPLACE_ONE).compose(selection(0.5, Adjacency.REPLACE_ONE))
    if kind is GaussianAccountant:
        assert replaced.mu == pytest.approx(2 * once.mu, rel=1e-12)
        # The two halves of a replacement together have a range of twice epsilon.
        assert replaced.mu >= selection_mu(1.0)
        assert exact.mu == pytest.approx(once.mu)
    with pytest.raises(ConfigurationError, match="ADJACENCY_MISMATCH: expected the sensitivity of"):
        kind(adjacency=Adjacency.ADD_REMOVE).compose(selection(0.5, Adjacency.REPLACE_ONE))
    assert once.epsilon(delta=1e-6) < replaced.epsilon(delta=1e-6)
