"""Features and model of the labels: what they must give where it is known."""

import numpy as np
import pytest
from measuring import domain_with, rows_with

from tasks.measurement.statistics import softmax
from tasks.methods.clustmix.tables import label_model as labels
from tasks.methods.clustmix.tables import rounds
from tasks.methods.clustmix.tables import table_draws as draws
from tasks.methods.clustmix.tables.label_features import loudness_of, white_features
from tasks.methods.clustmix.tables.table_layout import Layout

LAYOUT = Layout.of(domain_with(6, 3, 1, numeric=[0], missing=[0], labels=("a", "b", "c")))
SHARES = np.array([0.1, 0.2, 0.3, 0.2, 0.1, 0.1, 0.5, 0.3, 0.2, 1.0])


def test_features_are_white_under_the_released_shares():
    features = white_features(LAYOUT, SHARES, floor=0.0)
    assert [table.shape for table in features.tables] == [(6, 5), (3, 2), (1, 0)]
    for table, share in zip(features.tables, np.split(SHARES, [6, 9]), strict=True):
        np.testing.assert_allclose(share @ table, 0.0, atol=1e-9)
        moment = table.T @ (share[:, None] * table)
        np.testing.assert_allclose(moment, np.eye(table.shape[1]), atol=1e-9)
    # The first directions tell the missing code from the others, and low bins from high ones.
    steps = np.diff(features.tables[0][:5, :2], axis=0)
    assert ((steps > 0).all(axis=0) | (steps < 0).all(axis=0)).any()
    assert features.column.tolist() == [0] * 5 + [1] * 2
    codes = np.array([[2, 1, 0], [5, 2, 0]])
    design = features.design(codes)
    np.testing.assert_allclose(
        design[0], [1.0, *features.tables[0][2], *features.tables[1][1]], rtol=1e-6
    )
    counts = np.zeros((10, 1))
    np.add.at(counts[:, 0], np.array([0, 6, 9]) + codes, 1.0)
    np.testing.assert_allclose(
        features.of_counts(counts)[:, 0], design[:, 1:].sum(axis=0), rtol=1e-5
    )
    some = features.only(np.array([True, False, False, False, True, False, True]))
    assert [table.shape for table in some.tables] == [(6, 2), (3, 1), (1, 0)]


def test_no_other_loudness_leaves_less_unknown():
    rng = np.random.default_rng(1)
    variances, information = rng.gamma(1.0, 1.0, 12), 30.0
    best = loudness_of(variances, information=information)

    def left(squares):
        return (1.0 / (1.0 / variances + squares * information)).sum()

    assert (best**2).sum() == pytest.approx(1.0)
    others = rng.dirichlet(np.full(12, 0.5), 500)
    assert all(left(best**2) <= left(squares) + 1e-12 for squares in others)
    # Where nothing can be learned, all goes to what is known least; where all can, to everything.
    assert np.flatnonzero(loudness_of(variances, information=1e-9)).tolist() == [variances.argmax()]
    np.testing.assert_allclose(loudness_of(variances, information=1e12), 12**-0.5, rtol=1e-6)


def posterior_of(design, sums, column, shares, last=0.0, **settings):
    means, prior = np.zeros_like(sums.values), np.ones(len(column))
    settings.setdefault("reach", np.ones(len(shares) - 1))
    means[0], means[-1] = np.log(shares) @ labels.contrasts(len(shares)), last
    return labels.Posterior(
        design=design, sums=(sums,), prior=prior, column=column, means=means, **settings
    )


@pytest.mark.parametrize("n_labels", [2, 4])
def test_exact_sums_lead_back_to_the_model_that_they_came_from(n_labels):
    rng, n = np.random.default_rng(n_labels), 4_000
    design = np.column_stack([np.ones(n), rng.standard_normal((n, 5))]).astype(np.float32)
    basis = labels.contrasts(n_labels)
    true = rng.normal(0.0, 0.6, (6, n_labels - 1))
    p = softmax(design @ true @ basis.T)
    shares = p.mean(axis=0)
    norms = 2.0 * rng.random(n)
    weights = draws.residual_weights(shares[None]) / np.maximum(1.0, norms)
    patients, loudness = 50_000.0, np.array([0.1, 1.0, 0.5, 1.0, 0.3, 1.0])
    column = np.array([0, 0, 1, 2, 2])
    start = labels.start_model(shares, np.ones(5), column, scale=1.0, reach=np.ones(n_labels - 1))
    sums = labels.Sums(
        values=loudness[:, None]
        * (design.T @ (weights[:, None] * (p - shares)))
        @ basis
        * (patients / n),
        loudness=loudness,
        noise=np.eye(6),
        coefficients=start.coefficients,
        norms=norms,
    )
    np.testing.assert_allclose(labels.probabilities(design, start.coefficients)[0], shares)
    posterior = posterior_of(design, sums, column, shares, patients=patients, reference=0.5)
    found, _ = labels.fit(posterior, start, steps=40)
    np.testing.assert_allclose(found.coefficients, true, atol=0.06)
    # What is heard is known better than before.
    assert (found.variances[1:] < 0.1 * start.variances[1:]).all()


def test_noise_that_drowns_the_sums_leaves_the_prior():
    rng, n = np.random.default_rng(5), 1_000
    design = np.column_stack([np.ones(n), rng.standard_normal((n, 3))]).astype(np.float32)
    shares, column = np.array([0.7, 0.3]), np.zeros(3, dtype=np.int64)
    start = labels.start_model(shares, np.ones(3), column, scale=0.5, reach=np.ones(1))
    sums = labels.Sums(
        values=rng.normal(0, 1e6, (4, 1)),
        loudness=np.ones(4),
        noise=1e12 * np.eye(4),
        coefficients=start.coefficients,
    )
    posterior = posterior_of(design, sums, column, shares, 0.7, patients=1000.0, reference=0.125)
    found, _ = labels.fit(posterior, start, steps=5)
    np.testing.assert_allclose(found.coefficients, posterior.means, atol=0.05)


def test_the_prior_lets_a_rare_label_be_told_by_what_only_its_patients_have():
    # One patient in a hundred has the label, and a code that tells it for sure.
    n, shares, column = 20_000, np.array([0.99, 0.01]), np.zeros(1, dtype=np.int64)
    has = np.arange(n) < n // 100
    design = np.column_stack([np.ones(n), (has - 0.01) / np.sqrt(0.0099)]).astype(np.float32)
    basis, told = labels.contrasts(2), np.column_stack([~has, has]) - shares
    start = {"scale": 0.3, "reach": labels.reaches(shares, scale=1.7)}
    model = labels.start_model(shares, np.ones(1), column, **start)
    sums = labels.Sums(
        values=design.T @ told @ basis / 10.0,
        loudness=np.ones(2),
        noise=1e4 * np.eye(2),
        coefficients=model.coefficients,
    )
    narrow = {"patients": n / 10.0, "reference": 0.045}
    probability = {}
    for name, reach in (("equal", np.ones(1)), ("rare", start["reach"])):
        posterior = posterior_of(design, sums, column, shares, reach=reach, **narrow)
        found, _ = labels.fit(posterior, model, steps=1)
        probability[name] = labels.probabilities(design, found.coefficients)[has, 1].mean()
    assert probability["rare"] > 0.9
    assert probability["equal"] < 0.8
    # Of labels that are not rare, each has the same prior against the mean of those before it.
    reach, basis = labels.reaches(np.full(5, 0.2), scale=1.7), labels.contrasts(5)
    for j in range(1, 5):
        against = basis[j, j - 1] - basis[:j, j - 1].mean()
        assert reach[j - 1] / 2.0 * against**2 == pytest.approx(1.0)


def test_the_order_in_which_labels_are_declared_says_nothing():
    # The first label is so rare that the noise hides what its patients have in common.
    rng, n, order = np.random.default_rng(7), 4_000, np.array([3, 1, 0, 2])
    shares = np.array([0.01, 0.3, 0.4, 0.29])
    layout = Layout.of(domain_with(4, 4, 4, labels=("a", "b", "c", "d")))
    counts = n * shares[:, None] * rng.dirichlet(np.full(4, 2.0), (4, 3)).reshape(4, 12)
    counts += rng.normal(0.0, 10.0, (4, 12))
    features = white_features(layout, np.full(12, 0.25), floor=0.0)
    mixture = rng.integers(0, 4, (2_000, 3)).astype(np.uint16)
    noisy, found = rng.normal(0.0, 20.0, (10, 4)), []
    for labels_as in (np.arange(4), order):
        released = {
            "label_shares": shares[labels_as],
            "patients": np.array(n),
            "counts_by_label": counts[labels_as],
            "counts_stddev": np.array(10.0),
        }
        told = rounds.Rounds(layout, features, released, mixture, scale=1.0)
        told.learn(noisy[:, labels_as], told.loudness(stddev=20.0), stddev=20.0)
        found.append(np.concatenate([told.intercepts[None], told.scores]))
    np.testing.assert_allclose(found[0][:, order], found[1], atol=1e-6)


@pytest.mark.parametrize(("stddev", "sign"), [(400.0, 1.0), (1.0, -1.0)])
def test_a_rare_label_goes_with_rare_codes_unless_the_counts_say_otherwise(stddev, sign):
    rng, n, layout = np.random.default_rng(2), 4_000, Layout.of(domain_with(2, 2, 2))
    rare, shares = n * 0.05 * np.tile([0.99, 0.01], 3), np.tile([0.9, 0.1], 3)
    released = {
        "label_shares": np.array([0.95, 0.05]),
        "patients": np.array(n),
        "counts_by_label": np.stack([n * shares - rare, rare]),
        "counts_stddev": np.array(stddev),
    }
    mixture = (rng.random((2_000, 3)) < 0.1).astype(np.uint16)
    told = rounds.Rounds(
        layout, white_features(layout, shares, floor=0.0), released, mixture, scale=1.0
    )
    of_the_rare_label = np.diff(told.scores, axis=1).reshape(3, 2)
    assert (sign * np.diff(of_the_rare_label, axis=1) > 0.1).all()


def test_columns_that_go_together_more_than_the_mixture_knows_do_not_lead_too_far(monkeypatch):
    # Thirty copies of one column; the mixture takes them for independent ones.
    rng, n, d = np.random.default_rng(3), 5_000, 30
    layout = Layout.of(domain_with(*(2,) * d))
    cause = rng.integers(0, 2, n)
    codes = (cause[:, None] ^ (rng.random((n, d)) < 0.05)).astype(np.uint16)
    label = (rng.random(n) < np.where(cause, 0.8, 0.2)).astype(np.uint16)
    cells = label * 2 * d + (2 * np.arange(d) + codes).T
    by_label = np.bincount(cells.ravel(), minlength=4 * d).reshape(2, 2 * d)
    released = {
        "label_shares": np.bincount(label) / n,
        "patients": np.array(n),
        "counts_by_label": by_label.astype(np.float64),
        "counts_stddev": np.array(9.0),
    }
    rows = rows_with(codes, label)

    def log_loss():
        features = white_features(layout, np.full(2 * d, 0.5), floor=0.0)
        mixture = rng.integers(0, 2, (4_000, d)).astype(np.uint16)
        told = rounds.Rounds(layout, features, released, mixture, scale=1.7 / d**0.5)
        for _ in range(2):
            loudness = told.loudness(stddev=1.0)
            noisy = draws.weighted_residuals(
                rows, features=features.scaled(loudness), constant=rounds.CONSTANT,
                log_odds=told.scores, intercepts=told.intercepts) / 2.0**34  # fmt: skip
            told.learn(noisy, loudness, stddev=1.0)
        scores = told.intercepts + sum(told.scores[2 * j + codes[:, j]] for j in range(d))
        return -np.log(softmax(scores)[np.arange(n), label]).mean()

    assert log_loss() < 0.53  # of the cause alone: 0.50
    monkeypatch.setattr(rounds, "_DISPERSIONS", (1.0,))
    assert log_loss() > 0.57
