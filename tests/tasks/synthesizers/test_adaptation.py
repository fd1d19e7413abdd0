import numpy as np
import pytest

from tasks.synthesizers.clustmix.earlier import adaptation
from tasks.synthesizers.clustmix.earlier.adaptation import (
    AdaptedSupport,
    Candidate,
    Moments,
    adapt,
    centre_moments,
    choose,
    support_starts,
)


def moments_of(rows, feature_map, *, prior):
    phi, one_hot = feature_map.phi(rows.codes), np.eye(2)[rows.label]
    return centre_moments(
        phi.T @ phi, phi.T @ one_hot, prior=prior, size=float(len(rows)), ridge=0.0
    )


def test_loss_is_the_squared_error_of_the_rows_less_its_constant(small):
    rows, feature_map = small.rows(small.patients(100, 0)), small.feature_map(0)
    prior = np.bincount(rows.label) / len(rows)
    moments = moments_of(rows, feature_map, prior=prior)
    phi, target = feature_map.phi(rows.codes), np.eye(2)[rows.label] - prior
    for seed in range(3):
        weights = np.random.default_rng(seed).normal(size=(feature_map.n_features, 2))
        direct = ((target - phi @ weights) ** 2).sum() / len(rows)
        constant = (target**2).sum() / len(rows)
        assert moments.loss(weights) + constant == pytest.approx(direct)


def test_a_noisy_indefinite_moment_becomes_positive_definite():
    second = np.diag([5.0, -3.0, 0.0])
    moments = centre_moments(
        second, np.ones((3, 2)), prior=np.array([0.75, 0.25]), size=10.0, ridge=2.0
    )
    np.testing.assert_allclose(moments.second, np.diag([0.7, 0.2, 0.2]), atol=1e-12)
    np.testing.assert_allclose(moments.cross, np.tile([-0.05, 0.05], (3, 1)))


def test_the_candidate_with_the_lowest_validation_loss_is_chosen():
    moments = Moments(second=np.eye(1), cross=np.array([[1.0]]))
    supports = [
        AdaptedSupport(points=np.zeros((1, 1)), labels=np.zeros((1, 1)), weights=np.full((1, 1), w))
        for w in (0.0, 0.9, 3.0)
    ]
    assert choose(supports, moments) is supports[1]


def test_support_starts_at_released_centres_never_at_unused_cells(small):
    feature_map, domain = small.feature_map(0), small.domain
    rng = np.random.default_rng(0)
    marginals = np.concatenate([rng.dirichlet(np.ones(n), (2, 3)) for n in domain.n_codes], axis=-1)
    sizes = np.array([[0.0, 500.0, 0.0], [0.0, 0.0, 100.0]])
    prior = np.array([5 / 6, 1 / 6])
    arguments = {"prior": prior, "support_per_label": 400, "public_seed": 1}
    points, labels = support_starts(marginals, sizes, feature_map, **arguments)
    assert points.shape == (800, 9)
    np.testing.assert_allclose(labels[0], [1 / 6, -1 / 6])
    np.testing.assert_allclose(labels[-1], [-5 / 6, 5 / 6])
    centres = feature_map.raw_of_marginals(marginals)
    # A jitter of 0.5 / 3 averaged over 400 points: five standard deviations.
    tolerance = 5 * 0.5 / 3 / 20
    np.testing.assert_allclose(points[:400].mean(axis=0), centres[0, 1], atol=tolerance)
    np.testing.assert_allclose(points[400:].mean(axis=0), centres[1, 2], atol=tolerance)
    again, _ = support_starts(marginals, sizes, feature_map, **arguments)
    np.testing.assert_array_equal(points, again)


@pytest.mark.parametrize("compiled_from", [0.0, adaptation.COMPILED_FROM])
def test_kip_lowers_the_loss_and_its_weights_are_those_of_the_support(
    small, compiled_from, monkeypatch
):
    monkeypatch.setattr(adaptation, "COMPILED_FROM", compiled_from)
    rng = np.random.default_rng(0)
    codes = np.column_stack([rng.integers(0, n, 500) for n in small.domain.n_codes])
    label = codes[:, 1]
    rows = small.rows([(1, [(c, int(y))]) for c, y in zip(codes, label, strict=True)])
    feature_map, prior = small.feature_map(0), np.array([0.5, 0.5])
    moments = moments_of(rows, feature_map, prior=prior)
    start = rng.normal(0, 0.3, (4, feature_map.n_raw))
    candidate = Candidate(
        feature_map=feature_map,
        start=start,
        start_labels=np.repeat(np.eye(2) - prior, 2, axis=0),
        training=moments,
        alpha=0.0,
        ridge=0.01,
        steps=60,
        box=1.0,
    )
    adapted = adapt(candidate)
    features = feature_map.hidden(adapted.points)
    gram = features @ features.T + 0.01 * np.eye(4)
    np.testing.assert_allclose(
        adapted.weights, features.T @ np.linalg.solve(gram, adapted.labels), atol=1e-10
    )
    assert np.abs(adapted.points).max() <= 1.0
    start_features = feature_map.hidden(start)
    start_gram = start_features @ start_features.T + 0.01 * np.eye(4)
    before = start_features.T @ np.linalg.solve(start_gram, candidate.start_labels)
    assert moments.loss(adapted.weights) < moments.loss(before)
    # Explains most of the variance one half of the label vectors.
    assert moments.loss(adapted.weights) < -0.25
