"""Random features of a neural tangent kernel: public, explicit, of norm at most one.

Their second moments can be released, which the kernel's own matrix on private rows cannot. Kept
apart from the exact kernels so that a worker that only adds up moments needs numpy alone.

References
----------
Jacot, Gabriel and Hongler (2018), "Neural tangent kernel: convergence and generalization in neural
networks". Rahimi and Recht (2007), "Random features for large-scale kernel machines".
"""

import importlib
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from privacy.arrays import Floats

# Features are shrunk by this factor after normalisation, so that the norm is at most one in exact
# arithmetic and not only up to the rounding of a sum of up to 1e5 squares.
_SHRINK = 1.0 - 2.0**-36


@dataclass(frozen=True, slots=True, eq=False)
class RandomNtkFeatures:
    """Finite random features of a tangent kernel, with norm at most one for every record.

    The network has one hidden ReLU layer in parallel with a linear skip. With c the cosine of x and
    y and kappa the tangent kernel of the hidden layer on unit vectors, kappa(1) = 1, the kernel is
    ``skip_weight * c + (1 - skip_weight) * kappa(c)``.

    A record x is first scaled to unit norm, u = x / |x|. With h = n_random / 2, standard normal
    rows w_i and g_i,

        psi(x) = [relu(w_i . u)]_i  and  [1(w_i . u > 0) (g_i . u)]_i,   divided by its own norm,
        phi(x) = [sqrt(skip_weight) u, sqrt(1 - skip_weight) psi(x)].

    The first block estimates E[relu relu], the gradient with respect to the last layer; the second
    estimates c E[relu' relu'], the gradient with respect to the first layer, by projecting it on
    one random direction per hidden unit. Both are unbiased before the division, so
    ``phi(x) . phi(y)`` tends to the kernel as ``n_random`` grows, with an error of order
    ``n_random ** -1/2``. The record x = 0 is mapped to 0 and every other record to norm one.

    Build it with `draw`. Instances compare by identity, which lets jax cache what it compiled.

    Privacy
    -------
    The map is public: gates and directions come from a seed that is part of the release. phi(x)
    depends on the record x alone and ``|phi(x)| <= 1`` in exact arithmetic, so the second moment
    ``sum w phi phi^T`` and the cross moment ``sum w phi y^T`` have bounded sensitivity.

    Gates and directions have shape (n_random / 2, d) and come from the public seed.
    """

    gates: Floats
    directions: Floats
    skip_weight: float
    public_seed: int

    @classmethod
    def draw(cls, *, n_inputs: int, n_random: int, skip_weight: float, public_seed: int) -> Self:
        """Draw the public gates and directions of d + n_random features for d inputs.

        The number of random features is even, at least 2; the skip weight is the share of the
        linear branch, in [0, 1]. The seed is published with the release and must have nothing to do
        with the noise of a mechanism.
        """
        if n_inputs < 1:
            raise ValueError(f"expected n_inputs of 1 or more, found {n_inputs}")
        if n_random < 2 or n_random % 2:
            raise ValueError(f"expected an even n_random of 2 or more, found {n_random}")
        if not 0.0 <= skip_weight <= 1.0:
            raise ValueError(f"expected a skip_weight in [0, 1], found {skip_weight}")
        rng = np.random.default_rng(public_seed)
        gates = rng.standard_normal((n_random // 2, n_inputs))
        directions = rng.standard_normal((n_random // 2, n_inputs))
        gates.setflags(write=False)
        directions.setflags(write=False)
        return cls(gates, directions, skip_weight, public_seed)

    @property
    def n_inputs(self) -> int:
        """Number d of input coordinates."""
        return int(self.gates.shape[1])

    @property
    def n_features(self) -> int:
        """Number of features, ``n_inputs + n_random``."""
        return self.n_inputs + 2 * len(self.gates)

    def __call__(self, x: Any) -> Any:
        """Features of shape (n, n_features) of records x of shape (n, d).

        A jax array gives a jax array (differentiable in x); anything else gives float64 numpy.
        """
        xp = _array_module(x)
        unit = _unit_rows(np.asarray(x, dtype=np.float64) if xp is np else x, xp)
        return self.from_products(unit, unit @ self.gates.T, unit @ self.directions.T)

    def from_products(self, x: Any, drive: Any, directed: Any) -> Any:
        """Features of records whose products with the gates and the directions are at hand.

        The products of x (n, d) are ``x @ gates.T`` and ``x @ directions.T``; its norm does not
        matter. The result is of shape (n, n_features).
        """
        xp = _array_module(x)
        unit = _unit_rows(x, xp)
        gated = xp.where(drive > 0.0, directed, 0.0)
        hidden = _unit_rows(xp.concatenate([xp.maximum(drive, 0.0), gated], axis=1), xp)
        return _SHRINK * xp.concatenate(
            [np.sqrt(self.skip_weight) * unit, np.sqrt(1.0 - self.skip_weight) * hidden], axis=1
        )

    def pullback(self, x: Floats, slope: Floats) -> Floats:
        """Gradient (n, d) by the records of a function with gradient `slope` by their features."""
        unit = _unit_rows(x, np)
        drive, directed = unit @ self.gates.T, unit @ self.directions.T
        hidden = np.concatenate([np.maximum(drive, 0.0), np.where(drive > 0.0, directed, 0.0)], 1)
        skip, random = np.split(_SHRINK * slope, [self.n_inputs], axis=1)
        by_hidden = _unit_rows_pullback(hidden, np.sqrt(1.0 - self.skip_weight) * random)
        relu, gated = np.split(np.where(np.tile(drive > 0.0, 2), by_hidden, 0.0), 2, axis=1)
        by_unit = np.sqrt(self.skip_weight) * skip + relu @ self.gates + gated @ self.directions
        return _unit_rows_pullback(x, by_unit)


def _unit_rows_pullback(x: Floats, slope: Floats) -> Floats:
    """Return the gradient by x of a function with gradient `slope` by ``_unit_rows(x)``."""
    unit = _unit_rows(x, np)
    norm = np.sqrt(np.sum(x * x, axis=1, keepdims=True))
    across = slope - unit * np.sum(unit * slope, axis=1, keepdims=True)
    return np.where(norm > 0.0, across / np.where(norm > 0.0, norm, 1.0), 0.0)


def _unit_rows(x: Any, xp: Any) -> Any:
    """Divide every row by its norm; a row of zeros stays zero and has derivative zero."""
    squares = xp.sum(x * x, axis=1, keepdims=True)
    positive = squares > 0.0
    return xp.where(positive, x / xp.sqrt(xp.where(positive, squares, 1.0)), 0.0)


def _array_module(x: Any) -> Any:
    """Return numpy for numpy input, and jax.numpy for a jax array or tracer."""
    # Imported by name only when a jax array is at hand: then jax is loaded already.
    return importlib.import_module("jax.numpy") if type(x).__module__.startswith("jax") else np
