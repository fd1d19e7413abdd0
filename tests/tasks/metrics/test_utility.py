"""Utility scores against pair counting and against cases worked out by hand."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tasks.metrics.utility import score, train_on_synthetic_test_on_real


def pair_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    wins = [
        1.0 if p > q else 0.5 if p == q else 0.0
        for p in scores[positive]
        for q in scores[~positive]
    ]
    return float(np.mean(wins))


def probabilities_of(rng: np.random.Generator, n: int, n_labels: int) -> np.ndarray:
    # Rounded, so that there are ties.
    raw = np.round(rng.random((n, n_labels)), 1) + 0.1
    return raw / raw.sum(axis=1, keepdims=True)


def test_two_levels_equal_the_share_of_ordered_pairs() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60)
    given = probabilities_of(rng, 60, 2)
    found = score(given, labels)
    assert found.auc == pytest.approx(pair_auc(given[:, 1], labels == 1))
    assert found.accuracy == np.mean(given.argmax(axis=1) == labels)


def test_more_levels_are_the_mean_over_pairs_of_levels() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 80)
    given = probabilities_of(rng, 80, 3)
    pairs = [
        pair_auc(given[np.isin(labels, (a, b)), a], labels[np.isin(labels, (a, b))] == a)
        for a in range(3)
        for b in range(3)
        if a != b
    ]
    assert score(given, labels).auc == pytest.approx(np.mean(pairs))


def test_model_is_trained_on_the_first_table_alone() -> None:
    features = np.linspace(-1.0, 1.0, 40)[:, None]
    labels = (features[:, 0] > 0).astype(int)
    right, wrong = (
        train_on_synthetic_test_on_real(
            LogisticRegression(), features, given, features, labels, n_labels=2
        )
        for given in (labels, 1 - labels)
    )
    assert (right.auc, right.accuracy) == (1.0, 1.0)
    assert (wrong.auc, wrong.accuracy) == (0.0, 0.0)


def test_level_that_the_synthetic_rows_lack_gets_no_probability() -> None:
    features = np.array([[0.0], [0.1], [5.0], [5.1], [9.0], [9.1]])
    labels = np.array([0, 0, 1, 1, 2, 2])
    seen = labels != 1
    found = train_on_synthetic_test_on_real(
        LogisticRegression(), features[seen], labels[seen], features, labels, n_labels=3
    )
    assert found.accuracy == pytest.approx(4 / 6)


@pytest.mark.parametrize(
    ("given", "labels", "text"),
    [
        (np.full((4, 2), 0.5), [0, 0, 0, 0], "expected every label level among the real rows"),
        (np.full((4, 2), 0.5), [0, 1, 0], "expected probabilities of shape"),
        (np.full(4, 0.5), [0, 1, 0, 1], "expected probabilities of shape"),
    ],
)
def test_refuses(given: np.ndarray, labels: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        score(given, labels)
