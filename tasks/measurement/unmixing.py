"""Records from released mixtures, which are noisy means of groups of records.

The mean of one-hot columns is a table of shares. Its largest level is almost always the most
frequent one of the class, so a level is drawn from the shares. The variance of means of l records
is l times smaller than that of records, and noise hides a part; both factors are known. `spread`
keeps the directions in which mixtures vary more than by noise, and rescales them to the variance of
records. Columns drawn from the rescaled shares depend on each other as those of records do.

Columns that are averaged as numbers, and images, stay as they are.

Privacy: post-processing. All that is read here is public or released, the noise included.
"""

from dataclasses import dataclass

import numpy as np

from privacy.arrays import AnyFloats, Codes, Floats, Indices
from tasks.measurement.encoded import row_slices
from tasks.measurement.marginals import draw_codes, to_marginals
from tasks.measurement.vectors import VectorMap

_SWEEPS = 20
"""Rounds of fitting shares to their average; a few are enough where it is not near zero or one."""

_ROWS_AT_ONCE = 16_384
"""Rows that are drawn at a time: bounds the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixtures:
    """Noisy means (T, D) of records, all of the same order, in the coordinates of a `VectorMap`.

    Further coordinates may follow. The order is the expected number of records in a mean; the
    centre is the value of each coordinate that adds nothing to a sum.
    """

    means: AnyFloats
    order: float
    noise_stddev: float
    centre: Floats | float = 0.0


def drawn_coordinates(vectors: VectorMap) -> Indices:
    """Coordinates of the columns that are drawn from shares, which are all but the numeric ones."""
    chosen = [
        np.arange(columns.start, columns.stop)
        for columns, is_number in zip(vectors.spans, vectors.domain.numeric, strict=True)
        if not is_number
    ]
    return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.intp)


def spread(mixtures: Mixtures, coordinates: Indices) -> AnyFloats:
    """Rescale some coordinates of mixtures to the variance of single records, without noise.

    Principal components of the mixtures get the variances of `spiked_variances` times the order.
    Their variation along the mean record is removed, as it comes from random sizes of hashed
    groups. Averages stay those of the means (T, D), returned as they are without coordinates.
    """
    if len(coordinates) == 0:
        return mixtures.means
    result = mixtures.means.astype(np.float64)
    part = result[:, coordinates]
    average = part.mean(axis=0)
    centre = np.broadcast_to(mixtures.centre, result.shape[1])[coordinates]
    moved, along = part - average, average - centre
    length = float(np.linalg.norm(along))
    if length > 0.0:
        along /= length
        moved -= np.outer(moved @ along, along)
    n, width = moved.shape
    # The smaller Gram matrix: that of a million mixtures would not fit into memory.
    product = moved.T @ moved if n >= width else moved @ moved.T
    squares, components = np.linalg.eigh(product)
    eigenvalues = squares / n / mixtures.noise_stddev**2
    variances = spiked_variances(eigenvalues, aspect=width / n)
    kept = variances > 0.0
    gains = np.sqrt(variances[kept] * mixtures.order / eigenvalues[kept])
    stretch = (components[:, kept] * gains) @ components[:, kept].T
    result[:, coordinates] = average + (moved @ stretch if n >= width else stretch @ moved)
    return result


def spiked_variances(eigenvalues: Floats, *, aspect: float) -> Floats:
    """Return the variances of a signal, from eigenvalues of a sample covariance with noise.

    In units of the variance of the noise. An eigenvalue in the range of pure noise becomes zero; a
    larger one is corrected for the bias by noise and the error of its direction. The covariance is
    of n samples of D numbers with noise of variance one, and `aspect` D over n.

    Source: Donoho, Gavish and Johnstone, "Optimal shrinkage of eigenvalues in the spiked covariance
    model", Annals of Statistics 46 (2018): the variance behind an eigenvalue, times the squared
    cosine between its true and its found direction, is best in the Frobenius norm.
    """
    variances = np.zeros_like(eigenvalues)
    signal = eigenvalues > (1.0 + np.sqrt(aspect)) ** 2
    total = eigenvalues[signal] + 1.0 - aspect
    shifted = (total + np.sqrt(total**2 - 4.0 * eigenvalues[signal])) / 2.0 - 1.0
    squared_cosine = (1.0 - aspect / shifted**2) / (1.0 + aspect / shifted)
    variances[signal] = shifted * squared_cosine
    return variances


def matched_shares(scores: Floats, target: Floats) -> Floats:
    """Shares in proportion to scores (T, w), weighted to a target (w,) on average.

    Negative scores count as zero; a row without a positive one gets the target. Rows sum to one.
    """
    positive = np.where(target > 0.0, np.maximum(scores, 0.0), 0.0)
    weights = np.ones(len(target))
    for _ in range(_SWEEPS):
        weighted = positive * weights
        totals = weighted.sum(axis=1, keepdims=True)
        shares = np.where(totals > 0.0, weighted / np.where(totals > 0.0, totals, 1.0), target)
        found = shares.mean(axis=0)
        weights *= np.divide(target, found, out=np.ones_like(target), where=found > 0.0)
    return shares


def draw_records(
    mixtures: Mixtures,
    scores: AnyFloats,
    vectors: VectorMap,
    *,
    chosen: Indices,
    rng: np.random.Generator,
) -> Codes:
    """Draw one record (n, d) from each `chosen` (n,) mixture.

    `scores` (T, D) are the means after `spread`. A number becomes the nearest code; other columns
    are drawn. Levels whose average is below its noise are left out.
    """
    used, place = np.unique(chosen, return_inverse=True)
    nearest = [
        vectors.codes(scores[used[part], : vectors.width])[0]
        for part in row_slices(len(used), _ROWS_AT_ONCE)
    ]
    codes = np.concatenate([np.empty((0, vectors.domain.n_columns), np.uint16), *nearest])[place]
    noise = mixtures.noise_stddev / np.sqrt(len(scores))
    for column, span in enumerate(vectors.spans):
        if vectors.domain.numeric[column]:
            continue
        levels = scores[:, span].astype(np.float64)
        if levels.shape[1] == 1:
            # A coordinate of two levels is the share of the second one.
            levels = np.concatenate([1.0 - levels, levels], axis=1)
        width = np.array([0, levels.shape[1]])
        target = to_marginals(levels.mean(axis=0), width, noise_stddev=noise)
        shares = matched_shares(levels, target)
        for part in row_slices(len(chosen), _ROWS_AT_ONCE):
            drawn = shares[chosen[part]]
            codes[part, column] = draw_codes(drawn, len(drawn), rng)
    return codes
