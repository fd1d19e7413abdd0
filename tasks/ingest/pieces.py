"""Encoding of one fragment of the cohort, and bounding of one shard, on any worker. Private.

A fragment is read in bounded batches; each batch is checked, encoded by the schema alone and
written as one piece per shard. A shard joins its pieces in the order of the source, whoever wrote
them. A piece written again after the loss of a worker is the same. Only declared names leave.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Floats
from privacy.charges import Partition
from privacy.errors import InputError
from privacy.parameters import PrivacyUnit
from storage.files.diagnostics import DiagnosticsFile
from storage.files.workspace import load_arrays, replaced, store_arrays
from storage.schema.table import TableSchema
from storage.schema.visit_columns import ByEntry, VisitColumns
from storage.sources.cells import NumberMarks, distinct, with_plain_numbers
from storage.sources.declared_images import FILE_NAME, RefusedFiles
from storage.sources.reading import Fragment, RefusedRow
from tasks.gates.suites import Suite, cells_of, unexpected_rows
from tasks.ingest.contributions import named_patients, part_of_patients
from tasks.ingest.encoding import encode_chunk
from tasks.ingest.patient_rows import (
    N_SHARDS,
    bounded_rows,
    first_visits,
    joined,
    levels_of,
    moments_of,
    rows_by_shard,
    unnamed_patients,
    unordered,
)
from tasks.ingest.shards import store_rows
from tasks.ingest.violations import EncodedChunk, Rule, Violation, refuse_violations, rows_of

_ENTRANTS = "entrants.json"
_COMMA = " (a CSV file may declare decimal: ',')"

BrokenRules: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of a column and a rule that some row breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRules:
    """Public rules of an ingest; ``partition`` is the part of the patients that is read.

    ``schema`` is that of the release; `row_schema` is that of a source row, which differs with
    `visits`. ``marks`` are those of numbers in a text file, None for other sources; ``suite`` is
    the owner's own, if any. A check also counts cells by ``tally``, for its owner
    (`tasks.ingest.findings`); a release does not. ``histories`` are tables of events beside the
    patients (`tasks.histories.event_shards`), whose rows have a ``coder`` and columns ``of_table``.
    """

    schema: TableSchema
    unit: PrivacyUnit
    partition: Partition | None
    entry: ByEntry | None = None
    visits: VisitColumns | None = None
    marks: NumberMarks | None = None
    suite: Suite | None = None
    tally: Callable[..., Counter[Any]] | None = None
    histories: Any = None
    coder: Callable[[pd.DataFrame], tuple[EncodedChunk, Floats | None]] | None = None
    of_table: str = ""

    @property
    def row_schema(self) -> TableSchema:
        """Schema of a row of the source."""
        return self.schema if self.visits is None else self.visits.row_schema(self.schema)


def read_fragment(
    item: tuple[int, Fragment], *, workspace: Path, rules: IngestRules
) -> BrokenRules:
    """Read, check and spread a numbered fragment; see `diagnostics_of` for broken rows."""
    number, fragment = item
    staged = workspace / f"staged-{os.urandom(8).hex()}.jsonl"
    try:
        return spread_fragment(
            fragment.frames(),
            rules,
            number=number,
            workspace=workspace,
            diagnostics=DiagnosticsFile(staged),
        )
    finally:
        if staged.exists():
            os.replace(staged, diagnostics_of(workspace, number))


def spread_fragment(
    frames: Iterable[pd.DataFrame],
    rules: IngestRules,
    *,
    number: int,
    workspace: Path,
    diagnostics: DiagnosticsFile,
) -> BrokenRules:
    """Check and encode the rows of a fragment; write pieces, and broken rows to diagnostics."""
    n_batches = 0
    # One of each kind is enough to refuse, and memory must not grow with broken rows.
    broken: dict[tuple[str, str], None] = {}
    schema, visits = rules.row_schema, rules.visits
    tallied = Counter[Any]()
    for whole_frame in _readable(frames, broken, diagnostics):
        frame = _own_part(rules, whole_frame, workspace)
        if frame.empty and rules.entry is None:  # a period may be without patients
            continue
        if rules.marks not in (None, NumberMarks()):
            numbers = (*schema.columns, *schema.derived_columns)
            frame = with_plain_numbers(frame, numbers, rules.marks)
        chunk, moments = rules.coder(frame) if rules.coder else (encode_chunk(frame, schema), None)
        violations = (*chunk.violations, *unnamed_patients(frame, rules.unit))
        if visits is not None:
            # A row without a label is no visit and has no moment.
            moments = np.where(chunk.valid, moments_of(frame[visits.order], visits), 0.0)
            violations += unordered(moments, visits)
        if rules.suite is not None:
            own = cells_of(schema, rules.unit.column, None if visits is None else visits.order)
            violations += tuple(
                Violation(rule=rule, column=column, rows=rows)
                for rule, column, rows in unexpected_rows(frame, rules.suite, own)
            )
        if rules.tally is not None:
            tallied += rules.tally(frame, rules, violations)
            store_tally(workspace, f"{number:06d}", tallied)
        for violation in violations:
            values = frame[violation.column].iloc[violation.rows]
            name = violation.column + rules.of_table
            diagnostics.add(name, str(violation.rule), values.index, values)
            helps = violation.rule == Rule.NUMBER and getattr(rules.marks, "decimal", "") == "."
            broken.setdefault((name, violation.rule + _COMMA * helps))
        if not violations:
            divided = rows_by_shard(frame, chunk, rules.unit, N_SHARDS, moments=moments)
            for shard, rows in enumerate(divided):
                store_rows(_piece(workspace, shard, (number, n_batches)), rows)
            n_batches += 1
    store_arrays(_batches_of(workspace, number), n_batches=np.array([n_batches]))
    return tuple(broken)


def _readable(
    frames: Iterable[pd.DataFrame],
    broken: dict[tuple[str, str], None],
    diagnostics: DiagnosticsFile,
) -> Iterator[pd.DataFrame]:
    """Yield frames; files, and places of rows, that break a rule go to diagnostics."""
    refusal = None
    try:
        yield from frames
    except RefusedRow as refused:
        diagnostics.add("", refused.message, [refused.row], [refused.place])
        refusal = InputError(refused.code, refused.message)
    except RefusedFiles as refused:
        for rule in dict.fromkeys(rule for rule, *_ in refused.broken):
            rows, names = zip(*((r, n) for own, r, n in refused.broken if own is rule), strict=True)
            diagnostics.add(FILE_NAME, str(rule), rows, names)
            broken.setdefault((FILE_NAME, rule))
    if refusal is not None:
        raise refusal


def bound_shard(
    shard: int, *, n_fragments: int, workspace: Path, rules: IngestRules
) -> tuple[bool, ...]:
    """Bound a shard's contributions; return for each label level true if a row has it.

    With tables of events, the findings of `Histories.joined` follow. Pieces stay for repeated work.
    """
    keyed, found = rows_of_shard(workspace, shard, n_fragments), ()
    if rules.visits is not None:
        keyed = first_visits(keyed, rules.schema, rules.visits)
    if rules.histories is not None:
        keyed, found = rules.histories.joined(keyed, shard, workspace, rules)
    rows = bounded_rows(keyed, rules.unit)
    store_rows(shard_path(workspace, shard), rows)
    return (*levels_of(rows, rules.schema), *found)


def rows_of_shard(workspace: Path, shard: int, n_fragments: int) -> Any:
    """Join the pieces of a shard in the order of the source."""
    pieces = _pieces_of(workspace, n_fragments)
    return joined([load_arrays(_piece(workspace, shard, piece)) for piece in pieces])


def has_rows(workspace: Path, n_fragments: int) -> bool:
    """Return whether a fragment had rows."""
    return next(_pieces_of(workspace, n_fragments), None) is not None


def remove_pieces(workspace: Path) -> None:
    """Delete the pieces after the shards are complete."""
    for pattern in ("piece-*.npz", "batches-*.npz"):
        for path in workspace.glob(pattern):
            path.unlink()


def shard_path(workspace: Path, shard: int) -> Path:
    """Return the file of a shard."""
    return workspace / f"shard-{shard:04d}.npz"


def diagnostics_of(workspace: Path, number: int) -> Path:
    """Return the diagnostics file of a fragment, which exists if rows are broken."""
    return workspace / f"broken-{number:06d}.jsonl"


def _piece(folder: Path, shard: int, piece: tuple[int, int]) -> Path:
    number, batch = piece
    return folder / f"piece-{shard:04d}-{number:06d}-{batch:06d}.npz"


def store_tally(folder: Path, name: str, counted: Counter[Any]) -> None:
    """Write the counts of a fragment, or of the joined events of a shard."""
    with replaced(folder / f"tally-{name}.json") as handle:
        handle.write(json.dumps([*counted.items()]).encode())


def tallied_cells(workspace: Path) -> Counter[Any]:
    """Return all counts of patients, then of tables of events, added up."""
    counted = Counter[Any]()
    for folder in (workspace, *sorted(workspace.glob("events-*"))):
        for path in sorted(folder.glob("tally-*.json")):  # in the order of the source
            counted.update({tuple(key): n for key, n in json.loads(path.read_bytes())})
    return counted


def _pieces_of(folder: Path, n_fragments: int) -> Iterator[tuple[int, int]]:
    """Yield fragment and batch of every piece, in the order of the source."""
    for number in range(n_fragments):
        n_batches = int(load_arrays(_batches_of(folder, number))["n_batches"][0])
        yield from ((number, batch) for batch in range(n_batches))


def _batches_of(folder: Path, number: int) -> Path:
    """Return the file with the number of batches, which reveals a lost piece."""
    return folder / f"batches-{number:06d}.npz"


def first_periods(
    frames: Iterable[pd.DataFrame], unit: PrivacyUnit, entry: ByEntry, diagnostics: DiagnosticsFile
) -> dict[str, list[str]]:
    """Return the first `at_most` periods of each patient, in order; a row without one is refused.

    They depend on the patient's rows alone. Rows that name no patient are refused later.
    """
    first: dict[str, list[str]] = {}
    broken: dict[tuple[str, str], None] = {}
    for whole_frame in _readable(frames, broken, diagnostics):
        frame = whole_frame[~_without_patient(whole_frame, unit)]
        index, texts = distinct(frame[entry.column])
        periods = [*map(entry.period_of, texts), None]  # the last serves index -1, an empty cell
        undated = np.array([period is None for period in periods])[index]
        if undated.any():
            values = frame[entry.column][undated]
            diagnostics.add(entry.column, str(Rule.DATE), values.index, values)
            broken.setdefault((entry.column, Rule.DATE))
        patient, names = named_patients(frame[unit.column], unit)
        for who, when in set(zip(patient.tolist(), index.tolist(), strict=True)):
            known, period = first.setdefault(names[who], []), periods[when]
            if period is not None and period not in known:
                first[names[who]] = sorted([*known, period])[: entry.at_most]
    none = np.empty(0, dtype=np.intp)
    found = [Violation(rule=rule, column=column, rows=none) for column, rule in broken]
    refuse_violations(found, diagnostics=diagnostics.pointer)
    return first


def write_entrants(workspace: Path, names: Collection[str]) -> None:
    """Write the patients who are read by entry, for `read_fragment` on any worker."""
    with replaced(workspace / _ENTRANTS) as handle:
        handle.write(json.dumps(sorted(names)).encode())


@lru_cache(maxsize=1)
def _entrants(workspace: Path) -> frozenset[str]:
    return frozenset(json.loads((workspace / _ENTRANTS).read_bytes()))


def _without_patient(frame: pd.DataFrame, unit: PrivacyUnit) -> NDArray[np.bool_]:
    return rows_of(unnamed_patients(frame, unit), len(frame))


def _own_part(rules: IngestRules, frame: pd.DataFrame, workspace: Path) -> pd.DataFrame:
    """Keep the patients of the declared part, and rows without a patient for later refusal."""
    own = rules.partition
    if own is None:
        return frame
    keep = _without_patient(frame, rules.unit)
    keys = frame[rules.unit.column][~keep]
    if own.parts is None:
        read, (patient, names) = _entrants(workspace), named_patients(keys, rules.unit)
        keep[~keep] = np.array([name in read for name in names], dtype=np.bool_)[patient]
    else:
        part = part_of_patients(keys, scheme=own.scheme, parts=own.parts, unit=rules.unit)
        keep[~keep] = part == own.part
    return frame[keep]
