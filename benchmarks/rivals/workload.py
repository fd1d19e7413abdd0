"""The public workload: counting queries on one or two columns, and their exact private answers."""

from dataclasses import dataclass

import numpy as np

from privacy.arrays import Codes, Integers
from tasks.measurement.encoded import EncodingDomain, row_slices

PUBLIC_SEED = 20_120_312
"""Seed of the random part of the workload: it may be printed."""

_QUERIES_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Queries "how many records have these codes", each on one or two columns.

    Column ``d`` is the label. A query on one column names it twice.

    `n_codes` are those of each of the ``d + 1`` columns, the label last; `columns` and the codes
    that a record must have there have shape (n_queries, 2).
    """

    n_codes: tuple[int, ...]
    columns: Integers
    codes: Integers

    def __len__(self) -> int:
        return len(self.columns)

    def named(self, query: int) -> dict[str, tuple[int, ...]]:
        """Columns and codes of one query, by name."""
        return {
            "columns": tuple(self.columns[query].tolist()),
            "codes": tuple(self.codes[query].tolist()),
        }


def draw_workload(domain: EncodingDomain, *, max_queries: int, label_share: float) -> Workload:
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
    most = (max_queries + 1) // 2
    if len(atoms) > most:
        atoms = atoms[np.sort(rng.choice(len(atoms), size=most, replace=False))]
    with_label, others = _pairs(atoms, label_column=len(n_codes) - 1, rng=rng)
    places = max_queries - len(atoms)
    n_label = min(len(with_label), max(round(places * label_share), places - len(others)))
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


def workload_answers(codes: Codes, labels: Codes, workload: Workload) -> Integers:
    """Count the records that match each query, of shape (n_queries,).

    Records are packed to bits, one row of bits per code in use, so that a query is one ``and`` and
    a count of bits.
    """
    values = np.vstack([codes.T, labels])
    atoms, atom = np.unique(
        np.stack([workload.columns, workload.codes], axis=-1).reshape(-1, 2),
        axis=0,
        return_inverse=True,
    )
    bits = np.stack([np.packbits(values[column] == code) for column, code in atoms])
    left, right = atom.reshape(-1, 2).T
    counts = [
        np.bitwise_count(bits[left[part]] & bits[right[part]]).sum(axis=1, dtype=np.int64)
        for part in row_slices(len(workload), _QUERIES_AT_ONCE)
    ]
    return np.concatenate(counts)
