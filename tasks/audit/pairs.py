"""Tables without a private row on which a flaw would show, made from the public domain alone.

Neighbouring tables are with and without one patient; a table with canaries holds each of them by a
fair coin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Codes
from tasks.ingest.contributions import fold_of, hash_patients, hash_records
from tasks.measurement.encoded import N_FOLDS, EncodedRows, EncodingDomain

AUDIT_DOMAIN = EncodingDomain(
    column_names=("age", "ward"),
    n_codes=(3, 2),
    has_missing=(True, False),
    numeric=(True, False),
    label_levels=("no", "yes"),
)
"""A table of two columns and two labels: small enough for thousands of runs."""

OTHERS = 20
"""Patients whom both tables of a pair hold."""

CANARY_ROWS = 4
"""Rows of a patient who has several."""

SQUARE = 4
"""Pixels along a side of the squares of a generated image."""

Record = tuple[tuple[int, ...], int]
"""Codes of the columns, and the label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPatient:
    """One patient of an audit's table: records and fold."""

    records: tuple[Record, ...]
    fold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourPair:
    """Two tables that differ in one patient."""

    name: str
    others: tuple[AuditPatient, ...]
    patient: AuditPatient
    n_columns: int

    def rows(self, *, present: bool) -> EncodedRows:
        """Encode the table with or without the patient."""
        patients = (*self.others, self.patient) if present else self.others
        return encode(patients, n_columns=self.n_columns)


def encode(patients: Sequence[AuditPatient], *, n_columns: int) -> EncodedRows:
    """Encode patients as the curated path does: every row of a patient weighs ``1 / m``."""
    rows = [
        (codes, label, 1.0 / len(patient.records), patient.fold)
        for patient in patients
        for codes, label in patient.records
    ]
    return EncodedRows(
        codes=np.array([row[0] for row in rows], dtype=np.uint16).reshape(-1, n_columns),
        label=np.array([row[1] for row in rows], dtype=np.uint16),
        weight=np.array([row[2] for row in rows], dtype=np.float64),
        fold=np.array([row[3] for row in rows], dtype=np.uint8),
    )


def neighbour_pairs(domain: EncodingDomain) -> tuple[NeighbourPair, ...]:
    """Pairs for every way in which one patient is known to have broken an analysis."""
    first = (0,) * domain.n_columns
    last = tuple(n_codes - 1 for n_codes in domain.n_codes)
    rare_label = domain.n_labels - 1
    crowd = tuple(
        AuditPatient(records=((first, 0),), fold=1 + i % (N_FOLDS - 1)) for i in range(OTHERS)
    )
    scattered: tuple[Record, ...] = tuple(
        (tuple((i + j) % n for j, n in enumerate(domain.n_codes)), i % domain.n_labels)
        for i in range(CANARY_ROWS)
    )

    def pair(
        name: str,
        records: tuple[Record, ...],
        *,
        others: tuple[AuditPatient, ...] = crowd,
        fold: int = 1,
    ) -> NeighbourPair:
        patient = AuditPatient(records=records, fold=fold)
        return NeighbourPair(name=name, others=others, patient=patient, n_columns=domain.n_columns)

    # With what a flaw would have to do.
    return (
        pair("empty table", ((first, 0),), others=()),  # nothing hides the only patient
        pair("outlier", ((last, 0),)),  # codes that nobody else has: scaling and cells
        pair("rare label", ((first, rare_label),)),  # nobody else has it: class counts
        pair("same rows", ((last, 0),) * CANARY_ROWS),  # one record many times: the weights
        pair("scattered rows", scattered),  # in several cells and labels: the weights
        pair("validation", ((last, 0),), fold=0),  # the only patient of the validation fold
    )


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
        hashes = hash_patients(self.keys) if self.named else hash_records(self.codes, self.labels)
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
