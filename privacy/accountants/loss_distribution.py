r"""Privacy loss distributions (PLD) of one series of Poisson samples: the tight curve of its delta.

The engine is dp-accounting: the loss of a dominating pair is put on a grid and composed by FFT
(Koskela, Jalko and Honkela 2020; Doroshenko et al., "Connect the dots", PETS 2022, whose estimates
are pessimistic whatever the grid is). For a Poisson sample the pairs for addition and for removal
are composed separately and the worse total counts (Zhu, Dong and Wang, "Optimal accounting of
differential privacy via characteristic function", AISTATS 2022, Theorem 11 and Proposition 30).

**One series only.** Distributions do not add up when later parameters depend on earlier outputs, so
no ledger books one. What a ledger books is read off the curve of one series, whose parameters are
fixed in advance, by `privacy.accountants.approximate_gaussian`.

**Grid.** A step suits the losses of one draw and of all together, and is coarser where a million
points would not hold them: ``mu`` is raised by about a part in 1,000. It changes the accuracy,
never the side.

**Margin for the FFT.** The engine's pessimism ends at the rounding of its transform, some 1e-15 of
probability: without a margin it puts epsilon of a known Gaussian 1e-4 too low at delta = 1e-12.
Each delta is raised by `DELTA_MARGIN`, and deltas below `MIN_PLD_DELTA` are not asked for.
"""

import math

import numpy as np

from privacy.arrays import Floats

MIN_PLD_DELTA = 1e-10
"""Least delta that is answered; below it the rounding of the engine would be felt."""

DELTA_MARGIN = 1e-12
"""Added to every delta: a thousand times the rounding of the engine."""

MAX_STEPS = 10**6
"""Largest number of sampled steps of one patient."""

_GRID_POINTS = 1e6
_TAIL_STDDEVS = 12.0
_LARGEST_MEAN_LOSS = 1e4
"""In nats; beyond it the engine overflows."""

_LARGEST_EPSILON = 500.0
"""In nats; the engine computes many deltas at once by ``exp(epsilon)``."""


def series_curve(
    *, sampling_probability: float, noise_multiplier: float, steps: int, floor: float, points: int
) -> tuple[Floats, Floats] | None:
    """Return bounds of delta of a series of Poisson samples, for add or remove, at many epsilons.

    Probability and multiplier are those of each draw, in the ranges of
    `privacy.events.PoissonSampledGaussianEvent`; there is at least one step. The curve goes down to
    a delta of `floor`, at least `MIN_PLD_DELTA`. The epsilons (points,) begin at 0 and are evenly
    spaced; the deltas (points,) are bounds in both directions, with the margin for rounding, the
    last one at most `floor`. Delta decreases, so a bound holds at every larger epsilon too. None
    stands for a series that the engine does not carry: more than `MAX_STEPS` draws, or losses so
    large that they overflow or that it puts them at infinity.
    """
    from dp_accounting.pld import privacy_loss_distribution

    noise = float(noise_multiplier)
    of_one = _mean_loss(float(sampling_probability), noise)
    if steps > MAX_STEPS or steps * of_one > _LARGEST_MEAN_LOSS:
        return None
    distribution = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise,
        pessimistic_estimate=True,
        value_discretization_interval=_grid_step(noise, steps=steps, mean_loss=of_one),
        sampling_prob=float(sampling_probability),
    ).self_compose(steps)
    last = float(distribution.get_epsilon_for_delta(floor - 4 * DELTA_MARGIN))
    if last > _LARGEST_EPSILON:
        return None
    epsilon = np.linspace(0.0, last, points)
    found = np.asarray(distribution.get_delta_for_epsilon(epsilon), dtype=np.float64)
    # The engine adds up to a million terms; the rest is the margin for its transform.
    delta = np.maximum(found, 0.0) * (1 + 1e-9) + DELTA_MARGIN
    return (epsilon, delta) if delta[-1] <= floor else None


def _mean_loss(probability: float, noise: float) -> float:
    """Bound of the mean loss of a draw, and for small losses of half its variance."""
    # The divergence of order 2 bounds the mean.
    amplified = math.log1p(probability**2 * math.expm1(min(noise**-2, 700.0)))
    return min(0.5 / noise**2, amplified)


def _grid_step(noise: float, *, steps: int, mean_loss: float) -> float:
    """Return the step of the grid of a series, whose draws have this bound of their mean loss.

    The engine keeps the mean of ``exp(-loss)`` when it moves a loss to the grid, so it adds a
    variance of at most ``step**2 / 4`` per draw: here a part in 200 at most.
    """
    spread = math.sqrt(2 * (steps * mean_loss))
    largest = 0.5 / noise**2 + _TAIL_STDDEVS / noise
    reach = 2 * (steps * mean_loss + _TAIL_STDDEVS * spread + largest)
    wanted = min(spread / 100, math.sqrt(2 * mean_loss) / 10)
    return max(wanted, 1e-7, reach / _GRID_POINTS)
