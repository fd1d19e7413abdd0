"""The output gate: rules of the declared schema, of the file that is published.

The source is held against them by the encoder, and against the owner's own rules by
`tasks.gates.suites`. A release reveals that the table kept these rules, and the guarantee does not
cover that one bit.
"""

import pandas as pd

from storage.releases.manifest import GateRecord
from storage.schema.table import TableSchema
from tasks.gates.table_rules import judged, release_rules


def compared(
    check: str, *, distance: float, bound: float, unseen: tuple[str, ...] = ()
) -> GateRecord:
    """Return the record of a distance, which passes up to its bound."""
    return GateRecord(
        check=check,
        passed=bool(distance <= bound),
        distance=round(distance, 4),
        bound=round(bound, 4),
        unseen=unseen,
    )


def output_gate(frame: pd.DataFrame, schema: TableSchema, rows: int) -> list[GateRecord]:
    """Check a synthetic table that was read back from the file to be published.

    ``rows`` is the public number of the site file. A label level may be absent; a value that is no
    label level is refused.

    Privacy
    -------
    Post-processing: reads synthetic rows and public declarations only.
    """
    if not frame.columns.is_unique or not all(isinstance(name, str) for name in frame.columns):
        return [GateRecord(check="columns", passed=False)]
    return [
        GateRecord(check=name if column is None else f"{name}: {column}", passed=passed)
        for name, column, passed in judged(release_rules(frame, schema, rows))
    ]
