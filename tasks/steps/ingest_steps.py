"""Steps that read the cohort: input gate, encoding, contribution bounding. Private throughout.

The table is read once. Its rows are checked, encoded by the schema alone and spread over shards
by a hash of the patient, so that memory does not grow with the rows and a patient's rows meet in
one shard, where their contribution is bounded. Parquet and image files are read by the workers, in
fragments; a text file, a query and a library's data set have no place to begin but the first row,
and are read in this process, in chunks. See `tasks.ingest.pieces`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from privacy.errors import InputError
from storage.files.diagnostics import DiagnosticsFile
from storage.files.workspace import PrivateWorkspace
from storage.ledger.register import PatientRegister
from storage.sources.cohorts import CohortReader
from tasks.execution.executor import IN_PROCESS, Executor
from tasks.execution.runtime import stage
from tasks.ingest import pieces
from tasks.ingest.patient_rows import N_SHARDS, require_levels
from tasks.ingest.violations import Violation, refuse_violations

N_FRAGMENTS = 64
"""Fragments of a source that workers read. A constant, as `N_SHARDS` is; more than there are
workers, so that a lost one costs little."""


def ingest(
    columns: tuple[str, ...],
    rules: pieces.IngestRules,
    reader: CohortReader,
    *,
    workspace: PrivateWorkspace,
    diagnostics: DiagnosticsFile,
    executor: Executor = IN_PROCESS,
    register: PatientRegister | None = None,
) -> tuple[Path, ...]:
    """Read, check and encode the cohort into shards; by entry, the patients of a register.

    The executor reads a Parquet source and bounds contributions; its workers reach the workspace by
    the same path, and the shards, in order, are the same bytes on any; some may hold no row. It is
    an InputError if the source is empty, has one label level, changed meanwhile, or breaks a rule
    of the schema. The message names column and rule; rows and values go to diagnostics.
    """
    folders = {n: rules.histories.folder(workspace.folder, n) for n in reader.beside}
    with stage("ingest"):
        if rules.entry is not None and rules.partition is not None and register is not None:
            names = dict.fromkeys((str(rules.unit.column), rules.entry.column))
            frames = reader.chunks(tuple(names))
            first = pieces.first_periods(frames, rules.unit, rules.entry, diagnostics)
            if not first:
                raise _empty()
            period = rules.partition.part
            entered = register.choose(name for name, periods in first.items() if period in periods)
            for folder in (workspace.folder, *folders.values()):
                pieces.write_entrants(folder, entered)
        shared: Any = {"diagnostics": diagnostics, "executor": executor}
        header = reader.header() if rules.schema.derived else ()
        own_columns = (*columns, *(name for name in rules.schema.derived if name in header))
        broken = _read(own_columns, rules, reader, folder=workspace.folder, **shared)
        every, fragments = [*broken], dict[str, int]()
        for name, folder in folders.items():
            names, own = rules.histories.of(name, rules)
            try:
                found = _read(names, own, reader.beside[name], folder=folder, **shared)
            except InputError as error:
                raise InputError(error.code, f"events, {name}: {error.message}") from None
            every += found
            fragments[name] = len(found)
        if folders:
            rules = replace(rules, histories=replace(rules.histories, fragments=fragments))
    with stage("input-gate"):
        no_rows = np.empty(0, dtype=np.intp)  # they are in the diagnostics
        refuse_violations(
            [
                Violation(rule=rule, column=column, rows=no_rows)
                for column, rule in dict.fromkeys(chain(*every))
            ],
            diagnostics=f"{diagnostics.pointer} (restricted; folder diagnostics of CLUSTMIX_HOME)",
        )
        for name, n in ({"": len(broken)} | fragments).items():
            if not pieces.has_rows(folders.get(name, workspace.folder), n):
                raise _empty(f" of {name}" if name else "")
    with stage("bound-contributions"):
        return bound(rules, workspace, len(broken), executor)


def _empty(of_table: str = "") -> InputError:
    return InputError("EMPTY_TABLE", f"expected rows in the source{of_table}, found an empty table")


def _read(
    columns: tuple[str, ...],
    rules: pieces.IngestRules,
    reader: CohortReader,
    *,
    folder: Path,
    diagnostics: DiagnosticsFile,
    executor: Executor,
) -> Sequence[pieces.BrokenRules]:
    fragments = reader.fragments(columns, N_FRAGMENTS, map=executor.map)
    if fragments is None:
        own = pieces.spread_fragment(
            reader.chunks(columns), rules, number=0, workspace=folder, diagnostics=diagnostics
        )
        return [own]
    read = partial(pieces.read_fragment, workspace=folder, rules=rules)
    broken: list[pieces.BrokenRules] = []
    unreadable: InputError | None = None
    try:
        broken = executor.map(read, enumerate(fragments))
    except InputError as error:
        unreadable = error
    # First of all: a change may be why a file could not be read, or why a rule is broken.
    reader.check_unchanged(map=executor.map)
    for number in range(len(fragments)):
        diagnostics.take(pieces.diagnostics_of(folder, number))
    if unreadable is not None:
        raise unreadable
    return broken


def bound(
    rules: pieces.IngestRules, workspace: PrivateWorkspace, n_fragments: int, executor: Executor
) -> tuple[Path, ...]:
    """Join the pieces of each shard and bound what each patient contributes."""
    bound_one = partial(
        pieces.bound_shard, n_fragments=n_fragments, workspace=workspace.folder, rules=rules
    )
    levels = executor.map(bound_one, range(N_SHARDS))
    if rules.histories is not None:
        levels = rules.histories.checked(levels, rules)
    for folder in (workspace.folder, *workspace.folder.glob("events-*")):
        pieces.remove_pieces(folder)
    if rules.entry is None:  # whether a period is released depends on no patient
        require_levels(levels, rules.schema)
    return tuple(pieces.shard_path(workspace.folder, shard) for shard in range(N_SHARDS))
