"""A generated table with canaries: patients of whom each is in it by a fair coin."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tasks.ingest.contributions import fold_of, hash_patients, hash_records
from tasks.measurement.encoded import EncodedRows, EncodingDomain


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedTable:
    """Generated patients of one row each, encoded: the canaries first, then those who are in.

    No row of anybody is read: codes and labels are uniform over the declared domain, so a canary
    may be anything that a schema allows, and two canaries have little in common.

    `codes` has shape (n, d), `labels` (n,) and `included`, the coins, (n_canaries,). Where no
    column names the patients, each row is one.
    """

    domain: EncodingDomain
    named: bool
    codes: NDArray[np.uint16]
    labels: NDArray[np.uint16]
    included: NDArray[np.bool_]

    @classmethod
    def draw(
        cls,
        domain: EncodingDomain,
        *,
        named: bool,
        canaries: int,
        others: int,
        rng: np.random.Generator,
    ) -> Self:
        """Draw patients with a coin, and others; `rng` is unseeded but in tests."""
        n = canaries + others
        codes = np.stack([rng.integers(0, k, n) for k in domain.n_codes], axis=1)
        return cls(
            domain=domain,
            named=named,
            codes=codes.astype(np.uint16),
            labels=rng.integers(0, domain.n_labels, n).astype(np.uint16),
            included=rng.integers(0, 2, canaries).astype(np.bool_),
        )

    @property
    def n_canaries(self) -> int:
        """Number of patients with a coin."""
        return len(self.included)

    @property
    def everybody(self) -> NDArray[np.bool_]:
        """Mask of all patients, in the table or not."""
        return np.ones(len(self.labels), dtype=np.bool_)

    @property
    def others(self) -> NDArray[np.bool_]:
        """Mask of the patients without a coin."""
        return np.arange(len(self.labels)) >= self.n_canaries

    @property
    def present(self) -> NDArray[np.bool_]:
        """Mask of the patients who are in the table."""
        present = self.everybody
        present[: self.n_canaries] = self.included
        return present

    @property
    def keys(self) -> NDArray[np.object_]:
        """Names of the patients."""
        return np.array([f"patient-{number}" for number in range(len(self.labels))], dtype=object)

    def encoded(self) -> EncodedRows:
        """Encode all patients as an ingest does that reads one row of each."""
        hashes = hash_patients(self.keys) if self.named else hash_records(self.codes, self.labels)
        return EncodedRows(
            codes=self.codes,
            label=self.labels,
            weight=np.ones(len(self.labels)),
            fold=fold_of(hashes),
        )
