import numpy as np
import pandas as pd
import pytest
from measuring import domain_with, drawn_by

from storage.schema.columns import raw_text
from storage.sources.cells import distinct
from tasks.measurement.encoded import EncodedRows
from tasks.methods.clustmix.table_clustmix import Effort, TableClustMix

DOMAIN = domain_with(4, 2, 3, numeric=(0,), labels=("a", "b", "c"), rows_per_patient=3)


def test_statistics_of_many_rows_are_the_sums_of_those_of_one_row():
    rng, n = np.random.default_rng(0), 9_000
    rows = EncodedRows(
        codes=(rng.random((n, 3)) * DOMAIN.n_codes).astype(np.uint16),
        label=rng.integers(3, size=n).astype(np.uint16),
        weight=1.0 / rng.integers(1, 4, n),
        fold=np.zeros(n, dtype=np.uint8),
    )
    _, seen, _ = drawn_by(TableClustMix(DOMAIN, Effort(starts=1, steps=5)), rows, mu=1.0)
    assert len(seen) == 5
    kinds = np.column_stack([rows.codes, rows.label, np.rint(1.0 / rows.weight)])
    _, first, sizes = np.unique(kinds, axis=0, return_index=True, return_counts=True)
    for contribution, public in seen.values():
        one_by_one = sum(
            size * contribution(rows.only([place]), **public)
            for place, size in zip(first, sizes, strict=True)
        )
        assert np.array_equal(contribution(rows, **public), one_by_one)


@pytest.mark.parametrize("cells", [[" a", "a", None, "3.0"], [3, 0, -7], [1.5, 3.0], [True, False]])
def test_distinct_texts_are_the_raw_texts_of_the_cells(cells):
    for column in (pd.Series(cells), pd.Series(cells, dtype=object)):
        index, texts = distinct(column)
        found = [None if i < 0 else texts[i] for i in index]
        assert found == [None if cell is None else raw_text(cell) for cell in cells]
