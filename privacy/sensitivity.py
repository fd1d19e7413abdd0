"""Sensitivities of sums on an integer grid, with proofs, for add or remove of one patient.

A patient has rows ``r`` with public vectors ``v_r`` and weights ``w_r >= 0`` that sum to at most
one (``w_r = 1 / m`` for a patient with ``m`` rows). The vectors are put on an integer grid by
truncation toward zero and added up in 64-bit integers, which is exact in any order.
"""

import math

from privacy.errors import require

SUM_GRID_BITS = 24
"""A weighted sum has ``2**SUM_GRID_BITS`` grid points per unit."""

FLOAT_MARGIN = 2.0**-40
"""Relative margin of every bound below, for vectors and weights computed in double precision.

A norm that is 1 in real arithmetic may be ``1 + n 2**-53`` in double precision, and three weights
of one third may add up to a little more than one. The margin covers more than 4,000 such
roundings and costs one part in 1e12 of noise.
"""


def weighted_sum_l2_sensitivity(*, bound: float, scale: float) -> float:
    r"""Sensitivity of ``sum_r trunc(w_r v_r scale)`` with ``||v_r|| <= bound``, in grid units.

    *Proof.* A patient adds ``sum_r trunc(w_r v_r scale)``. Truncation shrinks magnitudes, so each
    term has norm at most ``w_r bound scale``; by the triangle inequality the norm of the sum is
    at most ``scale bound sum_r w_r <= scale bound``, wherever in the array the rows fall: to cells,
    labels or folds that depend on the row and on public values alone. []

    The bound and the scale are above 0 (ConfigurationError). The result, in grid units with
    `FLOAT_MARGIN`, is attained by a patient with one row.

    Privacy
    -------
    Adjacency: add or remove one patient. For replacement the accountant doubles ``mu``.
    """
    require(math.isfinite(bound) and bound > 0, "bound to be finite and above 0", bound)
    require(math.isfinite(scale) and scale > 0, "scale to be finite and above 0", scale)
    return scale * bound * (1 + FLOAT_MARGIN)
