"""The teacher: softmax regression on whitened features, taught by noisy sums of residuals.

Post-processing of released values.

Source: noisy gradient descent with every record in every step (Bassily, Smith and Thakurta 2014),
residuals shortened in place of gradients, and the later half of the iterates averaged.
"""

import numpy as np

from privacy.arrays import Floats


class Teacher:
    """Weights (k, C) of a softmax regression, and the mean of those of the later rounds."""

    def __init__(self, n_features: int, n_labels: int, *, rounds: int) -> None:
        self.weights = np.zeros((n_features, n_labels))
        self._sum = np.zeros_like(self.weights)
        self._from, self._taken, self._kept = rounds // 2, 0, 0

    def learn(self, noisy: Floats, *, step: float) -> None:
        """Take a released sum of residuals (k, C), drawn at the weights as they are, in."""
        self.weights = self.weights - step * noisy
        if self._taken >= self._from:
            self._sum += self.weights
            self._kept += 1
        self._taken += 1

    @property
    def averaged(self) -> Floats:
        """Mean of the weights of the later half of the rounds."""
        return self._sum / max(self._kept, 1)
