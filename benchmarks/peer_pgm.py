"""A junction tree on pairs that are chosen once: ``python -m benchmarks.peer_pgm FOLDER``.

A trial of what the registry might have as a method `pgm`. Three Gaussian draws look at the rows:
one-way tables; how far each pair of columns is from independence, in L1, given the released one-way
tables; the tables of the pairs that the second draw selects. A Markov random field is fitted to the
first and the third by ``mbi`` (McKenna, Sheldon and Miklau 2019), and `junction_sampler` makes rows
of it. Noise is of numpy's floats, good enough for public data and for no release.

Runs with the packages of ``peers-pgm.txt`` and imports nothing of the pipeline.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.junction_sampler import CliqueTable, sample_tree
from benchmarks.peer_exchange import Codes, read_request, write_made

SHARE_ONE, SHARE_DISTANCES, SHARE_PAIRS = 0.10, 0.10, 0.80
"""Shares of mu squared of the three draws; they sum to one."""

MAX_CELLS = 1_000_000
"""Cells of all cliques of the junction tree together."""

ITERATIONS = 1_500
"""Steps of mirror descent."""

Pair = tuple[int, int]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A noisy table of some columns, and the standard deviation of the noise of a cell."""

    columns: tuple[int, ...]
    counts: Floats
    noise: float


def counts_of(codes: Codes, n_codes: Sequence[int], columns: Sequence[int]) -> Floats:
    """Count the rows of each combination of codes of some columns, flat, last column fastest."""
    sizes = [n_codes[column] for column in columns]
    place = np.ravel_multi_index(tuple(codes[:, columns].T.astype(np.intp)), sizes)
    return np.bincount(place, minlength=int(np.prod(sizes))).astype(np.float64)


def one_way_counts(codes: Codes, n_codes: Sequence[int]) -> list[Floats]:
    """Count the codes of each of the d columns.

    Privacy
    -------
    A patient has one row and adds one to one cell of every table: the L2 sensitivity of all tables
    together is sqrt(d), for a patient added or removed.
    """
    return [counts_of(codes, n_codes, [column]) for column in range(len(n_codes))]


def pair_counts(codes: Codes, n_codes: Sequence[int], pairs: Sequence[Pair]) -> list[Floats]:
    """Count the rows of each cell of the tables of m pairs.

    Privacy
    -------
    The L2 sensitivity of all tables together is sqrt(m), for a patient added or removed.
    """
    return [counts_of(codes, n_codes, pair) for pair in pairs]


def distances(codes: Codes, shares: Sequence[Floats], total: float) -> Floats:
    """Return the L1 distance of each pair table from independent columns of released shares.

    Parameters
    ----------
    codes : uint16 array of shape (n, d)
    shares
        Released share of each code, of each column.
    total
        Released number of rows.

    Privacy
    -------
    The expected table is released, and a patient moves one cell of the counted one by one: each
    distance moves by at most one, and all d (d - 1) / 2 together by sqrt(d (d - 1) / 2) in L2.
    """
    n_codes = [len(share) for share in shares]
    return np.array(
        [
            np.abs(
                counts_of(codes, n_codes, (i, j)) - total * np.outer(shares[i], shares[j]).ravel()
            ).sum()
            for i, j in combinations(range(len(n_codes)), 2)
        ]
    )


def noise_of(l2_sensitivity: float, *, mu: float, share: float) -> float:
    """Return the standard deviation of a Gaussian draw that has a share of mu squared."""
    return l2_sensitivity / (mu * sqrt(share))


def to_simplex(values: Floats) -> Floats:
    """Return the nearest shares: not negative, of sum one (Duchi et al. 2008, Figure 1)."""
    falling = np.sort(values)[::-1]
    excess = (np.cumsum(falling) - 1.0) / np.arange(1, len(values) + 1)
    return np.maximum(values - excess[np.flatnonzero(falling > excess)[-1]], 0.0)


def selected(
    distance: Floats,
    n_codes: Sequence[int],
    *,
    noise_of_pairs: Callable[[int], float],
    cells_of: Callable[[Sequence[Pair]], float],
) -> list[Pair]:
    """Choose the pairs to be measured from the released distances.

    A measured pair gains its distance and loses the L1 norm of its noise. The more pairs, the more
    noise each has: the number of pairs is that of the largest gain of all together. A pair with
    which the junction tree would have more than `MAX_CELLS` cells is passed over.

    Parameters
    ----------
    distance
        Released distance of each pair, in the order of `itertools.combinations`.
    n_codes
        Number of codes of each column.
    noise_of_pairs
        Noise of a cell by the number of pairs that are measured.
    cells_of
        Cells of the junction tree of some pairs.
    """
    pairs = list(combinations(range(len(n_codes)), 2))
    cells = np.array([n_codes[i] * n_codes[j] for i, j in pairs], dtype=float)
    norm = sqrt(2.0 / pi) * cells
    order = np.argsort(norm * noise_of_pairs(len(n_codes)) - distance, kind="stable")
    kept: list[int] = []
    for place in order:
        if cells_of([pairs[k] for k in (*kept, place)]) <= MAX_CELLS:
            kept.append(int(place))
    gains = [
        (distance[kept[:m]] - norm[kept[:m]] * noise_of_pairs(m)).sum()
        for m in range(1, len(kept) + 1)
    ]
    return [pairs[place] for place in kept[: int(np.argmax(gains)) + 1]]


def measure(
    codes: Codes,
    n_codes: Sequence[int],
    *,
    mu: float,
    cells_of: Callable[[Sequence[Pair]], float],
    rng: np.random.Generator,
) -> list[Measured]:
    """Draw one-way tables, distances and pair tables; return the tables.

    Privacy
    -------
    Three Gaussian draws whose mu squared are shares of the whole: together they have exactly mu.
    The third is of pairs that the first two name.
    """
    d = len(n_codes)
    n_pairs = d * (d - 1) // 2
    sd_one = noise_of(sqrt(d), mu=mu, share=SHARE_ONE)
    one = [
        count + sd_one * rng.standard_normal(len(count)) for count in one_way_counts(codes, n_codes)
    ]
    total = max(float(np.average([one_.sum() for one_ in one], weights=1 / np.array(n_codes))), 1.0)
    shares = [to_simplex(one_ / total) for one_ in one]
    sd_distance = noise_of(sqrt(n_pairs), mu=mu, share=SHARE_DISTANCES)
    distance = distances(codes, shares, total) + sd_distance * rng.standard_normal(n_pairs)

    def noise_of_pairs(m: int) -> float:
        return noise_of(sqrt(m), mu=mu, share=SHARE_PAIRS)

    pairs = selected(distance, n_codes, noise_of_pairs=noise_of_pairs, cells_of=cells_of)
    sd_pair = noise_of_pairs(len(pairs))
    found = [
        Measured(columns=(column,), counts=count, noise=sd_one) for column, count in enumerate(one)
    ]
    return found + [
        Measured(
            columns=pair, counts=count + sd_pair * rng.standard_normal(len(count)), noise=sd_pair
        )
        for pair, count in zip(pairs, pair_counts(codes, n_codes, pairs), strict=True)
    ]


def fitted(measured: Sequence[Measured], domain: Any) -> list[CliqueTable]:
    """Fit a Markov random field by mirror descent; return the tables along its junction tree."""
    import mbi
    import networkx

    model = mbi.estimation.MirrorDescent().estimate(
        domain,
        [mbi.LinearMeasurement(one.counts, one.columns, one.noise) for one in measured],
        iters=ITERATIONS,
    )
    tree = mbi.junction_tree.make_junction_tree(domain, list(model.cliques))[0]
    potentials = model.potentials.expand(list(tree.nodes))
    tables = mbi.marginal_oracles.message_passing_stable(potentials, model.total)
    return [
        CliqueTable(columns=clique, weights=np.asarray(tables.project(clique).values))
        for clique in networkx.dfs_preorder_nodes(tree)
    ]


def main(folder: Path) -> None:
    """Measure the rows of a request, fit a junction tree and make new rows."""
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    import mbi

    request, codes = read_request(folder)
    domain = mbi.Domain(range(len(request.n_codes)), request.n_codes)

    def cells_of(pairs: Sequence[Pair]) -> float:
        return mbi.junction_tree.hypothetical_model_size(domain, pairs) * 2**20 / 8

    measured = measure(
        codes, request.n_codes, mu=request.mu, cells_of=cells_of, rng=np.random.default_rng()
    )
    print(f"{len(measured) - len(request.n_codes)} pairs", flush=True)
    tables = fitted(measured, domain)
    rng = np.random.default_rng(request.seed)
    write_made(folder, sample_tree(tables, request.n_codes, request.rows_out, rng), request)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
