"""DPGM, Theorem 3: "general moments accountant" for mechanisms that share their coins. It is false.

Acs et al., "Differentially private mixture of generative neural networks". Two outputs that each
say nothing can say everything together. The proof takes the loss of the second output given the
first for its loss alone, which is right only for independent coins.

DPGM needs the theorem because a norm histogram and a gradient are taken from one random batch. The
proven form is one Gaussian on that batch: both outputs together are one vector, sampled once.
"""

import math
from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm

HALF = Fraction(1, 2)


# --- the counterexample, by enumeration -----------------------------------------------------------


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


@pytest.mark.parametrize("order", [1, 2, 8, 32])
def test_true_moment_of_both_outputs_is_infinite(order):
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


# --- the proven form: one Gaussian on one batch ---------------------------------------------------

RATE, HISTOGRAM_NOISE, GRADIENT_NOISE = 0.2, 1.5, 1.0
COMBINED_NOISE = (HISTOGRAM_NOISE**-2 + GRADIENT_NOISE**-2) ** -0.5


def sampled_delta(epsilon, *, noise, rate=RATE):
    """Exact delta of one sampled Gaussian, the larger of both orders, by numerical integration."""
    x = np.linspace(-30, 31, 1_000_001)
    alone = norm.pdf(x, 0, noise)
    mixed = (1 - rate) * alone + rate * norm.pdf(x, 1, noise)
    step = x[1] - x[0]
    return max(
        np.maximum(0, one - math.exp(epsilon) * other).sum() * step
        for one, other in ((mixed, alone), (alone, mixed))
    )


def joint_delta(epsilon):
    """Exact delta of histogram and gradient from one batch: the same coin moves both."""
    x, y = np.linspace(-9, 10, 2_001), np.linspace(-7, 8, 2_001)
    alone = np.outer(norm.pdf(x, 0, HISTOGRAM_NOISE), norm.pdf(y, 0, GRADIENT_NOISE))
    moved = np.outer(norm.pdf(x, 1, HISTOGRAM_NOISE), norm.pdf(y, 1, GRADIENT_NOISE))
    mixed, cell = (1 - RATE) * alone + RATE * moved, (x[1] - x[0]) * (y[1] - y[0])
    return max(
        np.maximum(0, one - math.exp(epsilon) * other).sum() * cell
        for one, other in ((mixed, alone), (alone, mixed))
    )


@pytest.mark.parametrize("epsilon", [0.2, 0.6])
def test_one_batch_is_one_gaussian_with_the_combined_noise(epsilon):
    assert joint_delta(epsilon) == pytest.approx(
        sampled_delta(epsilon, noise=COMBINED_NOISE), abs=1e-5
    )


@pytest.mark.parametrize("epsilon", [0.2, 0.6])
def test_either_output_alone_is_not_enough(epsilon):
    together = sampled_delta(epsilon, noise=COMBINED_NOISE)
    assert together > sampled_delta(epsilon, noise=GRADIENT_NOISE) * 1.05
    assert together > sampled_delta(epsilon, noise=HISTOGRAM_NOISE) * 1.05


def test_proven_form_is_not_caught_by_running_it():
    # One batch, both outputs, the best test: never above the delta of the combined noise.
    rng, runs, epsilon = np.random.default_rng(50), 400_000, 0.6
    rates = []
    for record in (1, 0):
        in_batch = record * (rng.random(runs) < RATE)
        histogram = in_batch + rng.normal(0, HISTOGRAM_NOISE, runs)
        gradient = in_batch + rng.normal(0, GRADIENT_NOISE, runs)
        score = (histogram - 0.5) / HISTOGRAM_NOISE**2 + (gradient - 0.5) / GRADIENT_NOISE**2
        rates.append((1 - RATE + RATE * np.exp(score) > math.exp(epsilon)).mean())
    claim = sampled_delta(epsilon, noise=COMBINED_NOISE)
    measured = rates[0] - math.exp(epsilon) * rates[1]
    spread = math.sqrt((rates[0] + math.exp(2 * epsilon) * rates[1]) / runs)
    assert claim - 5 * spread < measured < claim + 5 * spread
