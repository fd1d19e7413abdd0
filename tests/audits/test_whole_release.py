from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from measuring import curator_of, drawn_by
from scipy.stats import binom

from audits import whole_release
from audits.findings import Claim
from audits.planted import PlantedTable
from audits.replay import project, replay
from audits.subjects import subject_of
from benchmarks.in_process import SeededNoise
from privacy.calibration import gdp_mu
from storage.schema.table import TableSchema
from tasks.ingest.encoding import domain_of
from tasks.measurement.method import measure
from tasks.methods.clustmix.images.image_clustmix import ImageClustMix
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
    claim = Claim.of_budget(epsilon=epsilon, delta=DELTA)
    synthesizer, kept = method(table.domain), {}
    rows = table.encoded().only(table.present)
    curator = curator_of(synthesizer, [rows], noise(seed), mu=claim.mu, seal=kept.__setitem__)
    released = measure(synthesizer, curator)
    sealed = {name: noisy.values for name, noisy in kept.items()}
    stated = {name: noisy.event for name, noisy in kept.items()}
    draws = replay(synthesizer, mu=claim.mu, table=table, sealed=sealed, stated=stated)
    codes, labels = synthesizer.sample(released, n_rows=rows_out, rng=np.random.default_rng(seed))
    measured = whole_release.score_measurement(draws)
    bundle = whole_release.score_rows(table, codes, labels)
    bound = {"delta": DELTA, "confidence": confidence}
    judged = partial(whole_release.judge_scores, **bound)
    return whole_release.WholeRelease(
        dataset="d",
        method=method.__name__,
        claim=claim,
        confidence=confidence,
        patients=int(table.present.sum()),
        measurement=judged(measured.scores, table.included),
        bundle=judged(bundle, table.included),
        residual=whole_release.judge_residual(draws, confidence=confidence),
        expected_epsilon=whole_release.expected_bound(
            measured.expected_mu, canaries=table.n_canaries, **bound
        ),
        release_seconds=0.0,
    )


def small_images(domain):
    return ImageClustMix(replace(domain, patients=1000), points=300)


@pytest.mark.parametrize("name", ["naive_bayes", "clustmix"])
def test_every_vector_is_projected_less_the_mean_of_its_label(name):
    table = planted(NARROW, 40)
    synthesizer = subject_of(name).bind(table.domain)
    rows = table.encoded().only(table.present)
    plan, seen, _ = drawn_by(synthesizer, rows, mu=gdp_mu(epsilon=4.0, delta=DELTA))
    assert seen.keys() == {planned.name for planned in plan.statistics}
    for statistic, (contribution, public) in seen.items():
        direction = np.random.default_rng(2).standard_normal(plan[statistic].shape)
        inner, squared_norm = project(contribution, public, rows, direction)
        each = [rows.only(slice(i, i + 1)) for i in range(len(rows))]
        vectors = np.stack([contribution(one, **public).reshape(-1) for one in each]).astype(float)
        own = vectors.copy()
        for label in (0, 1):
            own[rows.label == label] -= vectors[rows.label == label].mean(axis=0)
        np.testing.assert_allclose(inner, own @ direction.reshape(-1))
        np.testing.assert_allclose(squared_norm, (own * vectors).sum(axis=1))


def test_an_honest_release_is_within_its_claim_and_not_far_below():
    found = audited(planted(WIDE, 4000), epsilon=4.0)
    assert found.within_claim, found.to_dict()
    assert found.measurement.epsilon > found.measurement.epsilon_gdp > 0.9
    assert 1.0 < found.bundle.epsilon < found.measurement.epsilon
    assert found.expected_epsilon == pytest.approx(found.measurement.epsilon, abs=0.6)
    assert found.residual.n_values == 20 * 321
    assert found.residual.lowest < found.residual.ratio < found.residual.highest


@pytest.mark.integration
def test_images_are_audited_as_tables_are():
    table = planted(IMAGES, 600)
    audit = partial(audited, table, epsilon=8.0, method=small_images, rows_out=200)
    honest, halved = audit(), audit(noise=HalvedNoise)
    assert honest.within_claim, honest.to_dict()
    # Of so few images guesses see a part of epsilon; their noise is seen to a few percent.
    assert honest.measurement.epsilon > 1.0
    assert 0.97 < honest.residual.lowest < honest.residual.highest < 1.03
    assert not halved.within_claim
    assert not halved.residual.as_stated
    assert halved.residual.ratio == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("declared", [WIDE, NARROW], ids=["wide", "narrow"])
def test_bounds_of_honest_releases_are_above_the_claim_as_seldom_as_stated(declared):
    # In the narrow schema 400 canaries share 24 values: their guesses are not independent.
    audits, confidence, epsilon = 40, 0.9, 4.0
    missed = np.zeros(3)
    for seed in range(audits):
        found = audited(
            planted(declared, 400, seed=seed), epsilon=epsilon, seed=seed, confidence=confidence
        )
        one = found.measurement
        missed += [bound > epsilon for bound in (one.epsilon, one.epsilon_gdp, one.epsilon_any)]
    assert (missed <= binom.isf(1e-4, audits, 1 - confidence)).all()


def test_only_the_audit_command_can_compute_the_noise():
    root = Path(__file__).resolve().parents[2]
    product = {
        path.relative_to(root).as_posix()
        for folder in ("clustmix", "flows", "tasks", "storage", "privacy")
        for path in (root / folder).rglob("*.py")
        if "audits." in path.read_text(encoding="utf-8")
    }
    assert product == {"flows/cli/audit.py"}
    replaying = {
        path.name
        for path in (root / "audits").glob("*.py")
        if "import ReplayedDraw, check_replayable, replay" in path.read_text(encoding="utf-8")
    }
    assert replaying == {"generated_release.py"}


def test_half_of_the_noise_is_found_twice():
    found = audited(planted(WIDE, 4000), epsilon=1.0, noise=HalvedNoise)
    assert found.measurement.epsilon > 1.0
    assert not found.residual.as_stated
    assert found.residual.ratio == pytest.approx(0.5, abs=0.02)
    written = found.to_dict()
    assert written["verdict"] == "ABOVE THE CLAIM"
    assert written["noise_as_stated"] is False
