import numpy as np
import pytest
from scipy.stats import binom

from privacy.gaussian import gaussian_epsilon
from privacy.parameters import Adjacency
from tasks.audit.findings import (
    ABOVE,
    WITHIN,
    AuditResult,
    ClaimedGuarantee,
    OneRunFinding,
    PairFinding,
    judge_pair,
)
from tasks.audit.game import Scores


def gaussian_scores(rng, mu, runs, noise_columns=0):
    def columns(sign):
        score = sign * mu**2 / 2 + mu * rng.standard_normal((runs, 1))
        return np.hstack([rng.standard_normal((runs, noise_columns)), score])

    names = tuple(f"score {i}" for i in range(noise_columns + 1))
    return Scores(names=names, absent=columns(-1), present=columns(1))


def finding(mu, epsilon=0.0):
    return PairFinding(pair="p", attack="a", runs=10, epsilon=epsilon, mu=mu, mu_attack="b")


def result(claim, *pairs, one_run=None):
    return AuditResult(
        method="m",
        claim=claim,
        adjacency=Adjacency.ADD_REMOVE,
        confidence=0.999,
        runs=20,
        pairs=pairs,
        one_run=one_run,
    )


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


def test_verdict_and_exit_code():
    claim = ClaimedGuarantee.of_budget(epsilon=1.0, delta=1e-6)
    assert claim.mu == pytest.approx(0.2367, abs=1e-4)
    within = result(claim, finding(0.1), finding(0.2, epsilon=0.9))
    assert (within.verdict, within.exit_code, within.audited_mu) == (WITHIN, 0, 0.2)
    assert within.audited_epsilon == 0.9
    by_mu = result(claim, finding(0.3), finding(0.1))
    assert (by_mu.verdict, by_mu.exit_code) == (ABOVE, 1)
    assert by_mu.audited_epsilon == gaussian_epsilon(delta=1e-6, mu=0.3) > 1.0
    assert result(claim, finding(0.1, epsilon=1.1)).exit_code == 1
    guessed = OneRunFinding(canaries=10, guesses=10, correct=10, epsilon=1.5)
    assert result(claim, finding(0.1), one_run=guessed).verdict == ABOVE
    # Where no mu was claimed, a bound on mu refutes nothing.
    assert result(ClaimedGuarantee(epsilon=1.0, delta=1e-6), finding(5.0)).verdict == WITHIN
