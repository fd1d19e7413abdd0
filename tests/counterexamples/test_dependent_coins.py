"""DPGM, Theorem 3: "general moments accountant" for mechanisms that share their coins. It is false.

Acs et al., "Differentially private mixture of generative neural networks". Two outputs that each
say nothing can say everything together. The proof takes the loss of the second output given the
first for its loss alone, which is right only for independent coins.

DPGM as printed needs the theorem because a norm histogram and a gradient are taken from one random
batch. In the proven form both together are one vector of one Gaussian, and every step reads all.
"""

import math
from collections import Counter
from fractions import Fraction
from itertools import product

import pytest

HALF = Fraction(1, 2)


def masked(bit, coin):
    """A_1: the private bit, under the coin."""
    return bit ^ coin


def the_coin(bit, coin):
    """A_2: the coin itself; it does not look at the bit."""
    return coin


def law(*mechanisms, bit):
    """Exact law of the outputs of all mechanisms on one fair coin."""
    found = Counter()
    for coin in (0, 1):
        found[tuple(mechanism(bit, coin) for mechanism in mechanisms)] += HALF
    return found


def log_moment(first, second, order):
    """``alpha(lambda)`` of the paper for one ordered pair of laws, by summing over outputs."""
    total = 0.0
    for output, probability in first.items():
        if not second[output]:
            return math.inf
        total += float(probability) * float(probability / second[output]) ** order
    return math.log(total)


def alpha(*mechanisms, order):
    laws = [law(*mechanisms, bit=bit) for bit in (0, 1)]
    return max(log_moment(*laws, order), log_moment(*laws[::-1], order))


def delta_at(epsilon, *mechanisms):
    """Exact: the largest ``P(S) - e^epsilon Q(S)`` over all sets of outputs."""
    first, second = (law(*mechanisms, bit=bit) for bit in (0, 1))
    return sum(
        max(0.0, float(first[output]) - math.exp(epsilon) * float(second[output]))
        for output in first | second
    )


@pytest.mark.parametrize("order", [1, 2, 8, 32])
@pytest.mark.parametrize("split", [0.1, 0.5, 0.9])
def test_theorem_3_claims_no_loss_at_all(order, split):
    claim = sum(
        share * alpha(mechanism, order=order / share)
        for share, mechanism in ((split, masked), (1 - split, the_coin))
    )
    assert claim == 0
    # The true moment of both outputs.
    assert alpha(masked, the_coin, order=order) == math.inf


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 10.0, 100.0])
def test_both_outputs_reveal_the_bit(epsilon):
    assert delta_at(epsilon, masked) == 0
    assert delta_at(epsilon, the_coin) == 0
    assert delta_at(epsilon, masked, the_coin) == 1
    for bit, coin in product((0, 1), repeat=2):
        assert masked(bit, coin) ^ the_coin(bit, coin) == bit


def test_with_coins_of_their_own_they_reveal_nothing():
    # Theorem 1 of the paper, which is right: the second mechanism tosses another coin.
    laws = [
        Counter(
            {
                (first, second): law(masked, bit=bit)[(first,)] * HALF
                for first, second in product((0, 1), repeat=2)
            }
        )
        for bit in (0, 1)
    ]
    assert laws[0] == laws[1]
