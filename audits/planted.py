"""A generated table of canaries, each in it by a fair coin, and of other patients."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes
from tasks.ingest.contributions import fold_of, hash_names, hash_records
from tasks.measurement.encoded import EncodedRows, EncodingDomain

SQUARE = 4
"""Pixels along a side of the squares of a generated image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedTable:
    """Generated patients of one row each: canaries with coins (n_canaries,), then the others.

    Codes (n, d) and labels (n,) are uniform over the declared domain, so a canary may be anything
    that a schema allows, and two have little in common. Images are of black and white squares: of
    single pixels all would look alike to features that pool. If not `named`, each row is a patient.
    """

    domain: EncodingDomain
    named: bool
    codes: Codes
    labels: Codes
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
        if domain.image is None:
            codes = np.stack([rng.integers(0, k, n) for k in domain.n_codes], axis=1)
        else:
            codes = _squares(n, *domain.image, rng) * (domain.n_codes[0] - 1)
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
    def others(self) -> NDArray[np.bool_]:
        """Mask of the patients without a coin."""
        return np.arange(len(self.labels)) >= self.n_canaries

    @property
    def present(self) -> NDArray[np.bool_]:
        """Mask of the patients who are in the table."""
        present = self.others
        present[: self.n_canaries] = self.included
        return present

    @property
    def keys(self) -> NDArray[np.object_]:
        """Names of the patients."""
        return np.array([f"patient-{number}" for number in range(len(self.labels))], dtype=object)

    def encoded(self) -> EncodedRows:
        """Encode all patients as an ingest does that reads one row of each."""
        hashes = hash_records(self.codes, self.labels)
        if self.named:
            hashes = hash_names(self.keys.tolist())
        return EncodedRows(
            codes=self.codes,
            label=self.labels,
            weight=np.ones(len(self.labels)),
            fold=fold_of(hashes),
        )


def _squares(
    n: int, height: int, width: int, channels: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Images (n, pixels) of squares of `SQUARE` pixels a side, each 0 or 1."""
    shape = (n, -(-height // SQUARE), -(-width // SQUARE), channels)
    squares = rng.integers(0, 2, shape).repeat(SQUARE, axis=1).repeat(SQUARE, axis=2)
    return squares[:, :height, :width].reshape(n, -1)
