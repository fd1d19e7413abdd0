"""Sections of a report on tables of events, counted in their synthetic rows: post-processing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from storage.schema.event_tables import EventDeclaration
from storage.sources.cells import number_cells
from tasks.reporting.catalogue import described
from tasks.reporting.facts import dictionary_of
from tasks.reporting.plots import shares_plot

MAX_KINDS, MAX_HISTORIES, MAX_EVENTS = 12, 8, 60
"""Most kinds in a map of what follows what, most drawn histories, and most events of one."""


def section(frame: pd.DataFrame, table: EventDeclaration, n_patients: int) -> dict[str, Any]:
    """Return what report, card and catalogue entries say of a table, by names of templates."""
    who, days = frame[table.key].to_numpy(), number_cells(frame[table.at.column], table.moment)[0]
    same = np.flatnonzero(who[1:] == who[:-1])
    counts, gaps = np.bincount(who, minlength=n_patients + 1)[1:], np.diff(days)[same]
    doubling = [0.0, *(2.0**k for k in range(table.max_rows_per_patient.bit_length()))]
    columns: list[Any] = [one for one in table.columns if one.name != table.value]
    columns += [
        one.model_copy(update={"name": title})
        for title, one in table.by_kind.items()
        if one is not None
    ]
    # Bounds of a value are those of its kind, and a kind may have none.
    free = {"kind": "number", "in_parquet": "number", "bounds": None, "may_be_empty": True}
    return {
        "name": table.name,
        "key": table.key,
        "rows": len(frame),
        "dictionary": dictionary_of(columns, {}),
        "columns": [
            described(one) | (free if one.name == table.value else {}) for one in table.columns
        ],
        "plots": [
            _plot("events of a patient", counts, doubling, of="patients"),
            _plot(
                "days since the event before", gaps, table.gap_edges, of="events after the first"
            ),
        ],
        "turns": _turns(frame, table, same),
        "histories": list(_histories(frame, table, days)),
        "kinds": table.kinds[:MAX_KINDS] if table.kind else (),
    }


def _plot(name: str, numbers: Any, edges: Sequence[float], *, of: str) -> Any:
    """Return a plot of shares of bins of whole numbers, the last of which has no end."""
    ends = pairwise(edges)
    names = [f"{a:g}" if b - a == 1 else f"{a:g} to {b - 1:g}" for a, b in ends]
    places = np.maximum(np.searchsorted(edges, numbers, side="right") - 1, 0)
    shares = np.bincount(places, minlength=len(edges)) / max(len(numbers), 1)
    return shares_plot(name, [*names, f"{edges[-1]:g} or more"], shares.tolist(), of=of)


def _turns(frame: pd.DataFrame, table: EventDeclaration, same: Any) -> dict[str, Any] | None:
    """Return shares of the next kind after each, of the most frequent kinds; None without kinds."""
    if table.kind is None or len(table.kinds) < 2:
        return None
    kinds = frame[table.kind].astype(str).to_numpy()
    most = pd.Series(kinds).value_counts().index[:MAX_KINDS]
    names = [kind for kind in table.kinds if kind in most]
    counts = pd.crosstab(kinds[same], kinds[same + 1]).reindex(names, columns=names, fill_value=0)
    shares = counts.div(counts.sum(axis=1).clip(lower=1), axis=0)
    return {"names": names, "values": shares.to_numpy().tolist()}


def _histories(
    frame: pd.DataFrame, table: EventDeclaration, days: Any
) -> Iterator[list[tuple[float, int, str]]]:
    """Yield histories of the first patients with several events: days since one, kind, words."""
    shown = frame.astype(object).where(frame.notna(), "no value")
    kinds = frame[table.kind].astype(str) if table.kind else pd.Series("", frame.index)
    kind = kinds.map({kind: number for number, kind in enumerate(table.kinds)})
    sizes = frame.groupby(table.key, sort=False).size()
    for patient in sizes.index[sizes > 1][:MAX_HISTORIES]:
        rows = np.flatnonzero(frame[table.key] == patient)[:MAX_EVENTS]
        cells = shown.iloc[rows].drop(columns=table.key).itertuples(index=False)
        texts = [", ".join(map(str, one)) for one in cells]
        since = days[rows] - days[rows][0]
        yield list(zip(since.tolist(), kind.iloc[rows].tolist(), texts, strict=True))
