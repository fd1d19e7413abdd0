"""Tables of events in the private workspace of a release, beside the shards of their patients.

Rows of events are coded each by itself and divided by a hash of the patient, as rows of patients
are, so that a patient and all events of that patient meet in one shard.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from privacy.arrays import Floats
from privacy.errors import InputError
from storage.schema.table import TableSchema
from storage.sources.cells import NumberMarks
from tasks.histories.event_frames import ONE_ROW, coded_events, days_of, events_of, refuse_beyond
from tasks.histories.event_sources import EventSource
from tasks.ingest import pieces
from tasks.ingest.encoding import encode_chunk
from tasks.ingest.shards import ShardFile, store_rows
from tasks.ingest.violations import EncodedChunk, Violation, refuse_violations
from tasks.methods.clustmix.events.event_domain import first_events, hidden_codes
from tasks.methods.clustmix.events.event_release import EventRelease


@dataclass(frozen=True, kw_only=True)
class Histories:
    """Declared tables of events, and the method that measures them with their patients.

    Fragments are the numbers of those that were read, by table.
    """

    schema: TableSchema
    tables: Sequence[EventSource]
    release: EventRelease
    fragments: Mapping[str, int] = field(default_factory=dict)

    def sampling(self, key: str, **settings: Any) -> Any:
        """Return what draws the tables of a bundle, an `event_files.EventSampling`."""
        from tasks.histories.event_files import EventSampling  # which loads the gates

        return EventSampling(of=self, key=key, **settings)

    def people(self, frame: pd.DataFrame) -> tuple[EncodedChunk, Floats]:
        """Code rows of patients, and return the `days_of` each table (n, 3 t)."""
        days = [days_of(frame, table, self.schema) for table in self.tables]
        return encode_chunk(frame, self.schema), np.concatenate(days, axis=1)

    def folder(self, workspace: Path, name: str) -> Path:
        """Return the folder of the pieces of a table, made on the first use."""
        path = workspace / f"events-{name}"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def of(self, name: str, rules: Any) -> tuple[tuple[str, ...], pieces.IngestRules]:
        """Return the columns of a table and the rules of its rows, given those of patients."""
        [table] = [one for one in self.tables if one.name == name]
        source = table.source
        marks = NumberMarks(source.decimal, source.thousands) if source.kind == "csv" else None
        changes: dict[str, Any] = {
            "schema": table,
            "unit": replace(rules.unit, column=table.key),
            "marks": marks,
            "coder": partial(coded_events, table, self.release.tables[name]),
            "of_table": f" of {name}",
            **dict.fromkeys(("suite", "histories")),
        }
        return table.columns_to_read, replace(rules, **changes)

    def joined(
        self, people: Any, shard: int, workspace: Path, rules: pieces.IngestRules
    ) -> tuple[Any, tuple[bool, ...]]:
        """Store the records of each table; return patients with hidden columns, and what was found.

        The findings are, for each table, if a patient has an event, and if one is beyond the days
        of `at`. It is an InputError if a patient has two rows.

        Privacy
        -------
        Kept events, hidden codes and records of a patient depend on that patient's rows alone.
        """
        if len(np.unique(people.keys)) < len(people.keys):
            none = np.empty(0, dtype=np.intp)
            refuse_violations([Violation(rule=ONE_ROW, column=str(rules.unit.column), rows=none)])
        names, seen, hidden = people.keys.tolist(), list[bool](), [people.codes]
        path = ShardFile(pieces.shard_path(workspace, shard))
        tables = zip(self.tables, self.release.tables_at(1.0).items(), strict=True)
        for t, (declared, (name, table)) in enumerate(tables):
            folder = self.folder(workspace, name)
            rows = pieces.rows_of_shard(folder, shard, self.fragments[name])
            own = (rows.keys, rows.codes, rows.moments)
            events, ties, beyond = events_of(own, names, people.moments[:, 3 * t : 3 * t + 3])
            known = (events.patient >= 0) & ~beyond
            kept = first_events(table.events, events.only(known), ties[known])
            hidden.append(hidden_codes(table.events, kept, n_patients=len(names)))
            store_rows(path.beside(name).path, table.records(kept, people.codes))
            seen += [bool(known.any()), bool(beyond.any())]
            if rules.tally is not None:
                key, at = (f"{one} of {name}" for one in (declared.key, declared.at.column))
                early = events.moment[known] < table.events.offsets[0]
                found = {(at, "before_offsets"): early.sum(), (at, "beyond"): beyond.sum()}
                found |= {(key, "without_patient"): (events.patient < 0).sum()}
                found |= {(key, "cut"): known.sum() - len(kept.patient)}
                counted = Counter({(*place, ""): int(n) for place, n in found.items()})
                pieces.store_tally(folder, f"shard-{shard:04d}", counted)
        whole = np.concatenate(hidden, axis=1)
        return replace(people, codes=whole, moments=np.empty(0)), tuple(seen)

    def checked(self, found: Sequence[tuple[bool, ...]], rules: Any) -> list[tuple[bool, ...]]:
        """Return levels of all shards; refuse empty tables of events, and events on other days."""
        n = len(self.schema.labels.level_names)
        seen = np.any([one[n:] for one in found], axis=0).reshape(-1, 2)
        for table, (has, beyond) in zip(self.tables, seen, strict=True):
            refuse_beyond(table, beyond)
            if not has and rules.entry is None:
                raise InputError(
                    "EVENTS_EMPTY",
                    f"expected events of patients of the release in {table.name}, found none; "
                    f"check that {table.key} names the patients as {rules.unit.column} does",
                )
        return [one[:n] for one in found]
