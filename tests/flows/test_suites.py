import json
import re
from decimal import Decimal

import made_up_release as made
import pytest
from desks import CANARY, HOME

from flows.installation import Installation
from flows.site.site_file import load_site
from privacy.errors import Withheld
from storage.ledger.ledger_db import LedgerDatabase
from storage.settings import load_settings
from tasks.gates.suites import PAGE_FILE
from tests.processes import ROOT

AGE, WARD, SMOKER = {"column": "age"}, {"column": "ward"}, {"column": "smoker"}
OF_ROWS = {
    "column_values_to_be_between": (AGE | {"min_value": 0}, {"min_value": 18.5}),
    "column_values_to_match_regex": (
        {"column": "patient", "regex": "^P[0-9]{5}$"},
        {"regex": "^P00"},
    ),
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
        {"column": "lactate", "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 20]]}},
        {"quantile_ranges": {"quantiles": [0.5], "value_ranges": [[19, 20]]}},
    ),
    "column_values_to_be_unique": ({"column": "lactate", "mostly": 0.0001}, {"mostly": 1}),
}


def suite(changed=None, **keys):
    kept = {**OF_ROWS, **OF_TABLES}
    parts = [
        {"type": f"expect_{name}", "kwargs": usual | (broken if name == changed else {})}
        for name, (usual, broken) in kept.items()
    ]
    return {"name": "wards", "expectations": parts, "meta": {}, **keys}


@pytest.fixture
def desk(desk):
    desk.declare_cohort(made.made_up_cohort(content=1))
    desk.site["rows"] = 300
    return desk


def declare(desk, content, **gate):
    (desk.folder / "suite.json").write_text(
        content if isinstance(content, str) else json.dumps(content)
    )
    desk.site["gate"] = {"expectations": str(desk.folder / "suite.json"), **gate}


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
    assert desk.line.startswith(f"INPUT_REFUSED: column smoker: expected expect_{name} (no. 3")
    ledger = LedgerDatabase(HOME / "ledger.sqlite")
    assert ledger.balance(desk.site["dataset"]).spent_rho == Decimal(0)
    # Each suite is another declaration, so a release after these checks counts them.
    assert len({entry.digest for entry in ledger.entries(desk.site["dataset"])}) == len(OF_ROWS)


def test_synthetic_rows_are_withheld_or_shown_and_a_corrected_suite_is_free(desk):
    declare(desk, suite("column_mean_to_be_between"), page=True)
    assert desk.release() == 4, desk.line
    assert desk.line.startswith("OUTPUT_GATE: ")
    assert "expect_column_mean_to_be_between (no. 5 of the suite): age" in desk.line
    declare(desk, suite(), page=True)
    assert desk.release() == 0, desk.line
    assert desk.states == ["published"]
    manifest = json.loads((desk.bundle / "manifest.json").read_text("utf-8"))
    shown = [one["check"] for one in manifest["gate"] if one["check"].startswith("expect_")]
    assert len(shown) == 8  # the patient column is not published
    report = (desk.bundle / "report.html").read_text("utf-8")
    assert all(title.partition(": ")[0] in report for title in shown)
    assert "8 are expectations of the publisher" in report
    page = (desk.bundle / PAGE_FILE).read_text("utf-8")
    assert PAGE_FILE in manifest["files"]
    assert not re.search(r"<script|<link|<img|src=|://|href=\"[^#]|[0-9]{8}T[0-9]{6}", page)
    assert "mean must be greater than or equal to" in re.sub(r"<[^>]+>|\s+", " ", page).replace(
        "  ", " "
    )
    publisher = Installation.open(load_settings()).publisher
    for name in OF_TABLES:
        gate = {"expectations": suite(name), "page": False}
        with pytest.raises(Withheld, match=f"expect_{name} "):
            publisher.resample(desk.bundle.name, gate=gate)


def refused(desk, content):
    declare(desk, content)
    assert desk.run("check") == 2
    assert desk.states == []
    return desk.line


BETWEEN = {"column": "age", "min_value": 0}
REFUSED = {
    "unexpected_rows_expectation": {"unexpected_rows_query": "SELECT * FROM {batch}"},
    "expect_query_results_to_match_comparison": {"base_query": "SELECT 1"},
    "expect_table_row_count_to_equal_other_table": {"other_table_name": "patients"},
    "expect_column_values_to_match_like_pattern": {"column": "ward", "like_pattern": "i%"},
    "expect_column_values_to_match_json_schema": {"column": "ward", "json_schema": {}},
    "expect_wards_to_be_quiet": WARD,
    "expect_column_values_to_be_between": {**BETWEEN, "row_condition": "ward == 'icu'"},
    "expect_column_values_to_not_be_in_set": WARD
    | {"value_set": ["x"], "row_condition": {"type": "pass_through", "pass_through_filter": "1"}},
    "expect_column_mean_to_be_between": AGE | {"min_value": {"$PARAMETER": "mean"}},
    "expect_column_max_to_be_between": AGE | {"max_value": 99, "mostly": 0.5},
    "expect_column_values_to_not_be_null": {"column": "note"},
    "expect_column_values_to_match_regex": WARD | {"regex": "^(icu"},
    "expect_column_value_lengths_to_equal": {"column": "age", "value": 2},
    "expect_column_sum_to_be_between": WARD | {"min_value": 2},
    "expect_column_values_to_be_unique": {"column": "patient"},
    "expect_multicolumn_sum_to_equal": {"column_list": "age", "sum_total": 3},
    "expect_column_values_to_be_in_set": WARD | {"value_set": "icu"},
    "expect_column_pair_values_to_be_in_set": {
        "column_A": "smoker",
        "column_B": "died",
        "value_pairs_set": [["y"]],
    },
}


def test_what_needs_more_than_rows_is_refused_by_name_before_anything_is_read(desk):
    parts = [{"type": name, "kwargs": kwargs} for name, kwargs in REFUSED.items()]
    desk.table.unlink()
    for part in parts:
        line = refused(desk, {"name": "wards", "expectations": [part]})
        assert f"gate.expectations: {part['type']} (no. 1 of the suite): " in line
    line = refused(desk, {"name": "wards", "expectations": parts[:8]})
    assert all(f"{part['type']} (no. {n} " in line for n, part in enumerate(parts[:8], start=1))


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"name": "a", "name": "b", "expectations": []}',
        json.dumps(suite()).replace("0.2", "NaN"),
        json.dumps(suite()).replace("0.2", "1e999"),
        "[" * 100_000,
        json.dumps(suite()) + " " * 200_000,
        suite(suite_parameters={"mean": 3}),
        suite(name="<script>"),
        {"name": "wards", "expectations": []},
        {"name": "wards", "expectations": ["expect_column_to_exist"]},
        {"name": "wards", "expectations": [{"type": ["a"], "kwargs": {}}]},
        {"name": "wards", "expectations": [{"type": "expect_column_to_exist", "kwargs": []}]},
        suite()
        | {"expectations": [{"type": "expect_column_to_exist", "kwargs": AGE, "meta": "input"}]},
    ],
)
def test_a_malformed_suite_is_refused_in_one_line(desk, content):
    assert "gate.expectations: " in refused(desk, content)


def test_an_expectation_may_choose_its_gate_and_levels_may_be_numbers(desk, caplog):
    part = {"type": "expect_column_values_to_be_in_set", "kwargs": WARD | {"value_set": [3]}}
    declare(desk, {"name": "wards", "expectations": [part | {"meta": {"gate": "output"}}]})
    assert desk.run("check") == 0, desk.line
    made.made_up_cohort(content=1).assign(ward="3").to_csv(desk.table, index=False)
    declare(desk, {"name": "wards", "expectations": [part]})
    assert desk.run("check") == 0, desk.line
    assert load_site(desk.path).gate.expectations["name"] == "wards"
    made.made_up_cohort(content=1).assign(ward=CANARY).to_csv(desk.table, index=False)
    assert desk.run("check") == 2  # which looks for it in all output
    assert desk.diagnostics[0]["rows"][0] == {"row": 0, "value": CANARY}
    assert CANARY not in caplog.text


def test_the_example_of_the_page_is_a_suite_that_a_table_keeps(desk):
    declare(desk, (ROOT / "docs" / "site-file" / "suite.json").read_text("utf-8"))
    assert desk.run("check") == 0, desk.line
