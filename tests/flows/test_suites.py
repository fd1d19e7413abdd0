"""A hospital's own suite of Great Expectations: refused, withheld or shown, twelve of them."""

import json
import re
from decimal import Decimal
from pathlib import Path

import made_up_release as made
import pytest
from desks import HOME

from flows.installation import Installation
from flows.site.site_file import load_site
from privacy.errors import ConfigurationError, Withheld
from storage.ledger.ledger_db import LedgerDatabase
from storage.settings import load_settings
from tasks.gates.suites import PAGE_FILE

AGE, WARD, SMOKER = {"column": "age"}, {"column": "ward"}, {"column": "smoker"}
OF_ROWS = {
    "column_values_to_be_between": (AGE | {"min_value": 0}, {"min_value": 18.5}),
    "column_values_to_be_in_set": (
        WARD | {"value_set": ["icu", "surgery", "medicine", "elsewhere"]},
        {"value_set": ["icu", "surgery", "elsewhere"]},
    ),
    "column_values_to_match_regex": (
        {"column": "patient", "regex": "^P[0-9]{5}$"},
        {"regex": "^P00"},
    ),
    "column_values_to_not_be_null": (AGE, SMOKER),
    "column_value_lengths_to_be_between": (WARD | {"max_value": 9}, {"max_value": 7}),
    "column_pair_values_to_be_in_set": (
        {
            "column_A": "smoker",
            "column_B": "died",
            "value_pairs_set": [[s, d] for s in ("y", "n") for d in ("y", "n", "yes", "no")],
            "ignore_row_if": "either_value_is_missing",
        },
        {"value_pairs_set": [["y", "y"], ["n", "n"]]},
    ),
}
"""Arguments that rows and synthetic rows keep, and a change that both break."""

OF_TABLES = {
    "table_row_count_to_equal": ({"value": 300}, {"value": 301}),
    "column_mean_to_be_between": (AGE | {"min_value": 20, "max_value": 80}, {"max_value": 21}),
    "column_unique_value_count_to_be_between": (WARD | {"min_value": 2}, {"min_value": 5}),
    "column_proportion_of_non_null_values_to_be_between": (
        SMOKER | {"min_value": 0.2},
        {"min_value": 1},
    ),
    "column_quantile_values_to_be_between": (
        {
            "column": "lactate",
            "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 20]]},
        },
        {"quantile_ranges": {"quantiles": [0.5], "value_ranges": [[19, 20]]}},
    ),
    "column_values_to_be_unique": (
        {"column": "lactate", "mostly": 0.0001},
        {"mostly": 1},
    ),
}


def suite(changed=None, **keys):
    """Return the twelve expectations; one of them changed."""
    kept = {**OF_ROWS, **OF_TABLES}
    parts = [
        {"type": f"expect_{name}", "kwargs": usual | (broken if name == changed else {})}
        for name, (usual, broken) in kept.items()
    ]
    return {"name": "wards", "expectations": parts, "meta": {}, **keys}


@pytest.fixture
def desk(desk):
    desk.declare_cohort()
    desk.site["rows"] = 300
    made.made_up_cohort(content=1).to_csv(desk.table, index=False)
    return desk


def declare(desk, content, **gate):
    (desk.folder / "suite.json").write_text(
        content if isinstance(content, str) else json.dumps(content)
    )
    desk.site["gate"] = {"expectations": str(desk.folder / "suite.json"), **gate}


def spent(desk):
    return LedgerDatabase(HOME / "ledger.sqlite").balance(desk.site["dataset"]).spent_rho


def test_a_row_that_breaks_an_expectation_is_refused_for_free(desk):
    for place, name in enumerate(OF_ROWS, start=1):
        declare(desk, suite(name))
        assert desk.run("check") == 2
        *broken, _ = desk.diagnostics
        [record] = broken
        assert record["rule"] == f"expect_{name} (no. {place} of the suite) to hold"
        assert record["rows"]
        assert "expect_" not in desk.errors
    assert desk.release() == 2
    assert desk.line.startswith(f"INPUT_REFUSED: column smoker: expected expect_{name} (no. 6")
    assert spent(desk) == Decimal(0)


def test_synthetic_rows_are_withheld_or_shown_and_a_corrected_suite_is_free(desk):
    declare(desk, suite("column_mean_to_be_between"), page=True)
    assert desk.release() == 4, desk.line
    assert desk.line.startswith("OUTPUT_GATE: ")
    assert "expect_column_mean_to_be_between (no. 8 of the suite): age" in desk.line
    declare(desk, suite(), page=True)
    assert desk.release() == 0, desk.line
    assert desk.states == ["published"]
    manifest = json.loads((desk.bundle / "manifest.json").read_text("utf-8"))
    shown = [one["check"] for one in manifest["gate"] if one["check"].startswith("expect_")]
    assert len(shown) == 11  # the patient column is not published
    report = (desk.bundle / "report.html").read_text("utf-8")
    assert all(title.partition(": ")[0] in report for title in shown)
    assert "11 are expectations of the publisher" in report
    page = (desk.bundle / PAGE_FILE).read_text("utf-8")
    assert PAGE_FILE in manifest["files"]
    assert not re.search(r"<script|<link|<img|src=|href=\"[^#]|[0-9]{8}T[0-9]{6}", page)
    assert "mean must be greater than or equal to" in re.sub(r"<[^>]+>|\s+", " ", page).replace(
        "  ", " "
    )
    publisher = Installation.open(load_settings()).publisher
    for name in OF_TABLES:
        gate = {"expectations": suite(name), "page": False}
        with pytest.raises(Withheld, match=f"expect_{name} "):
            publisher.resample(desk.bundle.name, gate=gate)


def refused(desk, one):
    declare(desk, {"name": "wards", "expectations": [one]})
    assert desk.run("check") == 2
    return desk.line


