import math

import pytest

from benchmarks.best_order import OrderCurve, best_order


def test_finds_the_peak_and_scores_every_order_once():
    asked = []

    def score(order):
        asked.append(order)
        return -abs(math.log2(order) - 2.0)

    curve = best_order(score, [64, 1, 4, 16, 2, 8, 4])
    assert asked == [1, 2, 4, 8, 16, 64]
    assert curve.best == 4
    assert curve.scores[0] == -2.0


def test_takes_the_smallest_of_equally_good_orders():
    assert OrderCurve(orders=(1, 2, 4), scores=(0.1, 0.5, 0.5)).best == 2


@pytest.mark.parametrize("orders", [[], [0, 1]])
def test_refuses_orders_below_one(orders):
    with pytest.raises(ValueError, match="expected one or more orders from 1"):
        best_order(lambda order: 0.0, orders)


def test_refuses_a_score_that_is_no_number():
    with pytest.raises(ValueError, match="expected a finite score of each order"):
        best_order(lambda order: math.nan, [1, 2])
