"""The public workload: counting queries on one or two columns, and their exact private answers."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Indices, Integers
from tasks.measurement.centred import label_counts
from tasks.measurement.encoded import EncodedRows, EncodingDomain, row_slices
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.mwem.config import PUBLIC_SEED, MwemConfig

_WORD_BITS = 64

_ROWS_AT_ONCE = 4096
"""Records compared with all codes at a time, a multiple of 8."""

_QUERIES_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Queries "how many patients have these codes", each on one or two columns.

    Column ``d`` is the label. A query on one column names it twice.

    `n_codes` are those of each of the ``d + 1`` columns, the label last; `columns` and the codes
    that a record must have there have shape (n_queries, 2).
    """

    n_codes: tuple[int, ...]
    columns: Integers
    codes: Integers

    def __len__(self) -> int:
        return len(self.columns)

    def take(self, index: Integers) -> "Workload":
        """Return the queries of an index array, in its order."""
        return Workload(n_codes=self.n_codes, columns=self.columns[index], codes=self.codes[index])

    def named(self, query: int) -> dict[str, tuple[int, ...]]:
        """Columns and codes of one query, by name."""
        return {
            "columns": tuple(self.columns[query].tolist()),
            "codes": tuple(self.codes[query].tolist()),
        }


def draw_workload(domain: EncodingDomain, config: MwemConfig) -> Workload:
    """Choose the workload by the public seed.

    The first code of a column has no query of its own: its counts follow from the others and the
    total. One-way queries come first; where they would take more than half of the places, half of
    the places go to random ones. The places that are left go to random two-way queries of the same
    codes, a share of them with the label; where one sort runs out, to the other. There is one query
    or more; if no column has a second code, it is a ValueError.
    """
    n_codes = (*domain.n_codes, domain.n_labels)
    atoms = np.array([(j, code) for j, n in enumerate(n_codes) for code in range(1, n)])
    if not len(atoms):
        raise ValueError("expected a column with two codes or more, found none")
    rng = np.random.default_rng(PUBLIC_SEED)
    most = (config.max_queries + 1) // 2
    if len(atoms) > most:
        atoms = atoms[np.sort(rng.choice(len(atoms), size=most, replace=False))]
    with_label, others = _pairs(atoms, label_column=len(n_codes) - 1, rng=rng)
    places = config.max_queries - len(atoms)
    n_label = min(len(with_label), max(round(places * config.label_share), places - len(others)))
    pairs = np.concatenate([with_label[:n_label], others[: places - n_label]])
    return Workload(
        n_codes=n_codes,
        columns=np.concatenate([atoms[:, [0, 0]], atoms[pairs, 0]]).astype(np.int64),
        codes=np.concatenate([atoms[:, [1, 1]], atoms[pairs, 1]]).astype(np.int64),
    )


def _pairs(
    atoms: Integers, *, label_column: int, rng: np.random.Generator
) -> tuple[Integers, Integers]:
    """Pairs of atoms of different columns in random order: with the label, and without."""
    left, right = np.triu_indices(len(atoms), k=1)
    different = atoms[left, 0] != atoms[right, 0]
    # Atoms are in the order of their columns, so the label, the last one, is on the right.
    labelled = atoms[right, 0] == label_column
    pairs = np.column_stack([left, right]).astype(np.int64)
    return (
        rng.permutation(pairs[different & labelled]),
        rng.permutation(pairs[different & ~labelled]),
    )


def workload_answers(rows: EncodedRows, *, workload: Workload) -> Any:
    """Weighted number of records that match each query.

    A record counts with its weight, truncated to the grid. Records are sorted by that amount and
    packed to bits, one row of bits per code in use, so that a query is one ``and`` and a count of
    bits for each amount; everything is exact. Of shape (n_queries,), in units of ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. A patient adds to each answer at most the sum of the
    weights of all rows, at most 1, also when the rows match different queries: each answer, and
    so the distance of each answer from a public value, changes by at most 1 (``SUM_SCALE`` grid
    points). For a choice by the exponential mechanism alone: as a vector the answers would have
    a sensitivity of up to ``sqrt(n_queries)``.
    """
    rows.require_inside(workload.n_codes[:-1], workload.n_codes[-1])
    amount = np.trunc(rows.weight * SUM_SCALE).astype(np.int64)
    amounts, group = np.unique(amount, return_inverse=True)
    order = np.argsort(group, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=len(amounts)))])
    atoms, atom = np.unique(
        np.stack([workload.columns, workload.codes], axis=-1).reshape(-1, 2),
        axis=0,
        return_inverse=True,
    )
    left, right = atom.reshape(-1, 2).T
    total = np.zeros(len(workload), dtype=np.int64)
    for value, (start, stop) in zip(amounts, pairwise(ends), strict=True):
        bits = _packed(rows, order[start:stop], atoms)
        for part in row_slices(len(workload), _QUERIES_AT_ONCE):
            both = np.bitwise_count(bits[left[part]] & bits[right[part]])
            total[part] += value * both.sum(axis=1, dtype=np.int64)
    return total


def _packed(rows: EncodedRows, members: Indices, atoms: Integers) -> NDArray[np.uint64]:
    """Which members have each code: bits, in words, of shape (n_atoms, n_words)."""
    n_words = -(-len(members) // _WORD_BITS)
    packed = np.zeros((len(atoms), n_words * _WORD_BITS // 8), dtype=np.uint8)
    for start in range(0, len(members), _ROWS_AT_ONCE):
        block = members[start : start + _ROWS_AT_ONCE]
        values = np.vstack([rows.codes[block].T, rows.label[block]])
        bits = np.packbits(values[atoms[:, 0]] == atoms[:, 1:], axis=1)
        packed[:, start // 8 : start // 8 + bits.shape[1]] = bits
    return packed.view(np.uint64)


def query_answer(
    rows: EncodedRows, *, columns: tuple[int, int], codes: tuple[int, int]
) -> Integers:
    """Weighted number of records that match one query.

    The columns of the query are numbered, ``d`` for the label. One number (1,), in units of
    ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. The weights of a patient sum to at most one: sensitivity
    1 (``SUM_SCALE`` grid points). Event: one discrete Gaussian.
    """
    matches = np.ones(len(rows), dtype=np.bool_)
    for column, code in zip(columns, codes, strict=True):
        values = rows.label if column == rows.codes.shape[1] else rows.codes[:, column]
        matches &= values == code
    amount = np.trunc(rows.weight[matches] * SUM_SCALE).astype(np.int64)
    return np.array([amount.sum()], dtype=np.int64)


def one_way_histograms(rows: EncodedRows, *, n_codes: tuple[int, ...]) -> Integers:
    """`label_counts` (1, 1 + W) of all rows together, with the label as one more column.

    Privacy
    -------
    Adjacency: add or remove one patient. A function of the codes, the label and the weight of a row
    alone, and so of sensitivity 1 (``SUM_SCALE`` grid points) as proved there. Event: one discrete
    Gaussian.
    """
    columns = np.column_stack([rows.codes, rows.label])
    together = replace(rows, codes=columns, label=np.zeros_like(rows.label))
    return label_counts(together, n_codes=n_codes, n_labels=1)
