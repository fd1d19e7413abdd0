"""A generated table with canaries: patients of whom each is in it by a fair coin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from storage.schema import TableSchema
from tasks.contributions import fold_of, hash_patients, hash_records
from tasks.encoding import decode, domain_of
from tasks.synthesizers.encoded import EncodedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedTable:
    """Generated patients of one row each, encoded: the canaries first, then those who are in.

    No row of anybody is read: codes and labels are uniform over the declared schema, so a canary
    may be anything that the schema allows, and two canaries have little in common.

    Parameters
    ----------
    schema
        The declared table.
    unit_column
        Column that names the patient, or None where each row is a patient.
    codes : uint16 array of shape (n, d)
    labels : uint16 array of shape (n,)
    included : bool array of shape (n_canaries,)
        The coins.
    """

    schema: TableSchema
    unit_column: str | None
    codes: NDArray[np.uint16]
    labels: NDArray[np.uint16]
    included: NDArray[np.bool_]

    @classmethod
    def draw(
        cls,
        schema: TableSchema,
        *,
        unit_column: str | None,
        canaries: int,
        others: int,
        rng: np.random.Generator,
    ) -> Self:
        """Draw patients and coins.

        Parameters
        ----------
        schema, unit_column
            As in the class.
        canaries, others
            Patients with a coin, and patients who are in the table for certain.
        rng
            Unseeded but in tests: the coins must be new.
        """
        domain, n = domain_of(schema), canaries + others
        codes = np.stack([rng.integers(0, k, n) for k in domain.n_codes], axis=1)
        return cls(
            schema=schema,
            unit_column=unit_column,
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

    def encoded(self) -> EncodedRows:
        """Encode all patients as an ingest does that reads one row of each."""
        n = len(self.labels)
        hashes = (
            hash_records(self.codes, self.labels)
            if self.unit_column is None
            else hash_patients(self._keys())
        )
        return EncodedRows(
            codes=self.codes, label=self.labels, weight=np.ones(n), fold=fold_of(hashes)
        )

    def source(self, *, rng: np.random.Generator) -> pd.DataFrame:
        """Write who is in the table as a source has it, in random order.

        Parameters
        ----------
        rng
            Source of the order and of the values inside the bins.
        """
        frame = decode(self.codes, self.labels, self.schema, rng=rng)
        if self.unit_column is not None:
            frame[self.unit_column] = self._keys()
        for name in self.schema.ignore:
            frame[name] = ""
        return frame[self.present].sample(frac=1.0, random_state=rng)

    def _keys(self) -> NDArray[np.object_]:
        return np.array([f"patient-{number}" for number in range(len(self.labels))], dtype=object)
