"""DPGM, small cluster: which model moved is seen, so choosing a cluster first amplifies nothing.

Acs, Melis, Castelluccia and De Cristofaro, "Differentially private mixture of generative neural
networks". Algorithm 1 takes in each iteration the cluster ``s`` with probability ``|D_s| / |D|``
and then each record of it with probability ``L / |D_s|``. The analysis multiplies the two to
``L / |D|`` and states that ``k`` models cost no more than one. But the model that moves tells which
cluster was taken, and in that one a record was in with ``L / |D_s|``. The moments are convex in the
rate, so the true ones are always larger; in a small cluster by about one over its share.

The pair: two tables that differ in one record of the small cluster, whose clipped gradient is
``+C`` in the one and ``-C`` in the other. All other gradients are zero.
"""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from measuring import domain_with, rows_with
from scipy.special import gammaln, log_ndtr, logsumexp

from privacy.calibration import gdp_mu
from tasks.methods.dpgm.dpgm import Dpgm
from tasks.methods.dpgm.dpgm_settings import DpgmConfig
from tests.counterexamples.attacks import least_noise, measured_epsilon, mu_between

N, BATCH, EPOCHS = 60_000, 102, 20
RATE = BATCH / N
ITERATIONS = int(EPOCHS / RATE)
DELTA = 1 / N
CLAIM = 1.74
"""Epsilon that the paper reports for 20 epochs on handwritten digits."""


# --- the analysis of the paper --------------------------------------------------------------------

MOMENTS = np.arange(1, 256)


def log_moments(*, rate, noise):
    """``log E2(lambda)`` of the paper for one iteration, by its binomial expansion."""
    found = []
    for order in MOMENTS + 1:
        k = np.arange(order + 1)
        terms = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        with np.errstate(divide="ignore"):
            terms = terms + k * np.log(rate)
            terms[:-1] += (order - k[:-1]) * math.log1p(-rate) if rate < 1 else -np.inf
        found.append(logsumexp(terms + k * (k - 1) / (2 * noise**2)))
    return np.array(found)


def moments_epsilon(log_moment):
    """Theorem 4: the least over lambda of ``(T alpha(lambda) - log delta) / lambda``."""
    return float(np.min((ITERATIONS * log_moment - math.log(DELTA)) / MOMENTS))


def claimed_epsilon(noise):
    """``k`` models as one model on all records (Section 5), with a public clipping norm."""
    return moments_epsilon(log_moments(rate=RATE, noise=noise))


def paper_noise():
    """sigma_G for which the paper's analysis gives its claim."""
    return least_noise(claimed_epsilon, CLAIM, between=(0.3, 20.0), within=1e-6)


@pytest.fixture(scope="module")
def noise():
    return paper_noise()


# --- the printed algorithm, and the proven one --------------------------------------------------


def paper_training(gradients, share, rng, *, noise):
    """Lines 3 to 6 of Algorithm 1 with one parameter and gradients clipped at one.

    Returns the noisy sums of the iterations that took the cluster; the others are seen to move
    another model.
    """
    taken = int((rng.random(ITERATIONS) < share).sum())
    sampled = rng.random((taken, len(gradients))) < BATCH / len(gradients)
    return sampled @ gradients + rng.normal(0.0, math.sqrt(2) * noise, taken)


def gradients_of(n_members, sign):
    return np.append(np.zeros(n_members - 1), float(sign))


# --- measures ------------------------------------------------------------------------------------


def log_mixture(edges, *, centre, rate, noise):
    """Log-probabilities of the intervals between edges under a sampled Gaussian."""

    def log_interval(mean):
        upper = log_ndtr(np.append(edges - mean, np.inf) / noise)
        lower = log_ndtr(np.insert(edges - mean, 0, -np.inf) / noise)
        # From the nearer tail, where the difference does not cancel.
        mirrored_upper = log_ndtr(-np.insert(edges - mean, 0, -np.inf) / noise)
        mirrored_lower = log_ndtr(-np.append(edges - mean, np.inf) / noise)
        with np.errstate(divide="ignore"):
            left = upper + np.log1p(-np.exp(lower - upper))
            right = mirrored_upper + np.log1p(-np.exp(mirrored_lower - mirrored_upper))
        return np.where(np.append(edges, edges[-1] + 1) < mean, left, right)

    return np.logaddexp(
        math.log1p(-rate) + log_interval(0.0), math.log(rate) + log_interval(centre)
    )


def lower_bound_of_epsilon(*, share, rate, noise, neighbour, interval=1e-4):
    """Epsilon at DELTA that a training has at least, in ITERATIONS that take the cluster or not.

    Each output is rounded to an interval, which is post-processing and can only hide, and the
    library rounds every privacy loss down. `neighbour` is the gradient of the record in the other
    table; zero stands for a table without it.
    """
    edges = np.arange(-8 * noise, 8 * noise, noise / 100)
    laws = []
    for gradient in (1.0, neighbour):
        inside = log_mixture(edges, centre=gradient, rate=rate, noise=noise)
        law = dict(enumerate(math.log(share) + inside))
        laws.append({**law, "another model": math.log1p(-share)} if share < 1 else law)
    return max(
        privacy_loss_distribution.from_two_probability_mass_functions(
            *pair,
            pessimistic_estimate=False,
            value_discretization_interval=interval,
            symmetric=False,
        )
        .self_compose(ITERATIONS)
        .get_epsilon_for_delta(DELTA * (1 + 1e-6))
        for pair in (laws, laws[::-1])
    )


def log_density(outputs, *, centre, rate, noise):
    """Of a sampled Gaussian, up to a constant."""
    return np.logaddexp(
        math.log1p(-rate) - outputs**2 / (2 * noise**2),
        math.log(rate) - (outputs - centre) ** 2 / (2 * noise**2),
    )


# --- tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "noise", "order"), [(0.01, 1.0, 2), (0.2, 2.0, 5), (1.0, 1.5, 3)])
def test_moments_are_the_integral_of_the_paper(rate, noise, order):
    grid = np.linspace(-40, 60, 2_000_001)
    alone = -(grid**2) / (2 * noise**2)
    mixed = (
        log_density(grid, centre=1.0, rate=rate, noise=noise)
        if rate < 1
        else (-((grid - 1) ** 2) / (2 * noise**2))
    )
    integral = np.exp(mixed + (order - 1) * (mixed - alone)).sum() * (grid[1] - grid[0])
    expected = math.log(integral / (noise * math.sqrt(2 * math.pi)))
    assert log_moments(rate=rate, noise=noise)[order - 2] == pytest.approx(expected, rel=1e-6)


def test_paper_claim_is_met_by_its_own_analysis(noise):
    assert claimed_epsilon(noise) == pytest.approx(CLAIM, abs=1e-4)


@pytest.mark.parametrize(
    ("share", "corrected"), [(1.0, 1.74), (0.1, 5.36), (0.02, 13.5), (0.01, 18.9)]
)
def test_same_analysis_of_the_choice_that_is_seen(share, corrected, noise):
    # With the share, the moment is that of the higher rate; otherwise another model moves.
    inside = math.log(share) + log_moments(rate=RATE / share, noise=noise)
    seen = np.logaddexp(math.log1p(-share), inside) if share < 1 else inside
    assert moments_epsilon(seen) == pytest.approx(corrected, rel=0.01)
    assert np.all(seen >= log_moments(rate=RATE, noise=noise) * (1 - 1e-12))


def paper_lower_bound(share, noise):
    return lower_bound_of_epsilon(
        share=share, rate=RATE / share, noise=math.sqrt(2) * noise, neighbour=-1.0
    )


@pytest.mark.parametrize(("share", "at_least"), [(0.1, 3.84), (0.02, 10.0), (0.01, 15.4)])
def test_paper_algorithm_exceeds_its_claim(share, at_least, noise):
    assert paper_lower_bound(share, noise) >= at_least > 2 * CLAIM


@pytest.mark.integration
def test_paper_algorithm_is_caught_by_running_it(noise):
    share, rng = 0.01, np.random.default_rng(30)
    law = {"rate": RATE / share, "noise": math.sqrt(2) * noise}
    scores = []
    for sign in (1, -1):
        gradients = gradients_of(int(share * N), sign)
        outputs = [paper_training(gradients, share, rng, noise=noise) for _ in range(500)]
        scores.append(
            [
                (log_density(one, centre=1.0, **law) - log_density(one, centre=-1.0, **law)).sum()
                for one in outputs
            ]
        )
    assert measured_epsilon(*scores, threshold=3.0, delta=DELTA) > CLAIM


@pytest.mark.integration
@pytest.mark.parametrize("n_members", [1, 20])
def test_proven_form_keeps_its_claim_on_the_same_pair(n_members):
    # The size of the cluster enters nowhere: every model makes the same public steps on everybody.
    codes = np.append(np.full(100, 1), np.full(n_members, 10))
    present, absent = (
        rows_with(codes[:n, None], np.zeros(n)) for n in (len(codes), len(codes) - 1)
    )
    config = DpgmConfig(
        clusters=2, fourier_features=8, network="vae", hidden_units=2, epochs=3, min_cluster_size=1
    )
    method = Dpgm(domain_with(11, numeric=[0]), config)
    claim = gdp_mu(epsilon=CLAIM, delta=DELTA)
    assert 0.1 * claim < mu_between(method, present, absent, mu=claim) <= claim
