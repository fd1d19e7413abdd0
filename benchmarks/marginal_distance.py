"""Distances of two coded tables: total variation of marginals, and errors of counting queries.

Marginals are compared on the public codes of the schema, so the distance depends on the declared
bins and levels. Queries count the records of binary items that contain all of some: section 6.3 of
the DPGM paper has five sets of growing length, and the relative error with a sanity bound of 0.1
percent of the records. The formula printed there divides by the synthetic count, its text and the
work it follows (Xiao et al. 2011) by the real one, as here. All of it is computed from real records
without noise: for public data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_CHUNK_ROWS = 4096
"""Rows whose one-hot form is held at a time."""


class MarginalDistance(NamedTuple):
    """Distances ``0.5 * sum |p - q|`` of each column, and their mean over all pairs of columns."""

    by_column: NDArray[np.float64]
    two_way: float


def marginal_distance(
    left: NDArray[np.integer[Any]], right: NDArray[np.integer[Any]], n_codes: Sequence[int]
) -> MarginalDistance:
    """Compare the one-way and two-way marginals of tables of codes, (n, d) and (m, d)."""
    difference = np.abs(_pair_shares(left, n_codes) - _pair_shares(right, n_codes))
    starts = np.concatenate([[0], np.cumsum(n_codes)[:-1]])
    # Sums over the blocks of the one-hot columns: block (j, k) is the marginal of columns j and k,
    # and block (j, j) is the marginal of column j on its diagonal.
    blocks = np.add.reduceat(np.add.reduceat(difference, starts, axis=0), starts, axis=1) / 2.0
    pairs = blocks[np.triu_indices(len(n_codes), k=1)]
    return MarginalDistance(np.diagonal(blocks), float(pairs.mean()))


def _pair_shares(codes: NDArray[np.integer[Any]], n_codes: Sequence[int]) -> NDArray[np.float64]:
    """Share of rows that have both codes, for all pairs of codes: shape (width, width)."""
    widths = np.asarray(n_codes, dtype=np.int64)
    if len(codes) == 0 or codes.shape[1] != len(widths) or (codes.max(axis=0) >= widths).any():
        raise ValueError("expected rows, and every code below the number of codes of its column")
    offsets = np.cumsum(widths) - widths
    counts = np.zeros((int(widths.sum()),) * 2)
    for start in range(0, len(codes), _CHUNK_ROWS):
        chunk = codes[start : start + _CHUNK_ROWS]
        # Sums of at most _CHUNK_ROWS ones are exact in single precision.
        one_hot = np.zeros((len(chunk), len(counts)), dtype=np.float32)
        np.put_along_axis(one_hot, chunk + offsets, 1.0, axis=1)
        counts += one_hot.T @ one_hot
    return counts / len(codes)


QuerySet = tuple[NDArray[np.int64], ...]
"""Queries, each an array of the different items that a record must contain."""

N_QUERIES, N_SETS, SANITY_SHARE = 1_000, 5, 0.001
"""Queries, their sets, and the bound: of a share of the records; smaller counts weigh no more."""


def draw_query_sets(
    *, n_items: int, max_length: int, rng: np.random.Generator
) -> tuple[QuerySet, ...]:
    """Draw random queries in sets of growing length.

    The length of a query of set i is uniform in ``[1, i * max_length / 5]``; its items are
    drawn from all items, without repetition.
    """
    sets = []
    for number in range(1, N_SETS + 1):
        longest = max(1, number * max_length // N_SETS)
        lengths = rng.integers(1, longest, size=N_QUERIES // N_SETS, endpoint=True)
        drawn = (np.sort(rng.choice(n_items, size=n, replace=False)) for n in lengths)
        sets.append(tuple(drawn))
    return tuple(sets)


def query_set_errors(
    real: NDArray[np.bool_], synthetic: NDArray[np.bool_], query_sets: Sequence[QuerySet]
) -> NDArray[np.float64]:
    """Mean relative error of each set of queries on a synthetic table."""
    errors = []
    for queries in query_sets:
        shares = [[table[:, query].all(axis=1).mean() for query in queries]
                  for table in (real, synthetic)]  # fmt: skip
        known, made = np.array(shares)
        errors.append((np.abs(made - known) / np.maximum(known, SANITY_SHARE)).mean())
    return np.array(errors)
