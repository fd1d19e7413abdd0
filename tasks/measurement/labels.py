"""Labels of noisy mixtures: each label as often as all mixtures together say."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SWEEPS = 50
"""Most rounds over the labels; a few are enough where the scores are not tied."""


def matched_labels(scores: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Return the label with the largest score plus an offset of the label.

    The plain argmax of mixtures of many records is the most frequent label, always: a table with
    one death in ten records would be released without any. The offsets are those with which every
    label is chosen as often as its share of the sum of all scores. They are found label by label
    (coordinate ascent on the dual of the transport problem between rows and labels).

    Scores, of shape (m, C), are the noisy number, or share, of the records of each label in each
    mixture.

    Privacy
    -------
    Post-processing of released scores.
    """
    n_rows, n_labels = scores.shape
    totals = np.maximum(scores.sum(axis=0), 0.0)
    if not totals.any():
        totals = np.ones(n_labels)
    wanted = _whole_numbers(totals / totals.sum() * n_rows, n_rows)
    offsets = np.zeros(n_labels)
    for _ in range(_SWEEPS):
        chosen = (scores + offsets).argmax(axis=1)
        if np.array_equal(np.bincount(chosen, minlength=n_labels), wanted):
            break
        for label in range(n_labels):
            shifted = scores + offsets
            shifted[:, label] = -np.inf
            # The offset that a row asks for before it takes this label; the cheapest rows get it.
            price = np.sort(shifted.max(axis=1) - scores[:, label])
            cheapest = wanted[label]
            below = price[cheapest - 1] if cheapest > 0 else price[0] - 2.0
            above = price[cheapest] if cheapest < n_rows else price[-1] + 2.0
            offsets[label] = (below + above) / 2.0
    labels: NDArray[np.uint16] = (scores + offsets).argmax(axis=1).astype(np.uint16)
    return labels


def _whole_numbers(parts: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Round parts of a total so that they add up to it: the largest remainders go up."""
    floors = np.floor(parts).astype(np.int64)
    order = np.argsort(-(parts - floors), kind="stable")
    floors[order[: total - floors.sum()]] += 1
    return floors
