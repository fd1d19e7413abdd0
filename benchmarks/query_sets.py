"""Counting queries on binary item data: how many records contain all of some items.

Source: DPGM paper, section 6.3: five sets of random queries of growing length, and the relative
error with a sanity bound of 0.1 percent of the records. The formula printed there divides by the
synthetic count, its text and the work it follows (Xiao et al. 2011) by the real one; here it is
the real one. Computed from real records without noise: for benchmarks on public data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

QuerySet = tuple[NDArray[np.int64], ...]
"""Queries, each an array of the different items that a record must contain."""

N_QUERIES, SANITY_SHARE = 1_000, 0.001
"""Queries in all; sanity bound, a share of the records: smaller counts weigh no more."""


def draw_query_sets(
    *, n_items: int, max_length: int, rng: np.random.Generator, n_sets: int = 5
) -> tuple[QuerySet, ...]:
    """Draw random queries in sets of growing length.

    The length of a query of set i is uniform in ``[1, i * max_length / n_sets]``; its items are
    drawn from all items, without repetition.
    """
    sets = []
    for number in range(1, n_sets + 1):
        longest = max(1, number * max_length // n_sets)
        lengths = rng.integers(1, longest, size=N_QUERIES // n_sets, endpoint=True)
        drawn = (np.sort(rng.choice(n_items, size=n, replace=False)) for n in lengths)
        sets.append(tuple(drawn))
    return tuple(sets)


def count_records(
    records: NDArray[np.bool_], queries: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Count the records that contain all items of each query."""
    # One row of bits per item; the bits that fill up the last byte are zero in every row.
    packed = np.packbits(records.T, axis=1)
    held = (np.bitwise_and.reduce(packed[query], axis=0) for query in queries)
    return np.array([int(np.bitwise_count(bits).sum()) for bits in held])


def query_set_errors(
    real: NDArray[np.bool_], synthetic: NDArray[np.bool_], query_sets: Sequence[QuerySet], *,
    sanity_share: float = SANITY_SHARE,
) -> NDArray[np.float64]:  # fmt: skip
    """Mean relative error of each set of queries on a synthetic table."""
    errors = []
    for queries in query_sets:
        known, made = count_records(real, queries), count_records(synthetic, queries)
        scaled = made * (len(real) / len(synthetic))
        errors.append((np.abs(scaled - known) / np.maximum(known, sanity_share * len(real))).mean())
    return np.array(errors)
