from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from measuring import domain_with
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from audits.findings import Claim
from audits.histories import AttackedCurator, log_odds, with_histories
from audits.planted import PlantedTable
from audits.whole_release import judge_residual, judge_scores
from benchmarks.in_process import SeededNoise
from privacy.randomness import OperatingSystemNoise
from tasks.measurement.method import measure
from tasks.methods.clustmix.events import event_release
from tasks.methods.clustmix.events.event_domain import CodedColumn, EventDomain
from tasks.methods.clustmix.events.event_table import EventTable

LABS = EventDomain(
    n_values=(8,) * 8, value_missing=True, gaps=(0, 1, 30, 90, 365), offsets=(0, 10, 50), most=20
)
STAYS = EventDomain(
    n_values=(1,) * 40, others=(CodedColumn(12),), gaps=(0, 7, 60), offsets=(0, 5, 10), most=8
)
# The sums have so many values that the coins of the others disturb a guess little.
RELEASE = event_release.EventRelease(
    patients=domain_with(6, 2, 12, 20, numeric=(0, 2), patients=1000),
    tables={"labs": LABS, "stays": STAYS},
    shares=[None, None],
)
LONG = [pytest.mark.audit, pytest.mark.timeout(3600)]


def quarter_of(source):
    stated = source.discrete_gaussian
    return SimpleNamespace(
        tainted=True,
        discrete_gaussian=lambda n, noise_stddev: stated(n, noise_stddev=noise_stddev / 4),
    )


def unweighted(table, events, codes, *, records=EventTable.records):
    """Records with which a patient of m events counts m times."""
    rows = records(table, events, codes)
    return replace(rows, weight=np.ones(len(rows)))


def audited(flaw=None, *, epsilon, canaries, seed, confidence=0.999):
    """Measure planted patients in this process, and attack all sums together."""
    claim, rng = Claim.of_budget(epsilon=epsilon, delta=1e-6), np.random.default_rng(seed)
    noise = OperatingSystemNoise() if seed is None else SeededNoise(seed)
    size = {"canaries": canaries, "others": canaries // 4}
    planted = PlantedTable.draw(RELEASE.patients, named=False, **size, rng=rng)
    with pytest.MonkeyPatch.context() as patched:
        if flaw == "weights":
            patched.setattr(EventTable, "records", unweighted)
        tables = with_histories(planted, RELEASE, rng)
        if seed is not None:  # no later draw reads what is fitted to events
            patched.setattr(event_release, "fitted", lambda *_, **__: {})
        source = quarter_of(noise) if flaw == "noise" else noise
        curator = AttackedCurator(RELEASE.plan(mu=claim.mu), planted, tables, source)
        measure(RELEASE, curator)
    scores, shown = log_odds(curator.draws, noise=0.25 if flaw == "noise" else 1.0)
    found = judge_scores(scores, planted.included, delta=1e-6, confidence=confidence)
    residual = judge_residual(curator.draws, confidence=confidence)
    longest = {
        draw.name: np.linalg.norm(draw.vectors, axis=1).max() / draw.bound for draw in curator.draws
    }
    largest = max(found.epsilon, found.epsilon_gdp, found.epsilon_any)
    return SimpleNamespace(**locals())


@pytest.mark.parametrize(
    ("epsilon", "canaries", "seed"),
    [
        (4.0, 500, 1),
        *(pytest.param(*one, None, marks=LONG) for one in ((1.0, 3_000), (4.0, 1_600))),
    ],
)
def test_histories_are_within_the_claim_and_flaws_are_found(epsilon, canaries, seed):
    """Seeded there is no false alarm; unseeded in four of 1,000 runs at most, each bound in one."""
    how = {"epsilon": epsilon, "canaries": canaries, "seed": seed}
    honest, quiet, heavy = (audited(flaw, **how) for flaw in (None, "noise", "weights"))
    mu, names = honest.claim.mu, {one.name for one in honest.curator.plan.statistics}
    assert honest.largest < epsilon < min(quiet.largest, heavy.largest)
    assert honest.longest.keys() == names
    assert all(0.999 < share <= 1.0 for share in honest.longest.values()), honest.longest
    assert 0.6 * mu < honest.shown.max() <= mu
    assert honest.residual.as_stated
    assert quiet.residual.ratio == pytest.approx(0.25, abs=0.01)
    # The noise of the other is as stated: guesses alone find it.
    assert heavy.residual.as_stated
    assert heavy.longest["labs.transitions"] > 15


@pytest.mark.parametrize("epsilon", [pytest.param(one, marks=LONG) for one in (1.0, 4.0)])
def test_bounds_are_above_what_a_release_shows_as_seldom_as_stated(epsilon):
    """Coins and noise drawn 200 times for the vectors of one release; 1 false alarm in 3,000 runs.

    Held against the mean rate of right guesses, which is below that of the claim.
    """
    one, runs, missed = audited(epsilon=epsilon, canaries=300, seed=1), 200, np.zeros(3)
    vectors = np.concatenate([draw.vectors for draw in one.curator.draws], axis=1)
    mean, rng = 2.0 * ndtri(ndtr(one.shown / 2.0).mean()), np.random.default_rng(0)
    for _ in range(runs):
        coins = rng.integers(0, 2, 300) == 1
        surprise = (coins - 0.5) @ vectors + rng.standard_normal(vectors.shape[1])
        scores, _ = log_odds([SimpleNamespace(vectors=vectors, surprise=surprise)])
        found = judge_scores(scores, coins, delta=1e-6, confidence=0.9)
        missed += [found.mu > mean, found.epsilon_gdp > epsilon, found.epsilon_any > epsilon]
    assert (missed <= binom.isf(1e-4, runs, 0.1)).all(), missed
