"""Records of a junction tree: exact draws from its tables, by a seed of their own.

The sampler of ``mbi`` takes numpy's global generator, which no seed of a release reaches. This one
takes a `numpy.random.Generator`, and numpy alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class CliqueTable:
    """Weights of the codes of some columns together.

    Parameters
    ----------
    columns
        Places of the columns, one for each axis of the table.
    weights
        Array of the shape of their numbers of codes, not negative, of any sum above zero.
    """

    columns: tuple[int, ...]
    weights: NDArray[np.floating]


def sample_tree(
    tables: Sequence[CliqueTable], n_codes: Sequence[int], n_rows: int, rng: np.random.Generator
) -> NDArray[np.uint16]:
    """Sample records clique by clique, each given the columns that it shares with those before.

    Parameters
    ----------
    tables
        Cliques in an order in which what a clique shares with all before it lies in one of them, as
        a walk over a junction tree has it. Together they have every column.
    n_codes
        Number of codes of each column.
    n_rows
        Number of records n.
    rng
        Source of the draws, no source of noise.

    Returns
    -------
    uint16 array of shape (n, d)
        Each row has the distribution of the tree. Among rows with the same shared codes the cells
        of a clique have their quotas, rounded at random, so that tables of the rows differ less
        from those of the tree than independent draws would.

    Privacy
    -------
    Post-processing of released tables.
    """
    codes = np.zeros((n_rows, len(n_codes)), dtype=np.uint16)
    known: set[int] = set()
    for table in tables:
        shared = [column for column in table.columns if column in known]
        new = [column for column in table.columns if column not in known]
        if not new:
            continue
        axes = [table.columns.index(column) for column in (*shared, *new)]
        sizes = [n_codes[column] for column in new]
        weights = np.asarray(table.weights, dtype=np.float64).transpose(axes)
        weights = weights.reshape(-1, int(np.prod(sizes)))
        above = _place(codes[:, shared], [n_codes[column] for column in shared])
        cells = _quotas(weights, above, rng)
        codes[:, new] = np.column_stack(np.unravel_index(cells, sizes))
        known.update(new)
    if len(known) != len(n_codes):
        raise ValueError(f"expected tables of all {len(n_codes)} columns, found {len(known)}")
    return codes


def _place(codes: NDArray[np.uint16], sizes: Sequence[int]) -> NDArray[np.intp]:
    """Return the number of the codes (n, s) together; zero where no column is shared."""
    if not sizes:
        return np.zeros(len(codes), dtype=np.intp)
    return np.ravel_multi_index(tuple(codes.T.astype(np.intp)), sizes)


def _quotas(
    weights: NDArray[np.float64], above: NDArray[np.intp], rng: np.random.Generator
) -> NDArray[np.intp]:
    """Draw a column of ``weights`` (k, m) for every row, from the line that ``above`` names.

    Systematic sampling within each line: its rows, in random order, take evenly spaced points of
    the cumulated weights, all moved by one uniform number.
    """
    totals = weights.sum(axis=1, keepdims=True)
    # A line that the tree gives no weight is met by no row, but for rounding.
    shares = np.where(totals > 0, weights / np.where(totals > 0, totals, 1.0), 1 / weights.shape[1])
    # Line i has its cumulated shares in (i, i + 1]: one sorted list for all lines.
    ends = np.cumsum(shares, axis=1)
    ends = np.minimum(ends / ends[:, -1:], 1.0) + np.arange(len(ends))[:, None]
    order = rng.permutation(len(above))
    order = order[np.argsort(above[order], kind="stable")]
    line = above[order]
    n_of_line = np.bincount(line, minlength=len(ends))
    rank = np.arange(len(line)) - (np.cumsum(n_of_line) - n_of_line)[line]
    point = (rank + rng.random(len(ends))[line]) / n_of_line[line]
    found = np.searchsorted(ends.ravel(), line + point, side="right")
    cells = np.empty(len(above), dtype=np.intp)
    cells[order] = np.clip(found - line * weights.shape[1], 0, weights.shape[1] - 1)
    return cells
