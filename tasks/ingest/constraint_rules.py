"""A schema's constraints as rules of codes and numbers, checked and repaired row by row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Indices, Integers
from privacy.errors import refusals
from storage.schema.columns import Column, NumericColumn, codes_asked
from storage.schema.constraints import Constraint, related_columns
from storage.schema.table import TableSchema
from tasks.ingest.violations import EncodedChunk, Violation
from tasks.measurement.record_rules import LABEL, MAX_COMBINATIONS, Bins, Box, RecordRules, Relation

refusal = refusals(__package__)

Bools = NDArray[np.bool_]


def rules_of(schema: TableSchema) -> RecordRules | None:
    """Return the rules of a schema; None without constraints.

    It is a ConfigurationError if no record keeps them, or too many combinations need checking.
    """
    own = {*TableSchema.model_fields}
    return _rules_of(schema.model_dump_json(include=own)) if schema.rules else None


@lru_cache(maxsize=8)
def _rules_of(declared: str) -> RecordRules:
    # Analysis of the rules may take seconds and is cached with them.
    schema = TableSchema.model_validate_json(declared)
    related, decimals = related_columns(schema.constraints, schema.columns)
    boxes = [box for one in schema.rules for box in _boxes(one, schema)]
    counted = [
        Relation(parts=(base,), total=own, least=0, most=0, counted=True)
        for own, base in schema.bases.items()
        if own in related
    ]
    relations = counted + [each for one in schema.constraints for each in _relations(one, schema)]
    rules = RecordRules(
        n_codes=tuple(column.n_codes for column in schema.columns),
        n_labels=len(schema.labels.level_names),
        boxes=tuple(boxes),
        relations=tuple(relations),
        bins={index: _bins(column, decimals) for index, column in related.items()},
    )
    groups = [(group.columns, len(group.codes)) for group in rules.combinations]
    for columns, n_kept in [*groups, ((), int(rules.possible_labels.sum()))]:
        if n_kept == 0:
            names = ", ".join(schema.column_names[column] for column in columns)
            names = names or schema.labels.name
            raise refusal("CONSTRAINTS_IMPOSSIBLE", names=names)
    if not rules.all_listed:
        raise refusal("CONSTRAINTS_WIDE", max_combinations=MAX_COMBINATIONS)
    return rules


def grid_bins(column: NumericColumn) -> tuple[Integers, Integers]:
    """Return first and last number of each bin, in units of the last declared decimal."""
    scale = 10**column.grid_decimals
    first = np.rint(np.asarray(column.bin_starts) * scale).astype(np.int64)
    return first, np.append(first[1:] - 1, round(column.upper * scale))


def held(chunk: EncodedChunk, schema: TableSchema, *, mend: bool) -> list[Violation]:
    """Check rows against the constraints; mend them in place, in the order of the list.

    Each constraint is then checked again. Rows without a label or with a broken cell are left out.

    Privacy
    -------
    A map of each row by itself under public rules.
    """
    sound = chunk.valid.copy()
    for violation in chunk.violations:
        sound[violation.rows] = False

    def broken_rows(constraint: Constraint) -> Indices:
        return np.flatnonzero(_broken(constraint, chunk, schema) & sound)

    violations: list[Violation] = []
    for constraint in schema.constraints if mend else ():
        if constraint.mend:
            _mend(chunk, broken_rows(constraint), constraint, schema)
    for constraint in schema.rules:
        broken = broken_rows(constraint)
        if len(broken):
            violations += [
                Violation(rule=words(constraint), column=name, rows=broken)
                for name in constraint.columns
            ]
    return violations


def words(constraint: Constraint) -> str:
    """Return a constraint as the text of a rule in an error."""
    return f"the constraint {constraint.title!r}"


def _broken(constraint: Constraint, rows: EncodedChunk, schema: TableSchema) -> Bools:
    found = np.zeros(len(rows.label), dtype=np.bool_)
    for box in _boxes(constraint, schema):
        found |= box.broken(rows.codes, rows.label)
    for relation in _relations(constraint, schema):
        related, decimals = related_columns(schema.constraints, schema.columns)
        every, numbers, present = since_zero(rows.numbers, schema), {}, {}
        for index in relation.columns:
            column = related[index]
            numbers[index] = every[index] * 10 ** (decimals - column.grid_decimals)
            present[index] = rows.codes[:, index] < column.n_bins
        found |= relation.broken(numbers, present)
    return found


def since_zero(
    numbers: Mapping[int, Integers], schema: TableSchema, whole: Collection[int] = ()
) -> dict[int, Integers]:
    """Return the numbers of columns, with what each is counted from unless it is in `whole`."""
    found = dict(numbers)
    for own, base in schema.bases.items():
        if own not in whole:
            found[own] = found[own] + found[base]
    return found


def _mend(rows: EncodedChunk, broken: Indices, constraint: Constraint, schema: TableSchema) -> None:
    for name, value in (constraint.mend or {}).items():
        index = schema.column_names.index(name)
        column = schema.columns[index]
        if isinstance(column, NumericColumn) and value is not None:
            first, _ = grid_bins(column)
            number = column.declared(value) or 0.0  # `require_declared` refuses what is none
            on_grid = round(number * 10**column.grid_decimals)
            rows.codes[broken, index] = np.searchsorted(first, on_grid, side="right") - 1
            if index in rows.numbers:
                rows.numbers[index][broken] = on_grid
        else:
            rows.codes[broken, index] = codes_asked(column, value).argmax()


def _boxes(constraint: Constraint, schema: TableSchema) -> list[Box]:
    columns = dict(zip(schema.column_names, enumerate(schema.columns), strict=True))
    boxes = []
    for condition in constraint.forbidden():
        masks: dict[int, Bools] = {}
        for name, (inside, asked) in condition.items():
            index, column = columns.get(name, (LABEL, None))
            found = np.any([_asked(schema, column, name, one) for one in asked], axis=0)
            found = found if inside else ~found
            # Several labels share one code.
            masks[index] = found & masks[index] if index in masks else found
        boxes.append(Box(masks))
    return boxes


def _asked(schema: TableSchema, column: Column | None, name: str, asked: str | None) -> Bools:
    return schema.labels.asked(name, asked) if column is None else codes_asked(column, asked)


def _relations(constraint: Constraint, schema: TableSchema) -> list[Relation]:
    return [
        Relation(
            parts=tuple(schema.column_names.index(part) for part in parts),
            total=schema.column_names.index(total),
            least=int(sign == "<"),
            most=0 if sign == "=" else None,
        )
        for parts, sign, total in constraint.relations
    ]


def _bins(column: NumericColumn, decimals: int) -> Bins:
    step = 10 ** (decimals - column.grid_decimals)
    first, last = grid_bins(column)
    return Bins(first * step, last * step, step)
