"""Train on synthetic records, test on real ones (TSTR; Esteban, Hyland and Raetsch 2017).

The figures are computed from real records without noise: they belong into a benchmark on public
data and never into a release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import accuracy_score, roc_auc_score


class Classifier(Protocol):
    """What is trained: an estimator with the interface of scikit-learn."""

    classes_: NDArray[Any]

    def fit(self, features: Any, labels: Any) -> Self:
        """Learn from rows and their label codes."""

    def predict_proba(self, features: Any) -> Any:
        """Return one probability for each entry of ``classes_``, by row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utility:
    """How well a model ranks and names real records.

    Parameters
    ----------
    auc
        Area under the ROC curve, in [0, 1]; for more than two label levels the mean over all
        pairs of levels (one against one; Hand and Till 2001, Eq. 7).
    accuracy
        Share of records whose most probable level is the true one, in [0, 1].
    """

    auc: float
    accuracy: float


def train_on_synthetic_test_on_real(
    classifier: Classifier,
    synthetic_features: ArrayLike,
    synthetic_labels: ArrayLike,
    real_features: ArrayLike,
    real_labels: ArrayLike,
    *,
    n_labels: int,
) -> Utility:
    """Fit a classifier to synthetic rows and score it on real ones.

    Parameters
    ----------
    classifier
        An estimator that is not fitted yet.
    synthetic_features : array of shape (n, d)
    synthetic_labels : array of shape (n,), values in [0, n_labels)
    real_features : array of shape (m, d)
    real_labels : array of shape (m,), values in [0, n_labels)
    n_labels
        Number C of declared label levels.

    Returns
    -------
    Utility

    Raises
    ------
    ValueError
        If the real rows do not hold every label level, or the arrays do not match.

    Privacy
    -------
    Not private: a function of the real rows without noise.
    """
    classifier.fit(synthetic_features, synthetic_labels)
    known = np.asarray(classifier.predict_proba(real_features), dtype=np.float64)
    # A level that the synthetic rows lack is a level that the model gives no probability.
    probabilities = np.zeros((len(known), n_labels))
    probabilities[:, np.asarray(classifier.classes_, dtype=np.intp)] = known
    return score(probabilities, real_labels)


def score(probabilities: ArrayLike, labels: ArrayLike) -> Utility:
    """Score predicted probabilities.

    Parameters
    ----------
    probabilities : array of shape (m, C)
        Rows that sum to one.
    labels : array of shape (m,), values in [0, C)
        True label codes; every level occurs.

    Returns
    -------
    Utility

    Raises
    ------
    ValueError
        If a level does not occur, or the shapes do not match.
    """
    given = np.asarray(probabilities, dtype=np.float64)
    truth = np.asarray(labels, dtype=np.int64)
    if given.ndim != 2 or given.shape[1] < 2 or truth.shape != given.shape[:1]:
        raise ValueError("expected probabilities of shape (m, C) and labels of shape (m,)")
    n_labels = given.shape[1]
    if not np.array_equal(np.unique(truth), np.arange(n_labels)):
        raise ValueError("expected every label level among the real rows; take more of them")
    if n_labels == 2:
        auc = roc_auc_score(truth, given[:, 1])
    else:
        auc = roc_auc_score(truth, given, multi_class="ovo", average="macro")
    return Utility(auc=float(auc), accuracy=float(accuracy_score(truth, given.argmax(axis=1))))
