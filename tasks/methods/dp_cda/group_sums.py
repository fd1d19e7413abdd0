"""Exact sums of private records that DP-CDA releases, and their sensitivity.

Written like `tasks.measurement.statistics`: rows of one shard and public arrays to int64, records
truncated toward zero on the grid, each one rounded by itself.
"""

from dataclasses import dataclass

import numpy as np

from privacy.arrays import Codes, Floats, Integers
from tasks.measurement.encoded import EncodedRows, mixed_bits, row_slices
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.vectors import VectorMap

HASH_SEED = 20_250_417
"""Seed of the public hash that parts records into groups: it may be printed."""

_ROWS_AT_ONCE = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMap:
    """Map records to vectors ``(x - centre) / scale`` of norm at most c, by public constants."""

    vectors: VectorMap
    centre: Floats | float
    scale: float
    l2_clip_norm: float

    def scaled(self, codes: Codes) -> Floats:
        """Vectors of norm at most `l2_clip_norm`, of shape (n, D), each rounded by itself."""
        vectors = (self.vectors.vectors(codes) - self.centre) / self.scale
        norms = np.sqrt((vectors**2).sum(axis=1, keepdims=True))
        clipped: Floats = vectors * (self.l2_clip_norm / np.maximum(norms, self.l2_clip_norm))
        return clipped


def group_sums(
    rows: EncodedRows, *, record_map: RecordMap, n_labels: int, n_groups: int
) -> Integers:
    """Weighted sums (n_groups, n_labels, D) of the records of each group and class.

    In units of ``1 / SUM_SCALE``.

    Privacy
    -------
    Adjacency: add or remove one patient. A record adds ``weight * vector``, of norm at most
    ``weight * c``, to one entry that the record alone decides (`groups_of`); the weights of a
    patient sum to at most one. By the triangle inequality the sensitivity of the whole array is c,
    however many groups there are and wherever the records of the patient fall. Event: one discrete
    Gaussian for all groups together.
    """
    cell = groups_of(rows, n_groups=n_groups) * n_labels + rows.label
    total = np.zeros((n_groups * n_labels, record_map.vectors.width), dtype=np.int64)
    in_order = np.argsort(cell, kind="stable")
    for part in row_slices(len(in_order), _ROWS_AT_ONCE):
        index = in_order[part]
        vectors = record_map.scaled(rows.codes[index])
        amount = np.trunc(rows.weight[index, None] * vectors * SUM_SCALE).astype(np.int64)
        cells, starts = np.unique(cell[index], return_index=True)
        total[cells] += np.add.reduceat(amount, starts, axis=0)
    return total.reshape(n_groups, n_labels, -1)


def groups_of(rows: EncodedRows, *, n_groups: int) -> Integers:
    """Group (n,) of each record, from 0: a public keyed hash of the record alone.

    Nothing else decides it, neither the place of the record nor any other record: so a patient who
    is added moves nobody. Equal records of equal folds are in one group.
    """
    n_columns = rows.codes.shape[1]
    factors = np.random.default_rng(HASH_SEED).integers(
        0, 2**64, size=n_columns + 2, dtype=np.uint64, endpoint=False
    )
    hashed = rows.codes.astype(np.uint64) @ factors[:n_columns]
    hashed += rows.label * factors[-2] + rows.fold * factors[-1]
    groups: Integers = (mixed_bits(hashed) % np.uint64(n_groups)).astype(np.int64)
    return groups
