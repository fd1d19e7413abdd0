"""Eq. 6 of the 3A paper on raw rows: how well inducing points predict the table they stand for.

Flaw C5: it reads the rows at every step. `tasks.papers.clustmix.kip` has the proven
form, in which they enter through two released moments, and the descent that both forms take.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats
from tasks.papers.clustmix.kip import Array, ridge_solve
from tasks.papers.clustmix.support_set import SupportSet


def centred_one_hot(labels: NDArray[np.integer[Any]], n_classes: int) -> Floats:
    """Label vectors ``e_c - 1/C`` of shape (n, C), each of norm ``sqrt(1 - 1/C)``."""
    return np.eye(n_classes)[np.asarray(labels, dtype=np.int64)] - 1.0 / n_classes


def raw_loss(
    support: SupportSet,
    start_points: Array,
    targets: Array,
    target_labels: Array,
    support_mask: Array,
    target_mask: Array,
    *,
    kernel: Callable[[Any, Any], Array],
    alpha: float,
    ridge: float,
) -> Array:
    r"""Weighted loss of Eq. 6 on raw target rows.

    .. math:: \alpha \frac{\|X - C\|^2}{\|C\|^2}
       + (1-\alpha) \tfrac12 \| Y_t - K_{ts} (K_{ss} + \lambda I)^{-1} Y_s \|^2

    The support are points X (s, d) and labels Y_s (s, C), held to centroids C (s, d); targets are
    raw rows (t, d) with label vectors (t, C). Masks (s,) and (t,) are 1 for a real entry, 0 for
    padding that must not count: slices of different size share one compiled program. The kernel of
    (a, d) and (b, d) is (a, b). The ridge lambda, above 0, is absolute; alpha in [0, 1] is the
    weight of staying at the centroids. (The paper's text has its meaning reversed; Eq. 6 is
    followed.)

    Privacy
    -------
    Reads raw rows at every step: neither the loss nor the optimum is differentially private.
    """
    points, labels = support
    self_kernel = kernel(points, points) * support_mask[:, None] * support_mask[None, :]
    self_kernel = self_kernel + jnp.diag(1.0 - support_mask)
    cross_kernel = kernel(targets, points) * support_mask[None, :]
    solved = ridge_solve(self_kernel, labels * support_mask[:, None], ridge)
    residual = (target_labels - cross_kernel @ solved) * target_mask[:, None]
    shift = (points - start_points) * support_mask[:, None]
    fidelity = jnp.sum(shift**2) / jnp.sum((start_points * support_mask[:, None]) ** 2)
    return alpha * fidelity + (1.0 - alpha) * 0.5 * jnp.sum(residual**2)
