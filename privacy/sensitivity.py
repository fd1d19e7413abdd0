"""Sensitivities of sums on an integer grid, with proofs, for add or remove of one patient.

A patient has rows ``r`` with public vectors ``v_r`` and weights ``w_r >= 0`` that sum to at most
one (``w_r = 1 / m`` for a patient with ``m`` rows). The vectors are put on an integer grid by
truncation toward zero and added up in 64-bit integers, which is exact in any order.
"""

import math
from collections.abc import Sequence

from privacy.errors import ConfigurationError

SUM_GRID_BITS = 24
"""A weighted sum has ``2**SUM_GRID_BITS`` grid points per unit."""

ROOT_GRID_BITS = 14
"""Features whose products make a second moment have ``2**ROOT_GRID_BITS`` grid points per unit."""

FLOAT_MARGIN = 2.0**-40
"""Relative margin of every bound below, for vectors and weights computed in double precision.

A norm that is 1 in real arithmetic may be ``1 + n 2**-53`` in double precision, and three weights
of one third may add up to a little more than one. The margin covers more than 4,000 such
roundings and costs one part in 1e12 of noise.
"""


def _require(condition: bool, expected: str, found: object) -> None:
    if not condition:
        raise ConfigurationError(
            "SENSITIVITY_ARGUMENT_INVALID", f"expected {expected}, found {found!r}"
        )


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
    _require(math.isfinite(bound) and bound > 0, "bound to be finite and above 0", bound)
    _require(math.isfinite(scale) and scale > 0, "scale to be finite and above 0", scale)
    return scale * bound * (1 + FLOAT_MARGIN)


def second_moment_l2_sensitivity(*, scale: float, max_fourth_power_sum: float = 1.0) -> float:
    r"""Sensitivity of the upper triangle of a second moment, in grid units.

    The statistic is the upper triangle, diagonal included, of ``sum_r psi_r psi_r^T`` with
    ``psi_r = trunc(sqrt(w_r) phi_r scale)`` and ``||phi_r|| <= 1``.

    *Proof.* For one row, the squares of the entries with ``i <= j`` add up to
    ``(||psi||**4 + sum_i psi_i**4) / 2``: the whole matrix has ``||psi||**4``, and every entry off
    the diagonal is counted twice in it. The expression grows with each magnitude, so by truncation
    it is at most ``scale**4 w_r**2 (||phi||**4 + sum_i phi_i**4) / 2``, hence at most
    ``scale**4 w_r**2 (1 + f) / 2`` with ``f = max_fourth_power_sum``. The triangle inequality over
    the rows of a patient, with ``sum_r w_r <= 1``, gives ``scale**2 sqrt((1 + f) / 2)``. []

    Without knowledge of the features ``f = 1``, because ``sum phi_i**4 <= (sum phi_i**2)**2``.
    `block_fourth_power_sum` gives ``f`` for features made of bounded blocks.

    `max_fourth_power_sum` is a proven upper bound of ``sum_i phi_i**4`` over all records that the
    encoding allows, in [0, 1]. The result is in units of ``1 / scale**2``, with `FLOAT_MARGIN`.

    Privacy
    -------
    Adjacency: add or remove one patient. For replacement the accountant doubles ``mu``.
    """
    _require(math.isfinite(scale) and scale > 0, "scale to be finite and above 0", scale)
    _require(
        0 <= max_fourth_power_sum <= 1, "max_fourth_power_sum from 0 to 1", max_fourth_power_sum
    )
    return scale**2 * math.sqrt((1 + max_fourth_power_sum) / 2) * (1 + FLOAT_MARGIN)


def block_fourth_power_sum(block_l2_norms: Sequence[float]) -> float:
    r"""Bound of ``sum_i phi_i**4`` for features made of blocks of bounded norm.

    *Proof.* Inside a block ``k``, ``sum_i phi_i**4 <= (sum_i phi_i**2)**2 <= b_k**4``. []

    So ``d`` blocks of norm at most ``1 / sqrt(d)`` give ``1 / d``, whatever the blocks are:
    one-hot codes attain it, cosine and sine pairs and blocks such as ``(x, 1 - |x|)`` stay below
    or touch it where one coordinate carries the block.

    Of one block or more ``b_k`` is the largest norm, at least 0; their squares sum to at most 1, so
    that the whole vector has norm at most 1 (ConfigurationError). The result, ``sum_k b_k**4``, is
    in [0, 1], rounded up.
    """
    norms = [float(norm) for norm in block_l2_norms]
    _require(
        bool(norms) and all(math.isfinite(norm) and norm >= 0 for norm in norms),
        "one finite norm of at least 0 per block",
        norms,
    )
    total = math.fsum(norm**2 for norm in norms)
    _require(total <= 1 + FLOAT_MARGIN, "the squares of the norms to sum to at most 1", total)
    return min(1.0, math.fsum(norm**4 for norm in norms) * (1 + FLOAT_MARGIN))
