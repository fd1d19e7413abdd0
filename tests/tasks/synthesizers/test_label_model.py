import numpy as np
import pytest

from tasks.measurement.statistics import SUM_SCALE, residual_moments, softmax
from tasks.synthesizers.clustmix.earlier.label_model import (
    LabelModel,
    correct,
    label_probabilities,
    naive_bayes_log_odds,
    start_model,
)


def labelled_rows(small, n=3000, seed=0):
    """Rows whose label depends on the first two columns together."""
    rng = np.random.default_rng(seed)
    codes = np.column_stack([rng.integers(0, w, n) for w in small.domain.n_codes])
    log_odds = -1.0 + 1.2 * (codes[:, 0] - 1.5) + 1.5 * (codes[:, 1] == 1)
    label = (rng.random(n) < 1 / (1 + np.exp(-log_odds))).astype(int)
    return small.rows(
        [(i % 5, [(c, int(y))]) for i, (c, y) in enumerate(zip(codes, label, strict=True))]
    )


def log_likelihood(model, rows, feature_map):
    p = softmax(model.logits(rows.codes, feature_map) + model.log_prior)
    return float(np.log(p[np.arange(len(rows)), rows.label]).mean())


def corrected(model, rows, feature_map, *, noise_stddev=0.0):
    phi = feature_map.phi(rows.codes)
    residual = residual_moments(
        rows, feature_map=feature_map, weights=model.weights, log_prior=model.log_prior
    )
    return correct(model, residual / SUM_SCALE, phi.T @ phi, noise_stddev=noise_stddev)


@pytest.mark.parametrize("kind", ["one_hot", "ordinal"])
@pytest.mark.parametrize("noise_stddev", [0.0, 1.0])
def test_every_correction_raises_the_likelihood_without_noise(kind, noise_stddev, small):
    rows, feature_map = labelled_rows(small), small.feature_map(0, kind)
    prior = np.bincount(rows.label) / len(rows)
    model = LabelModel(weights=np.zeros((feature_map.n_features, 2)), log_prior=np.log(prior))
    steps = [log_likelihood(model, rows, feature_map)]
    for _ in range(3):
        model = corrected(model, rows, feature_map, noise_stddev=noise_stddev)
        steps.append(log_likelihood(model, rows, feature_map))
    assert np.isfinite(model.weights).all()
    assert steps[0] < steps[1] < steps[2] < steps[3] + 1e-6
    assert steps[-1] > steps[0] + 0.08


def test_more_noise_makes_a_smaller_step(small):
    rows, feature_map = labelled_rows(small), small.feature_map(0)
    model = LabelModel(weights=np.zeros((feature_map.n_features, 2)), log_prior=np.log([0.5, 0.5]))
    norms = [
        np.linalg.norm(corrected(model, rows, feature_map, noise_stddev=noise).weights)
        for noise in (0.0, 10.0, 1e3, 1e6)
    ]
    assert norms[0] > norms[1] > norms[2] > norms[3]
    assert norms[3] < 0.01


def test_naive_bayes_start_gives_the_log_odds_of_naive_bayes(small):
    rows, feature_map, offsets = (
        labelled_rows(small),
        small.feature_map(0),
        small.domain.one_hot_offsets,
    )
    prior = np.bincount(rows.label) / len(rows)
    histograms = np.zeros((2, small.domain.one_hot_width))
    for codes, label in zip(rows.codes, rows.label, strict=True):
        histograms[label, offsets[:-1] + codes] += 1
    log_odds = naive_bayes_log_odds(histograms, offsets, prior=prior, noise_stddev=0.0)
    model = start_model(
        np.zeros((feature_map.n_features, 2)),
        log_odds,
        feature_map,
        prior=prior,
        naive_bayes_weight=1.0,
    )
    # By hand: sum over columns of log p(label | code) / p(label).
    record = rows.codes[0]
    by_hand = [
        sum(
            np.log(histograms[y, start + code] / histograms[:, start + code].sum() / prior[y])
            for start, code in zip(offsets, record, strict=False)
        )
        for y in (0, 1)
    ]
    np.testing.assert_allclose(model.logits(rows.codes[:1], feature_map)[0], by_hand, rtol=1e-6)
    np.testing.assert_allclose(np.exp(model.log_prior), prior)


def test_codes_with_nothing_but_noise_say_nothing():
    histograms = np.array([[900.0, -4.0], [100.0, 3.0]])
    log_odds = naive_bayes_log_odds(
        histograms, np.array([0, 2]), prior=np.array([0.9, 0.1]), noise_stddev=1e6
    )
    np.testing.assert_allclose(log_odds, 0.0, atol=0.01)
    with pytest.raises(ValueError, match="expected 3 codes, found 2"):
        naive_bayes_log_odds(
            histograms, np.array([0, 3]), prior=np.array([0.9, 0.1]), noise_stddev=1.0
        )


@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0, 40.0])
@pytest.mark.parametrize("prior", [(0.5, 0.5), (0.93, 0.07), (0.7, 0.2, 0.1)])
def test_mean_label_probability_is_the_prior_however_sharp(spread, prior):
    logits = np.random.default_rng(0).normal(0, spread, (4000, len(prior)))
    p = label_probabilities(logits, np.array(prior), sharpness=1.0)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_allclose(p.mean(axis=0), prior, atol=1e-6)
