"""Samples of a measurement under conditions on declared levels and bins: free post-processing."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Indices, Records
from privacy.errors import ConfigurationError, refusals
from storage.schema.columns import codes_asked, in_short
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from tasks.gates.agreement import CodedTable
from tasks.ingest.constraint_rules import rules_of
from tasks.measurement.method import Released, Synthesizer
from tasks.measurement.record_rules import LABEL, Box

refusal = refusals(__package__)

MAX_OVERSAMPLING = 200
"""Most rows that are sampled for each row that meets the conditions."""

BALANCED = "balanced"
"""Keyword that requests equally many rows per label level."""


def sample_rows(
    synthesizer: Synthesizer,
    schema: TableSchema,
    released: Released,
    conditions: Mapping[str, str],
    *,
    rng: np.random.Generator,
    n_rows: int,
    all_of_them: bool = True,
) -> CodedTable:
    """Sample coded rows that meet conditions; unless `all_of_them`, fewer rows are accepted.

    A `Conditional` method samples under conditions on columns. Rows that miss another condition, or
    break a constraint of the schema, are rejected, so the rest has the method's distribution given
    the conditions. For a label that is `BALANCED` each level is sampled by itself.
    """
    for asked in schema.all_labels:
        if _is_balanced(asked, conditions.get(asked.name)):
            sizes = map(len, np.array_split(np.arange(n_rows), len(asked.level_names)))
            each = [
                sample_rows(
                    *(synthesizer, schema, released, {**conditions, asked.name: level}),
                    rng=rng,
                    n_rows=size,
                    all_of_them=all_of_them,
                )
                for level, size in zip(asked.level_names, sizes, strict=True)
                if size
            ]
            return _joined(each, rng.permutation(sum(map(len, each))))
    allowed, rules = allowed_codes(schema, conditions), rules_of(schema)
    columns = {column: mask for column, mask in allowed.items() if column != LABEL}
    # A request with conditions can be changed for free. One without is a release that was paid for.
    most = MAX_OVERSAMPLING * (1 if conditions else 100)
    parts: list[CodedTable] = []
    n_kept, n_sampled = 0, 0
    while n_kept < n_rows:
        if n_sampled >= most * n_rows:
            if n_kept and not all_of_them:
                break
            raise refusal("CONDITION_RARE", most=most, conditions=_in_words(conditions, schema))
        if columns and isinstance(synthesizer, Conditional):
            codes, label = synthesizer.sample_where(released, columns, n_rows=n_rows, rng=rng)
        else:
            codes, label = synthesizer.sample(released, n_rows=n_rows, rng=rng)
        n_sampled += len(label)
        keep = Box(allowed).broken(codes, label)  # true inside of the box
        if rules is not None:
            keep &= ~rules.broken(codes, label)
        parts.append(CodedTable(codes=codes[keep], label=label[keep]))
        n_kept += int(keep.sum())
    return _joined(parts, slice(n_rows))


def _is_balanced(label: Label, asked: str | None) -> bool:
    return asked == BALANCED and BALANCED not in label.level_names


def _joined(parts: Sequence[CodedTable], rows: Indices | slice) -> CodedTable:
    return CodedTable(
        codes=np.concatenate([part.codes for part in parts])[rows],
        label=np.concatenate([part.label for part in parts])[rows],
    )


@runtime_checkable
class Conditional(Protocol):
    """A method that samples under conditions on columns without rejecting rows."""

    def sample_where(
        self,
        released: Released,
        allowed: Mapping[int, NDArray[np.bool_]],
        *,
        n_rows: int,
        rng: np.random.Generator,
    ) -> Records:
        """Sample as `Synthesizer.sample`, with an allowed code in each of these columns."""


def allowed_codes(
    schema: TableSchema, conditions: Mapping[str, str]
) -> dict[int, NDArray[np.bool_]]:
    """Return masks of the codes that conditions allow, by the index of the column or `LABEL`.

    See `codes_asked`; a missing cell is no condition here. Anything else is a ConfigurationError.
    """
    allowed: dict[int, NDArray[np.bool_]] = {}
    for name, asked in conditions.items():
        try:
            if name in schema.label_names:
                label = schema.all_labels[schema.label_names.index(name)]
                if not _is_balanced(label, asked):
                    met = schema.labels.asked(name, asked)
                    allowed[LABEL] = allowed.get(LABEL, met) & met
                continue
            if name not in schema.column_names or schema.image is not None:
                known, rule = in_short(schema.measured_columns), schema.derived.get(name)
                about = f", derived as {rule.title}" if rule else ""
                raise ValueError(f"expected a column ({known}), found {name}={asked}{about}")
            index = schema.column_names.index(name)
            allowed[index] = codes_asked(schema.columns[index], asked)
        except ValueError as error:
            raise ConfigurationError("CONDITION_UNKNOWN", str(error)) from None
    return allowed


def _in_words(conditions: Mapping[str, str], schema: TableSchema) -> str:
    asked = [f"{column}={level}" for column, level in conditions.items()]
    return ", ".join([*asked, *(["the constraints"] if schema.constraints else [])])
