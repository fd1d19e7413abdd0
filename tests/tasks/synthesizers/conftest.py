from dataclasses import dataclass

import numpy as np
import pytest

from tasks.measurement.encoded import N_FOLDS, EncodedRows, EncodingDomain


@dataclass(frozen=True)
class SmallTable:
    """A public domain of three columns and two labels, and ways to fill it."""

    domain: EncodingDomain

    def rows(self, patients):
        """Encode patients given as ``(fold, [(codes, label), ...])``; weights are ``1 / m``."""
        codes = [codes for _, records in patients for codes, _ in records]
        return EncodedRows(
            codes=np.array(codes, dtype=np.uint16).reshape(-1, self.domain.n_columns),
            label=np.array([y for _, records in patients for _, y in records], dtype=np.uint16),
            weight=np.array([1.0 / len(r) for _, r in patients for _ in r], dtype=np.float64),
            fold=np.array([fold for fold, r in patients for _ in r], dtype=np.uint8),
            patient=np.array(
                [number for number, (_, r) in enumerate(patients) for _ in r], dtype=np.uint32
            ),
        )

    def patients(self, n, seed):
        """Draw ``n`` patients of one to four uniform records each."""
        rng = np.random.default_rng(seed)
        return [
            (
                int(rng.integers(N_FOLDS)),
                [
                    (
                        [int(rng.integers(width)) for width in self.domain.n_codes],
                        int(rng.integers(self.domain.n_labels)),
                    )
                    for _ in range(rng.integers(1, 5))
                ],
            )
            for _ in range(n)
        ]


def take(rows, index):
    return EncodedRows(
        codes=rows.codes[index],
        label=rows.label[index],
        weight=rows.weight[index],
        fold=rows.fold[index],
        patient=rows.patient[index],
    )


@pytest.fixture(scope="session")
def small():
    return SmallTable(
        EncodingDomain(
            column_names=("age", "ward", "lab"),
            n_codes=(4, 2, 3),
            has_missing=(True, False, False),
            numeric=(True, False, True),
            label_levels=("no", "yes"),
        )
    )


@pytest.fixture(scope="session")
def take_rows():
    """Rows of an index or mask."""
    return take


@pytest.fixture(scope="session")
def in_shards():
    """Rows in a given order, split at given positions; neighbours may leave a shard empty."""

    def split(rows, order, cuts):
        return [take(rows, part) for part in np.split(np.asarray(order), sorted(cuts))]

    return split
