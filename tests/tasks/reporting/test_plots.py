"""The plots count the synthetic rows, and nothing else."""

import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from storage.schema.table import CategoricalColumn, Label, NumericColumn, TableSchema
from tasks.reporting.plots import MAX_BARS, MAX_LEVELS, column_plots


def plots_of(frame, schema):
    return {plot.name: plot for plot in column_plots(frame, schema)}


def titles(plot):
    return [bar.title for bar in plot.drawn]


def test_shares_are_those_of_the_rows(schema, rows):
    plots = plots_of(rows, schema)
    share = 100 * (rows["admission"] == "urgent").mean()
    inside = 100 * (rows.loc[rows["readmitted"] == "yes", "admission"] == "urgent").mean()
    assert f"urgent: {share:.1f} % of all rows, {inside:.1f} % of the highlighted ones" in titles(
        plots["admission"]
    )
    missing = 100 * (rows["admission"] == "?").mean()
    assert any(t.startswith(f"missing: {missing:.1f} %") for t in titles(plots["admission"]))
    assert titles(plots["readmitted"])[1] == (
        f"yes: {100 * (rows['readmitted'] == 'yes').mean():.1f} % of all rows"
    )


@pytest.mark.parametrize("column", ["age", "creatinine", "visits"])
def test_the_bars_of_a_histogram_add_up(column, schema, rows):
    shown = titles(plots_of(rows, schema)[column])
    shares = [float(re.search(r": ([\d.]+) %", title)[1]) for title in shown]
    assert sum(shares) == pytest.approx(100, abs=0.06 * len(shares))
    assert shown[-1].startswith("missing: ") is (column != "age")


def test_integer_bars_hold_whole_numbers_inside_the_bounds():
    for lower, upper in [(0, 6), (1, 14), (0, 100), (-5, 300), (0, 1)]:
        column = NumericColumn(kind="integer", name="n", lower=lower, upper=upper, bins=2)
        schema = TableSchema(columns=(column,), label=Label(name="y", levels={"no": (), "yes": ()}))
        frame = pd.DataFrame({"n": np.arange(lower, upper + 1), "y": "no"})
        shown = [title.split(":")[0] for title in titles(plots_of(frame, schema)["n"])]
        ends = [tuple(map(int, name.split(" to "))) for name in shown]
        assert len(shown) <= MAX_BARS
        assert ends[0][0] == lower
        assert ends[-1][-1] == upper
        for before, after in pairwise(ends):
            assert after[0] == before[-1] + 1


def test_many_levels_are_summed_up():
    levels = tuple(f"level {i}" for i in range(50))
    column = CategoricalColumn(kind="categorical", name="c", levels=levels)
    schema = TableSchema(columns=(column,), label=Label(name="y", levels={"no": (), "yes": ()}))
    frame = pd.DataFrame({"c": list(levels), "y": ["no", "yes"] * 25})
    shown = titles(plots_of(frame, schema)["c"])
    assert len(shown) == MAX_LEVELS
    assert shown[-1] == "41 others: 82.0 % of all rows, 84.0 % of the highlighted ones"


def test_a_text_code_among_numbers_counts_as_missing():
    column = NumericColumn(kind="integer", name="n", lower=0, upper=5, bins=2, missing=("?",))
    schema = TableSchema(columns=(column,), label=Label(name="y", levels={"no": (), "yes": ()}))
    frame = pd.DataFrame({"n": ["1", "?", "3", "?"], "y": "yes"})
    assert titles(plots_of(frame, schema)["n"])[-1] == (
        "missing: 50.0 % of all rows, 50.0 % of the highlighted ones"
    )
