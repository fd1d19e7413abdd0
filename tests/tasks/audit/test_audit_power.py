import numpy as np
import pytest

from tasks.audit.findings import ClaimedGuarantee
from tasks.audit.pairs import AUDIT_DOMAIN, neighbour_pairs
from tasks.audit.power import FACTORS, Strengths, detection_rates, simulate, strengths_of
from tasks.audit.subjects import subject_of

CLAIM = ClaimedGuarantee.of_budget(epsilon=1.0, delta=1e-6)


def strengths(norms):
    return Strengths(np.array(norms))


def test_simulated_scores_are_likelihood_ratios_of_the_mu_that_is_shown():
    rng = np.random.default_rng(0)
    scores = simulate(strengths([[0.6, 0.8]]), factor=1.0, runs=40_000, rng=rng)
    assert scores.present.mean() == pytest.approx(0.5, abs=0.03)
    assert scores.absent.mean() == pytest.approx(-0.5, abs=0.03)
    assert scores.present.std() == pytest.approx(1.0, abs=0.02)


def test_power_grows_with_the_factor_and_the_runs():
    def rates(runs):
        return detection_rates(
            [strengths([[CLAIM.mu]]), strengths([[0.01]])],
            claim=CLAIM,
            runs=runs,
            confidence=0.9999,
            rng=np.random.default_rng(2),
        )

    few, many = rates(100), rates(2_000)
    assert set(few) == set(FACTORS)
    assert few[1.5] == 0.0
    assert few[3.0] < many[3.0] == 1.0
    assert many[1.5] < many[2.0]


def test_strength_of_the_worst_pair_is_the_budget():
    synthesizer = subject_of("naive_bayes").bind(AUDIT_DOMAIN)
    found = {
        pair.name: strengths_of(synthesizer, pair, mu=CLAIM.mu).mu
        for pair in neighbour_pairs(AUDIT_DOMAIN)
    }
    assert found["outlier"] == pytest.approx(CLAIM.mu, rel=1e-3)
    assert found["scattered rows"] < 0.7 * CLAIM.mu
