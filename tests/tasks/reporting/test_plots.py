"""The plots count the synthetic rows, and nothing else."""

import re

import pandas as pd
import pytest

from storage.schema.columns import CategoricalColumn
from storage.schema.table import Label, TableSchema
from tasks.reporting.plots import MAX_LEVELS, column_plots


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


def test_many_levels_are_summed_up():
    levels = tuple(f"level {i}" for i in range(50))
    column = CategoricalColumn(kind="categorical", name="c", levels=levels)
    schema = TableSchema(columns=(column,), label=Label(name="y", levels={"no": (), "yes": ()}))
    frame = pd.DataFrame({"c": list(levels), "y": ["no", "yes"] * 25})
    shown = titles(plots_of(frame, schema)["c"])
    assert len(shown) == MAX_LEVELS
    assert shown[-1] == "41 others: 82.0 % of all rows, 84.0 % of the highlighted ones"
