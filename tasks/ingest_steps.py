"""Steps that read the cohort: input gate, encoding, contribution bounding. Private throughout.

The table is read once, in chunks. Each chunk is checked, encoded by the schema alone and spread
over shards by a hash of the patient, so that memory does not grow with the rows and a patient's
rows meet in one shard, where their contribution is bounded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.errors import InputError
from storage.cohorts import CohortReader
from storage.diagnostics import DiagnosticsFile
from storage.schema import raw_text
from storage.workspace import PrivateWorkspace
from tasks import expectations
from tasks.contributions import (
    bound_contributions,
    fold_of,
    hash_patients,
    hash_records,
    part_of_patients,
    shard_of,
)
from tasks.encoding import EncodedChunk, encode_chunk
from tasks.run import ReleaseJob, stage
from tasks.violations import Rule, Violation, refuse_violations

N_SHARDS = 16
"""Shards of a table. A constant: the number of shards must not tell the number of rows."""


def ingest(
    job: ReleaseJob,
    reader: CohortReader,
    workspace: PrivateWorkspace,
    diagnostics: DiagnosticsFile,
) -> tuple[Path, ...]:
    """Read, check and encode the cohort into shards.

    Returns
    -------
    tuple of Path
        Shards in the private workspace, in order; some may hold no row.

    Raises
    ------
    InputError
        If the source is empty, has one label level only, changed while it was read, or breaks a
        rule of the schema. The message names column and rule; rows and values go to the
        diagnostics file.
    """
    n_chunks = 0
    # The first of each kind is enough to refuse: memory must not grow with the broken rows.
    violations: dict[tuple[str, Rule], Violation] = {}
    reports: list[expectations.GateReport] = []
    with stage("ingest"):
        for whole_frame in reader.chunks(job.columns_to_read):
            frame = _own_part(job, whole_frame)
            if frame.empty:
                continue
            reports.append(
                expectations.input_gate(frame, job.table_schema, patient_column=job.unit.column)
            )
            chunk = encode_chunk(frame, job.table_schema)
            broken = (*chunk.violations, *_absent_patients(frame, job.unit.column))
            _note_violations(diagnostics, frame, broken)
            for violation in broken:
                violations.setdefault((violation.column, violation.rule), violation)
            if not broken:
                _spread(job, workspace, frame, chunk, n_chunks)
            n_chunks += 1
    with stage("input-gate"):
        if n_chunks == 0:
            raise InputError("EMPTY_TABLE", "expected rows in the source, found an empty table")
        refuse_violations(
            list(violations.values()),
            diagnostics=f"{diagnostics.pointer} (restricted; folder diagnostics of CLUSTMIX_HOME)",
        )
        report = expectations.merge(reports)
        if not report.passed:
            failed = "; ".join(check.title for check in report.failed_checks)
            raise InputError(
                "INPUT_GATE", f"the source breaks these declared rules: {failed}; correct the feed"
            )
    with stage("bound-contributions"):
        return _bound(job, workspace, n_chunks)


def _own_part(job: ReleaseJob, frame: pd.DataFrame) -> pd.DataFrame:
    """Keep the patients of the declared part; nothing else of this release sees the others.

    Rows that name no patient are kept as well: they are refused, as in every release.
    """
    if job.partition is None:
        return frame
    named = np.ones(len(frame), dtype=np.bool_)
    for violation in _absent_patients(frame, job.unit.column):
        named[violation.rows] = False
    keep = ~named
    keep[named] = (
        part_of_patients(
            frame[job.unit.column][named],
            scheme=job.partition.scheme,
            parts=job.partition.parts,
        )
        == job.partition.part
    )
    return frame[keep]


def _spread(
    job: ReleaseJob,
    workspace: PrivateWorkspace,
    frame: pd.DataFrame,
    chunk: EncodedChunk,
    number: int,
) -> None:
    """Write the rows of a chunk to one piece per shard, by a hash of the patient."""
    codes, label = chunk.codes[chunk.valid], chunk.label[chunk.valid]
    if job.unit.column is None:
        hashes = hash_records(codes, label)
        keys = np.zeros(len(label), dtype="U1")
    else:
        patients = frame[job.unit.column][chunk.valid]
        hashes = hash_patients(patients)
        # As the hash reads them: a patient must not become two where a source stores 5 and 5.0.
        index, uniques = pd.factorize(patients)
        names = [raw_text(value) for value in uniques.tolist()]
        keys = np.array(names, dtype=np.str_)[index]
    shards = shard_of(hashes, N_SHARDS)
    for shard in range(N_SHARDS):
        member = shards == shard
        workspace.write_arrays(
            _piece(shard, number),
            codes=codes[member],
            label=label[member],
            fold=fold_of(hashes[member]),
            keys=keys[member],
        )


def _bound(job: ReleaseJob, workspace: PrivateWorkspace, n_chunks: int) -> tuple[Path, ...]:
    """Join the pieces of each shard and bound what each patient contributes."""
    paths, levels = [], set[int]()
    for shard in range(N_SHARDS):
        pieces = [workspace.read_arrays(_piece(shard, number)) for number in range(n_chunks)]
        codes, label, fold = (
            np.concatenate([piece[name] for piece in pieces]) for name in ("codes", "label", "fold")
        )
        keep = np.ones(len(label), dtype=np.bool_)
        weight: NDArray[np.float64] = np.ones(len(label))
        if job.unit.column is not None:
            keys = np.concatenate([piece["keys"] for piece in pieces])
            keep, weight = bound_contributions(keys, job.unit.max_rows)
        levels.update(np.unique(label[keep]).tolist())
        name = f"shard-{shard:04d}.npz"
        workspace.write_arrays(
            name, codes=codes[keep], label=label[keep], weight=weight[keep], fold=fold[keep]
        )
        paths.append(workspace.path(name))
        for number in range(n_chunks):
            workspace.path(_piece(shard, number)).unlink()
    if not levels:
        raise InputError(
            "EMPTY_TABLE",
            f"column {job.table_schema.label.name}: expected rows with a label, found none",
        )
    if len(levels) < 2:
        raise InputError(
            "ONE_LABEL_LEVEL",
            f"column {job.table_schema.label.name}: expected two or more label levels in the "
            "source, found one; a classifier cannot be trained on it",
        )
    return tuple(paths)


def _piece(shard: int, number: int) -> str:
    return f"piece-{shard:04d}-{number:06d}.npz"


def _absent_patients(frame: pd.DataFrame, column: str | None) -> tuple[Violation, ...]:
    """Return the rows that name no patient, whose contribution could not be bounded."""
    if column is None:
        return ()
    index, uniques = pd.factorize(frame[column], use_na_sentinel=True)
    # The last entry serves index -1, a null.
    empty = np.array([*(raw_text(value) == "" for value in uniques.tolist()), True])
    rows = np.flatnonzero(empty[index])
    return (Violation(rule=Rule.NOT_NULL, column=column, rows=rows),) if len(rows) else ()


def _note_violations(
    diagnostics: DiagnosticsFile, frame: pd.DataFrame, violations: tuple[Violation, ...]
) -> None:
    for violation in violations:
        values = frame[violation.column].iloc[violation.rows]
        diagnostics.add(violation.column, str(violation.rule), values.index, values)
