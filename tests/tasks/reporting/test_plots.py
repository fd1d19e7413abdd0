import io
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.schema.columns import NumericColumn
from tasks.reporting.plots import MAX_TICKS, TAIL, _Bar, _plot, column_plots, released_plots
from tasks.reporting.released_tables import hidden_levels, unmeasured_pairs
from tasks.reporting.report import render_data_card, render_report


def titles(plot):
    return [bar.title for bar in plot.drawn]


def test_shares_are_those_of_the_rows(schema, rows):
    plots = {plot.name: plot for plot in column_plots(rows, schema)}
    share = 100 * (rows["admission"] == "urgent").mean()
    inside = 100 * (rows.loc[rows["readmitted"] == "yes", "admission"] == "urgent").mean()
    assert f"urgent: {share:.1f} % of all rows, {inside:.1f} % of the highlighted ones" in titles(
        plots["admission"]
    )
    missing = 100 * (rows["admission"] == "?").mean()
    assert any(t.startswith(f"missing: {missing:.1f} %") for t in titles(plots["admission"]))
    share = 100 * (rows["readmitted"] == "yes").mean()
    assert titles(plots["readmitted"])[1] == f"yes: {share:.1f} % of all rows"


def test_the_card_names_levels_and_pairs_that_the_budget_does_not_carry(schema, make_manifest):
    cells = [("readmitted", "no", "", 0.99, 0.9, 1.0), ("readmitted", "yes", "", 0.01, 0.0, 0.06)]
    tables = table_of([*cells, ("age", "code 1", "", 0.0, 0.0, 0.1)])
    assert hidden_levels(tables, schema) == "readmitted = yes"
    assert unmeasured_pairs(tables) == ""
    pairs = [("age", level, other, 0.25, np.nan, np.nan) for level in "12" for other in "ab"]
    assert unmeasured_pairs(table_of(pairs)) == "age with readmitted"
    card = render_data_card(
        make_manifest(), schema, lost={"levels": "readmitted = yes", "pairs": "age with ward"}
    )
    assert "Noise hides these levels of the label, so that the rows" in card
    assert "imply it: age with ward." in card
    plain = render_data_card(make_manifest(), schema)
    assert "Noise hides" not in plain
    assert "too small to measure" not in plain


def table_of(cells):
    names = ["column", "level", "by_level", "share", "low", "high"]
    frame = pd.DataFrame(cells, columns=names)
    frame["by"] = np.where(frame["by_level"] == "", "", "readmitted")
    frame["known"] = np.where(frame["low"].isna(), "implied", "measured")
    frame["noise_patients"] = np.where(frame["by_level"] == "", 10.0, 20.0)
    file = io.BytesIO()
    frame.to_parquet(file, index=False)
    return file.getvalue()


@pytest.fixture
def shares(schema):
    cells = []
    for column in schema.columns:
        n = column.n_codes
        share = np.full(n, 1.0 / n)
        if column.name == "age":
            share = np.where(np.arange(n) < 5, 0.2 - TAIL / 6, TAIL / 6)
        for code, value in enumerate(share):
            cells.append((column.name, f"code {code}", "", value, max(value - 0.1, 0), value + 0.1))
        for by in ("no", "yes"):
            cells += [
                (column.name, f"code {c}", by, v / 2, max(v / 2 - 0.1, 0.0), v / 2 + 0.1)
                for c, v in enumerate(share)
            ]
    cells += [("readmitted", level, "", 0.5, 0.45, 0.55) for level in ("no", "yes")]
    return table_of(cells)


def test_released_shares_are_drawn_with_their_intervals(schema, shares, rows, make_manifest):
    plots = {plot.name: plot for plot in released_plots(shares, schema)}
    assert list(plots) == [*schema.column_names, "readmitted"]
    age = plots["age"]
    # The axis ends where all that is left is less than a tail.
    assert age.spans == ((0, 10), (10, 20), (20, 30), (30, 40), (40, 50))
    assert age.ticks[0] == (0, "0")
    assert age.ticks[-1] == (50, "50")
    # Half of the patients give or take 0.05, or ten in standard deviations: one in 392.
    half, part = 1.96 * 20.0 / 392.0, 0.1 - TAIL / 12
    low, high = 100 * (2 * part + np.array([-2, 2]) * np.hypot(half, 2 * part * 0.05)).clip(0)
    assert titles(age)[0] == (
        f"0 to 9: 19.9 % (9.9 to 29.9) of all patients, 19.9 % ({low:.1f} to {high:.1f}) of the "
        "highlighted ones"
    )
    assert age.notes == (
        "noise ± 20 patients", "5 of 10 lost in noise", "from 50 on: 0.4 %",
    )  # fmt: skip
    assert plots["creatinine"].drawn[-1].name == "missing"
    assert not plots["admission"].spans
    assert not any(bar.lost for bar in plots["readmitted"].bars)
    assert all(bar.lost for bar in plots["creatinine"].bars)  # 1 of 13, give or take a tenth
    page = render_report(make_manifest(), rows, schema, tables=shares)
    bars = re.findall(r'class="between of-all" d="M(\S+) (\S+)V(\S+)"', page)
    assert len(bars) == 5 + 12 + 1 + 5 + 1  # of numbers; levels lie along the page
    _, low, high = map(float, bars[0])
    assert low - high == pytest.approx(88 * 0.2 / 10 / age.top, abs=0.2)


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=12),
    st.lists(st.floats(0, 1), min_size=12, max_size=12),
)
def test_areas_are_shares_and_nothing_is_left_out(widths, weights):
    edges = [0, *np.cumsum(widths).tolist()]
    column = NumericColumn(name="x", kind="real", lower=0, upper=edges[-1], bins=edges)
    shares = (np.array(weights[: len(widths)]) + 1e-6).tolist()
    plot = _plot(
        column, [_Bar(f"{k}", share / sum(shares), None) for k, share in enumerate(shares)]
    )
    widths = [end - start for start, end in plot.spans]
    assert all(
        bar.share / width <= plot.top + 1e-9 for bar, width in zip(plot.bars, widths, strict=True)
    )
    said = sum(float(re.search(r": ([\d.]+) %", text)[1]) for text in plot.notes)
    assert 100 * sum(bar.share for bar in plot.drawn) + said == pytest.approx(100, abs=0.2)
    assert 1 <= len(plot.ticks) + 1 <= MAX_TICKS + 2
    assert all(plot.spans[0][0] <= place <= plot.spans[-1][1] for place, _ in plot.ticks)


def test_a_frequent_number_and_a_wide_end_stand_apart():
    edges = (0, 1, 10, 20, 30, 1000)
    column = NumericColumn(
        name="dose", kind="integer", lower=0, upper=1000, bins=(*edges[:-1], 1001)
    )
    names = ("0", "1 to 9", "10 to 19", "20 to 29", "30 to 1000")
    shares = zip(names, (0.6, 0.1, 0.15, 0.1, 0.05), strict=True)
    plot = _plot(column, [_Bar(name, share, None) for name, share in shares])
    assert plot.spans == ((1, 10), (10, 20), (20, 30))
    assert [text for text, _ in (*plot.before, *plot.after)] == [
        "0",
        "\N{GREATER-THAN OR EQUAL TO}30",
    ]
    assert plot.scale == "1.5 % per 1"
    assert [text for _, text in plot.ticks] == ["10", "20", "30"]
