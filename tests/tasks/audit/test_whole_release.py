from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from measuring import curator_of, drawn_by
from scipy.stats import binom

from privacy.calibration import gdp_mu
from privacy.randomness import SeededNoise
from storage.schema.table import TableSchema
from tasks.audit import whole_release
from tasks.audit.findings import ABOVE, WITHIN, ClaimedGuarantee
from tasks.audit.pairs import PlantedTable
from tasks.audit.projections import project, project_one_by_one
from tasks.audit.replay import replay
from tasks.audit.subjects import subject_of
from tasks.ingest.encoding import domain_of
from tasks.measurement.method import measure
from tasks.methods.clustmix.images.image_clustmix import ImageClustMix
from tasks.methods.clustmix.images.image_draws import with_features
from tasks.methods.clustmix.images.teacher import whitening_of
from tasks.methods.naive_bayes import NaiveBayes

DELTA = 1e-6


def schema(columns, codes, labels):
    return TableSchema.model_validate(
        {
            "columns": [
                {"name": f"c{i}", "kind": "integer", "lower": 0, "upper": codes - 1, "bins": codes}
                for i in range(columns)
            ],
            "label": {"name": "y", "levels": {f"level {i}": [] for i in range(labels)}},
        }
    )


WIDE = schema(8, 40, 20)
NARROW = schema(3, 4, 2)
IMAGES = TableSchema.model_validate(
    {
        "image": {"height": 28, "width": 28, "gray_levels": 4},
        "label": {"name": "y", "levels": {"ill": [], "well": []}},
    }
)


def planted(declared, canaries, *, seed=0, named=True):
    return PlantedTable.draw(
        domain_of(declared),
        named=named,
        canaries=canaries,
        others=canaries // 4,
        rng=np.random.default_rng(seed),
    )


class HalvedNoise(SeededNoise):
    def discrete_gaussian(self, shape, *, noise_stddev):
        return super().discrete_gaussian(shape, noise_stddev=noise_stddev / 2)


def audited(
    table, *, epsilon, method=NaiveBayes, seed=0, noise=SeededNoise, confidence=0.999, rows_out=4000
):
    """Measure a planted table in this process and attack what was sealed, as the command does."""
    claim = ClaimedGuarantee.of_budget(epsilon=epsilon, delta=DELTA)
    synthesizer, kept = method(table.domain), {}
    rows = table.encoded().only(table.present)
    curator = curator_of(synthesizer, [rows], noise(seed), mu=claim.mu, seal=kept.__setitem__)
    released = measure(synthesizer, curator, mu=claim.mu)
    sealed = {name: noisy.values for name, noisy in kept.items()}
    stated = {name: noisy.event for name, noisy in kept.items()}
    draws = replay(synthesizer, mu=claim.mu, table=table, sealed=sealed, stated=stated)
    codes, labels = synthesizer.sample(released, n_rows=rows_out, rng=np.random.default_rng(seed))
    measured = whole_release.score_measurement(draws)
    bundle = whole_release.score_rows(table, codes, labels)
    tried = {"canaries": table.n_canaries, "confidence": confidence}
    judged = partial(whole_release.judge_scores, delta=DELTA, confidence=confidence)
    return whole_release.WholeRelease(
        dataset="d",
        method=method.__name__,
        claim=claim,
        confidence=confidence,
        patients=int(table.present.sum()),
        measurement=judged(measured.scores, table.included),
        bundle=judged(bundle, table.included),
        residual=whole_release.judge_residual(draws, confidence=confidence),
        power=whole_release.guess_power(measured, mu=claim.mu, **tried),
        expected_epsilon=whole_release.expected_bound(measured, delta=DELTA, **tried),
        release_seconds=0.0,
    )


def small_images(domain):
    return ImageClustMix(replace(domain, patients=1000), points=300)


@pytest.mark.parametrize("name", ["naive_bayes", "clustmix", "images"])
def test_a_projection_by_formula_is_that_of_the_contribution_function(name):
    bind = small_images if name == "images" else subject_of(name).bind
    table = planted(IMAGES if name == "images" else NARROW, 40)
    synthesizer = bind(table.domain)
    rows = table.encoded().only(table.present)
    plan, seen, released = drawn_by(synthesizer, rows, mu=gdp_mu(epsilon=4.0, delta=DELTA))
    assert seen.keys() == {planned.name for planned in plan.statistics}
    for statistic, (contribution, public) in seen.items():
        if statistic == "residual_round_1" and name == "images":
            rows = with_features(rows, layout=synthesizer._layout, whitening=whitening_of(released))
        planned = plan[statistic]
        direction = np.random.default_rng(2).standard_normal(planned.shape)
        fast = project(contribution, public, rows, direction)
        slow = project_one_by_one(contribution, public, rows, direction)
        scale = np.sqrt(slow[1]).max() * np.linalg.norm(direction)
        np.testing.assert_allclose(fast[0], slow[0], atol=1e-5 * scale)
        # A formula leaves out the truncation to the grid, which a small residual feels most.
        np.testing.assert_allclose(fast[1], slow[1], rtol=3e-4, atol=1e-6 * slow[1].max())
        assert fast[1].max() <= planned.l2_sensitivity**2


def test_an_honest_release_is_within_its_claim_and_not_far_below():
    found = audited(planted(WIDE, 4000), epsilon=4.0)
    assert found.verdict == WITHIN, found.to_dict()
    assert found.measurement.epsilon > found.measurement.epsilon_gdp > 0.9
    assert 1.0 < found.bundle.epsilon < found.measurement.epsilon
    assert found.expected_epsilon == pytest.approx(found.measurement.epsilon, abs=0.6)
    assert found.residual.n_values == 20 * 321
    assert found.residual.lowest < found.residual.ratio < found.residual.highest
    assert found.power[2.0] > 0.99


def test_images_are_audited_as_tables_are():
    table = planted(IMAGES, 600)
    audit = partial(audited, table, epsilon=8.0, method=small_images, rows_out=200)
    honest, halved = audit(), audit(noise=HalvedNoise)
    assert honest.verdict == WITHIN, honest.to_dict()
    # Of so few images guesses see a part of epsilon; their noise is seen to a few percent.
    assert honest.measurement.epsilon > 1.0
    assert 0.97 < honest.residual.lowest < honest.residual.highest < 1.03
    assert halved.verdict == ABOVE
    assert not halved.residual.as_stated
    assert halved.residual.ratio == pytest.approx(0.5, abs=0.02)


def test_half_of_the_noise_is_found_twice():
    found = audited(planted(WIDE, 4000), epsilon=1.0, noise=HalvedNoise)
    assert (found.verdict, found.exit_code) == (ABOVE, 1)
    assert found.measurement.epsilon > 1.0
    assert not found.residual.as_stated
    assert found.residual.ratio == pytest.approx(0.5, abs=0.02)
    written = found.to_dict()
    assert written["verdict"] == "ABOVE THE CLAIM"
    assert written["noise_as_stated"] is False


@pytest.mark.parametrize("declared", [WIDE, NARROW], ids=["wide", "narrow"])
def test_bounds_of_honest_releases_are_above_the_claim_as_seldom_as_stated(declared):
    # In the narrow schema 1,000 canaries share 24 values: their guesses are not independent.
    audits, confidence, epsilon = 60, 0.9, 4.0
    claimed = ClaimedGuarantee.of_budget(epsilon=epsilon, delta=DELTA)
    missed = np.zeros(3)
    for seed in range(audits):
        found = audited(
            planted(declared, 1000, seed=seed), epsilon=epsilon, seed=seed, confidence=confidence
        )
        one = found.measurement
        missed += [one.mu > claimed.mu, one.mu_any > claimed.mu, one.epsilon_any > epsilon]
    assert (missed <= binom.isf(1e-4, audits, 1 - confidence)).all()


def test_only_the_audit_command_can_compute_the_noise():
    root = Path(__file__).resolve().parents[3]
    modules = [
        p
        for folder in ("clustmix", "flows", "tasks", "storage", "privacy")
        for p in (root / folder).rglob("*.py")
    ]
    replaying = {p.name for p in modules if "audit.replay" in p.read_text(encoding="utf-8")}
    attacking = {p.name for p in modules if "audit_release" in p.read_text(encoding="utf-8")}
    assert replaying == {"audit_release.py", "whole_release.py"}
    assert attacking == {"audit.py"}
