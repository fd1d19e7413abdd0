import numpy as np
import pytest
from scipy.stats import binom

from audits.bounds import ErrorCounts, mu_lower_bound_balanced
from audits.findings import ABOVE, WITHIN, AuditResult, Claim, PairFinding, judge_pair
from audits.game import Scores
from audits.pairs import AUDIT_DOMAIN, neighbour_pairs
from audits.power import FACTORS, detection_rates, shown_mu
from audits.subjects import subject_of
from privacy.gaussian import gaussian_epsilon

CLAIM = Claim.of_budget(epsilon=1.0, delta=1e-6)


def gaussian_scores(rng, mu, runs, noise_columns=0):
    def columns(sign):
        score = sign * mu**2 / 2 + mu * rng.standard_normal((runs, 1))
        return np.hstack([rng.standard_normal((runs, noise_columns)), score])

    names = tuple(f"score {i}" for i in range(noise_columns + 1))
    return Scores(names=names, absent=columns(-1), present=columns(1))


def result(*findings):
    pairs = tuple(
        PairFinding(pair="p", attack="a", runs=10, epsilon=epsilon, mu=mu, mu_attack="b")
        for mu, epsilon in findings
    )
    return AuditResult(method="m", claim=CLAIM, confidence=0.999, runs=20, pairs=pairs)


def test_bounds_are_above_the_truth_as_seldom_as_stated_however_many_attacks_are_tried():
    # Audits at 90 percent, each with 15 useless scores beside the true one. Were the bound taken
    # on the runs that choose the score it would fail in most of them.
    audits, rng, mu, missed = 200, np.random.default_rng(0), 0.5, 0
    for _ in range(audits):
        found = judge_pair(
            "p", gaussian_scores(rng, mu, 100, noise_columns=15), delta=0.0, confidence=0.9
        )
        missed += found.mu > mu
    assert missed <= binom.isf(1e-4, audits, 0.1)


def test_bounds_are_near_the_truth_when_runs_are_many_and_are_those_of_the_better_attack():
    scores = gaussian_scores(np.random.default_rng(1), 2.0, 100_000, noise_columns=1)
    found = judge_pair("p", scores, delta=1e-5, confidence=0.999)
    assert (found.attack, found.mu_attack) == ("score 1", "score 1")
    assert 1.93 < found.mu <= 2.0
    assert 4.0 < found.epsilon <= gaussian_epsilon(delta=1e-5, mu=2.0)


def test_verdict_is_of_the_largest_bound():
    within = result((0.1, 0.0), (0.2, 0.9))
    assert (within.to_dict()["verdict"], within.audited_mu) == (WITHIN, 0.2)
    assert within.audited_epsilon == 0.9
    by_mu = result((0.3, 0.0), (0.1, 0.0))
    assert by_mu.to_dict()["verdict"] == ABOVE
    assert by_mu.audited_epsilon == gaussian_epsilon(delta=1e-6, mu=0.3) > 1.0
    assert not result((0.1, 1.1)).within_claim


def test_power_is_the_share_of_audits_that_report():
    runs, confidence = 400, 0.999
    rates = detection_rates(CLAIM.mu, claimed=CLAIM.mu, runs=runs, confidence=confidence)
    assert tuple(rates) == FACTORS
    rng = np.random.default_rng(2)
    for factor, rate in rates.items():
        # With less noise the ratio's middle is wrong about each table more seldom.
        absent, present = rng.standard_normal((2, 2_000, runs)) < -factor * CLAIM.mu / 2
        counts = ErrorCounts(
            false_positives=absent.sum(axis=1), false_negatives=present.sum(axis=1), runs=runs
        )
        found = (mu_lower_bound_balanced(counts, confidence=confidence) > CLAIM.mu).mean()
        assert found == pytest.approx(rate, abs=0.05)
    more = detection_rates(CLAIM.mu, claimed=CLAIM.mu, runs=5_000, confidence=confidence)
    assert rates[1.5] < rates[3.0] < more[3.0]


def test_the_worst_pair_shows_the_budget():
    synthesizer = subject_of("naive_bayes").bind(AUDIT_DOMAIN)
    found = {
        pair.name: shown_mu(synthesizer, pair, mu=CLAIM.mu)
        for pair in neighbour_pairs(AUDIT_DOMAIN)
    }
    assert found["outlier"] == pytest.approx(CLAIM.mu, rel=1e-3)
    assert found["scattered rows"] < 0.7 * CLAIM.mu
