"""Contributions of patients: bounded rows, shared weights, and hashes that split patients.

Every function reads the rows of one patient at a time: adding or removing a patient leaves the
rows, weights and hashes of all others unchanged.
"""

import hashlib

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from privacy.arrays import Codes, Floats, Indices, Integers
from privacy.errors import refusals
from privacy.parameters import PrivacyUnit
from storage.sources.cells import distinct
from tasks.measurement.encoded import N_FOLDS, mixed_bits

refusal = refusals(__package__)

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)


def bound_contributions(
    patient: Indices, names: list[str], records: Codes, max_rows: int
) -> tuple[NDArray[np.bool_], Floats]:
    """Keep at most `max_rows` rows of each patient and share a weight of one among them.

    The rows with the smallest digests of the patient's key and the row's codes are kept: a
    pseudo-random choice, independent of the order of the source. Rows of equal digest are equal.

    ``patient`` (n,) and ``names`` come from `named_patients`; ``records`` (n, d + 1) hold codes and
    label, without rows that have no label. Returns a mask of the kept rows and the weight of each
    row: one over the number of kept rows of its patient, and 0 for a row that is not kept.

    Privacy
    -------
    Kept rows and weights of a patient depend on that patient's rows alone, as a set. The weights of
    a patient sum to one, so a weighted sum of vectors of norm at most R changes by at most R when a
    patient is added or removed (convexity of the norm).
    """
    n_rows = np.bincount(patient, minlength=len(names))
    over = np.flatnonzero(n_rows[patient] > max_rows)
    # A record has a fixed length, so no two pairs of key and record are the same bytes.
    digests = b"".join(
        hashlib.blake2b(
            names[patient[row]].encode("utf-8") + records[row].tobytes(), digest_size=16
        ).digest()
        for row in over
    )
    low, high = np.frombuffer(digests, dtype="<u8").reshape(-1, 2).T
    order = over[np.lexsort((low, high, patient[over]))]
    n_over = np.where(n_rows > max_rows, n_rows, 0)
    rank = np.arange(len(over)) - np.repeat(np.cumsum(n_over) - n_over, n_over)
    keep = np.ones(len(patient), dtype=np.bool_)
    keep[order] = rank < max_rows
    n_kept = np.minimum(n_rows, max_rows)[patient]
    return keep, np.where(keep, 1.0 / n_kept, 0.0)


def part_of_patients(
    patient_keys: ArrayLike, *, scheme: str, parts: int, unit: PrivacyUnit | None = None
) -> Integers:
    """Return the part of each row's patient, for releases of disjoint sets of patients.

    The part, in [0, `parts`), is a hash of the patient's key, keyed by the scheme's public name. So
    the parts of a scheme are disjoint in this table and in every later one.
    """
    patient, names = named_patients(patient_keys, unit)
    key = hashlib.sha256(scheme.encode("utf-8")).digest()
    part = [
        int.from_bytes(hashlib.blake2b(name.encode("utf-8"), key=key, digest_size=16).digest())
        % parts
        for name in names
    ]
    return np.array(part, dtype=np.int64)[patient]


def hash_names(names: list[str]) -> NDArray[np.uint64]:
    """Return a private hash of each of `named_patients`, the same in every chunk and run."""
    hashes = pd.util.hash_array(np.array(names, dtype=object), categorize=False)
    return hashes.astype(np.uint64)


def hash_records(codes: Codes, label: Codes) -> NDArray[np.uint64]:
    """Return a hash of each record (n, d) with its label, for tables without a patient key.

    The position of a row is no key, since it changes when an earlier row is removed. Equal records
    share a hash. FNV-1a over codes and label, with the finaliser of SplitMix64.
    """
    mixed = np.full(len(label), _FNV_OFFSET)
    for column in (*codes.T, label):
        mixed = (mixed ^ column.astype(np.uint64)) * _FNV_PRIME
    return mixed_bits(mixed)


def fold_of(hashes: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the fold, in [0, ``N_FOLDS``), of each hash."""
    return (hashes % np.uint64(N_FOLDS)).astype(np.uint8)


def shard_of(hashes: NDArray[np.uint64], n_shards: int) -> Integers:
    """Return the shard, in [0, ``n_shards``), of each hash; independent of its fold."""
    return ((hashes // np.uint64(N_FOLDS)) % np.uint64(n_shards)).astype(np.int64)


def named_patients(
    patient_keys: ArrayLike, unit: PrivacyUnit | None = None
) -> tuple[Indices, list[str]]:
    """Return index (n,) and names of rows' patients; keys are `raw_text` in a unit's spelling."""
    # A list has no type, so pandas would convert one key depending on the others.
    keys = np.array(patient_keys, dtype=object) if isinstance(patient_keys, list) else patient_keys
    index, texts = distinct(pd.Series(keys))
    if (index < 0).any() or "" in texts:
        raise refusal("PATIENT_MISSING")
    if unit is not None:
        # Keys without a spelling are refused before (`unnamed_patients`).
        texts = [unit.spelled(text) or text for text in texts]
    merged, names = pd.factorize(np.array(texts, dtype=object))
    return merged[index], list(names)
