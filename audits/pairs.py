"""Neighbouring tables on which a flaw would show, made from a public domain alone.

Two tables are neighbours if one is the other and one patient more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
