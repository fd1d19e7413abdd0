"""The best order of mixture for a budget, found on public data: Figure 2 of the DP-CDA paper.

A larger order mixes more detail away and needs less noise, so the utility rises and then falls. The
paper reads the best order off the private data (flaw A8); here the score has to come from public
data that resemble the private ones, and the order is a public setting of the release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCurve:
    """Utility as a function of the order of mixture.

    Parameters
    ----------
    orders
        Orders of mixture l, rising.
    scores
        Utility at each order, larger is better.
    """

    orders: tuple[int, ...]
    scores: tuple[float, ...]

    @property
    def best(self) -> int:
        """Order with the largest score; the smallest one where several are as good."""
        return self.orders[self.scores.index(max(self.scores))]


def best_order(score: Callable[[int], float], orders: Sequence[int]) -> OrderCurve:
    """Score each order once.

    Parameters
    ----------
    score
        Utility on public data of records released with that order, at the budget in question; for
        example the mean accuracy of a classifier over some seeds.
    orders
        Orders to try, each at least 1.

    Returns
    -------
    OrderCurve
        In rising order, without repetitions; `OrderCurve.best` is the answer.

    Raises
    ------
    ValueError
        If there are no orders, one is below 1, or a score is not a finite number.
    """
    if not orders or min(orders) < 1:
        raise ValueError(f"expected one or more orders from 1, found {list(orders)}")
    rising = tuple(sorted(set(orders)))
    scores = tuple(float(score(order)) for order in rising)
    if not all(map(math.isfinite, scores)):
        raise ValueError(f"expected a finite score of each order, found {list(scores)}")
    return OrderCurve(orders=rising, scores=scores)
