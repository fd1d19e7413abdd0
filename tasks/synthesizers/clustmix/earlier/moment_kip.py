"""KIP on released moments, in numpy: for the small problems that come of a table.

The loss is `tasks.synthesizers.clustmix.earlier.kip.moment_loss`, its gradient is written out here.
A table has a few hundred features and a few dozen inducing points, and 100 steps take less time
than loading and compiling anything. Tests hold it against the compiled form, which remains for
large problems and for GPUs.

Source: 3A paper, Eq. 6 and Algorithm 1. Nguyen, Chen and Lee (2020).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from tasks.measurement.descent import Descent
from tasks.measurement.random_ntk import RandomNtkFeatures
from tasks.synthesizers.clustmix.earlier.support_set import OptimisedSupport, SupportSet

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MomentLoss:
    r"""Eq. 6 with the rows entering only through two released moments.

    With ``F`` the features of the points, ``G = F F^T + ridge I`` and ``W = F^T G^{-1} Y``,

    .. math:: \alpha \frac{\|X - C\|^2}{\|C\|^2}
       + \frac{1-\alpha}{2} [ \mathrm{tr}(W^T A W) - 2\, \mathrm{tr}(W^T B) ].

    The feature map is public, from d to m; points are held to the start C (s, d). A (m, m) is
    symmetric and positive semi-definite, B is (m, C). alpha in [0, 1] is the weight of staying at
    the start; the ridge, above 0, is absolute.

    Privacy
    -------
    Post-processing of (A, B): private if and only if these were released by a private mechanism.
    """

    features: RandomNtkFeatures
    start: Array
    second: Array
    cross: Array
    alpha: float
    ridge: float

    def value_and_gradient(self, support: SupportSet) -> tuple[float, SupportSet]:
        """Return the loss of a support set and its gradient by points and labels."""
        points, labels = support
        mapped = self.features(points)
        gram = mapped @ mapped.T
        gram[np.diag_indices_from(gram)] += self.ridge
        factor = cho_factor(gram, lower=True, check_finite=False)
        dual = cho_solve(factor, labels, check_finite=False)
        weights = mapped.T @ dual
        pulled = self.second @ weights
        fit = float(np.sum(weights * pulled) - 2.0 * np.sum(weights * self.cross))
        shift, reference = points - self.start, float(np.sum(self.start**2))
        value = self.alpha * float(np.sum(shift**2)) / reference + 0.5 * (1.0 - self.alpha) * fit

        by_weights = (1.0 - self.alpha) * (pulled - self.cross)
        by_labels = cho_solve(factor, mapped @ by_weights, check_finite=False)
        by_mapped = dual @ (by_weights - mapped.T @ by_labels).T - by_labels @ weights.T
        by_points = self.features.pullback(points, by_mapped)
        by_points += 2.0 * self.alpha / reference * shift
        return value, SupportSet(by_points, by_labels)


def descend(
    loss: MomentLoss, start: SupportSet, *, steps: int, learning_rate: float, box: float
) -> OptimisedSupport:
    """Minimise the loss over points and labels by Adam; points stay in ``[-box, box]``.

    At least one step is taken, of a size above 0 in units of the points. Returned is the best
    support set met, the start included. A step to a loss that is not finite ends the run, so the
    result is always usable.
    """
    if steps < 1:
        raise ValueError(f"expected 1 or more steps, found {steps}")
    if not (learning_rate > 0.0 and box > 0.0):
        raise ValueError(f"expected learning_rate and box above 0, found {learning_rate}, {box}")
    support = SupportSet(np.clip(start.points, -box, box), np.array(start.labels, dtype=np.float64))
    points, labels = (Descent.start("adam", part, learning_rate=learning_rate) for part in support)
    value, gradient = loss.value_and_gradient(support)
    best, best_value, start_value = support, value, value
    while points.n_steps < steps and np.isfinite(value):
        points, labels = points.step(gradient.points), labels.step(gradient.labels)
        if not (np.isfinite(points.parameters).all() and np.isfinite(labels.parameters).all()):
            break  # no factorisation is made of what is not finite
        points = replace(points, parameters=np.clip(points.parameters, -box, box))
        support = SupportSet(points.parameters, labels.parameters)
        value, gradient = loss.value_and_gradient(support)
        if value < best_value:
            best, best_value = support, value
    return OptimisedSupport(
        support=best, start_loss=start_value, loss=best_value, steps_taken=points.n_steps
    )
