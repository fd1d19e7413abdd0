"""Associations between the columns of released rows, and the information of each about a label.

Post-processing of synthetic rows, by counts of pairs less the average of independent columns.
"""

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import entr

from privacy.arrays import Floats
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from tasks.ingest.encoding import encode_chunk, label_codes

MAX_COLUMNS = 40
"""Most columns in the map: the labels, and those with the most information about them."""
MAX_CELLS = 4_000_000
"""Most cells of rows that are counted; rows are evenly spaced among all."""


def highlighted_level(label: Label) -> str:
    """Return the label level in colour: the positive one, else the last."""
    return label.positive if label.positive is not None else label.level_names[-1]


def associations_of(frame: pd.DataFrame, schema: TableSchema) -> dict[str, Any]:
    """Return the associations of released rows of columns or items, by their names in the template.

    ``ranked`` lists columns by information about the first label: name, information about each
    label, closest column, their association. ``values`` associate ``names`` with earlier ones.
    """
    labels, n_rows = schema.all_labels, max(MAX_CELLS // len(schema.columns), 1)
    some, n = frame.iloc[:: -(-len(frame) // n_rows)], len(labels)
    codes = encode_chunk(some, schema, mend=False).codes.T
    own = [label_codes(some[one.name], one, []) for one in labels]
    columns, names = [*own, *codes], [*schema.label_names, *schema.column_names]
    sizes = [len(one.level_names) for one in labels] + [one.n_codes for one in schema.columns]

    def crossed(i: int, j: int) -> Floats:
        cells = columns[i].astype(np.int64) * sizes[j] + columns[j]
        counts = np.bincount(cells, minlength=sizes[i] * sizes[j])
        return counts.reshape(sizes[i], sizes[j]).astype(np.float64)

    about = {i: [information(crossed(i, j)) for j in range(n)] for i in range(n, len(names))}
    most = sorted(about, key=lambda i: -max(about[i]))[: MAX_COLUMNS - n]
    shown = [*range(n), *sorted(most)]
    matrix = np.zeros((len(names), len(names)))
    for i, j in combinations(shown, 2):
        matrix[i, j] = matrix[j, i] = association(crossed(i, j))
    closest = {i: n + int(np.argmax(matrix[i, n:])) for i in about}
    return {
        "ranked": [
            (names[i], about[i], names[closest[i]], float(matrix[i, closest[i]]))
            for i in sorted(about, key=lambda i: -about[i][0])
        ],
        "names": [names[i] for i in shown],
        "values": [matrix[i, shown[:place]].tolist() for place, i in enumerate(shown)],
    }


def information(counts: Floats) -> float:
    """Return the uncertainty coefficient of a label (columns) given a column (rows).

    Mutual information less its bias of first order, ``(r - 1) (c - 1) / 2n`` of r and c levels that
    occur (Miller 1955), divided by the entropy of the label.
    """
    margins = counts.sum(axis=1), counts.sum(axis=0)
    parts = (*margins, counts.ravel())
    of_column, of_label, of_both = (float(entr(part / counts.sum()).sum()) for part in parts)
    r, c = map(np.count_nonzero, margins)
    mutual = of_column + of_label - of_both - (r - 1) * (c - 1) / (2.0 * counts.sum())
    return float(np.clip(mutual / of_label, 0.0, 1.0)) if of_label > 0.0 else 0.0


def association(counts: Floats) -> float:
    """Return Cramer's V of a table of counts, between 0 and 1, less its bias (Bergsma 2013)."""
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    n, (r, c) = max(counts.sum(), 2.0), counts.shape
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / n
    squared = ((counts - expected) ** 2 / expected).sum() / n - (r - 1) * (c - 1) / (n - 1)
    least = min(size - 1 - (size - 1) ** 2 / (n - 1) for size in (r, c))
    return float(np.sqrt(np.clip(squared / least, 0.0, 1.0))) if least > 1e-9 else 0.0
