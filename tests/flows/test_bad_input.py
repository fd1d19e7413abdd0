import json
from operator import itemgetter

import made_up_release as made
import pytest
from desks import CANARY


@pytest.fixture
def desk(desk):
    desk.declare_cohort(made.made_up_cohort())
    return desk


def refused(desk, line, *, code=2, options=()):
    assert desk.release(*options) == code
    assert desk.line == line


def empty_folder(desk):
    (desk.folder / "a.parquet").mkdir()
    desk.site["source"] = {"kind": "parquet", "path": str(desk.folder / "a.parquet")}


def query(desk, text):
    desk.site["source"] = {"kind": "sql", "url_env": "COHORT_URL", "query": text}


SOURCES = {
    "missing file": (lambda desk: desk.table.unlink(), "SOURCE_MISSING: expected a file or folder"),
    "empty folder": (empty_folder, "SOURCE_MISSING: expected files '*.parquet' in folder"),
    "several patients": (
        lambda desk: query(desk, "SELECT c.*, COUNT(*) OVER () AS n FROM cohort c"),
        "SITE_INVALID: site.yaml: line 53, column 10: source.query: expected a query that acts on ",
    ),
    "no address": (
        lambda desk: query(desk, "SELECT * FROM cohort"),
        "DATABASE_URL: environment variable COHORT_URL is not set",
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_cannot_be_used(desk, before_the_flow, name):
    spoil, line = SOURCES[name]
    spoil(desk)
    assert desk.release() == 2
    assert desk.line.startswith(line)
    assert desk.states == []


def test_a_folder_in_place_of_a_site_file(desk, before_the_flow):
    desk.site = None
    desk.path.mkdir()
    refused(
        desk,
        f"SITE_MISSING: expected a site file at {desk.path}, found a folder; name a file in it",
    )


@pytest.mark.parametrize(
    ("variable", "below", "code"),
    [
        ("CLUSTMIX_HOME", "cohort.csv/home", "DIRECTORY_UNUSABLE: expected to make the private"),
        ("CLUSTMIX_HOME", "open", "DIRECTORY_MODE: directory"),
        ("CLUSTMIX_RELEASES", "cohort.csv/releases", "RELEASES_UNUSABLE: expected to write"),
        ("CLUSTMIX_RELEASES", "", "RELEASES_UNUSABLE: expected a folder for releases"),
    ],
)
def test_a_folder_that_is_open_or_a_file_or_below_one(
    desk, before_the_flow, monkeypatch, variable, below, code
):
    desk.site["dataset"] = "wards"
    (desk.folder / "wards").touch()
    (desk.folder / "open").mkdir(mode=0o755)
    monkeypatch.setenv(variable, str(desk.folder / below))
    assert desk.release() == 2
    assert desk.line.startswith(code)
    assert list((desk.folder / "open").iterdir()) == desk.states == []


def refusal_of(*broken):
    columns = "; ".join(f"column {column}: expected {rule}" for column, rule in broken)
    return (
        f"INPUT_REFUSED: {columns}; correct the source or the schema; the rows are in ID.jsonl "
        "(restricted; folder diagnostics of CLUSTMIX_HOME); nothing is charged"
    )


def test_values_that_break_a_rule(desk):
    broken = [
        ("age", "40.5", "whole numbers only"),
        ("died", CANARY, "declared label values only"),
        ("lactate", "-inf", "finite numbers only"),
        ("patient", " ", "a value in every cell"),
        ("smoker", CANARY, "declared levels only, as no level is declared for other values"),
    ]
    frame = made.made_up_cohort().astype(object)
    for column, value, _ in broken:
        frame.loc[[3, 41], column] = value
    frame.to_csv(desk.table, index=False)
    refused(desk, refusal_of(*((column, rule) for column, _, rule in broken)))
    assert desk.states == ["void"]
    assert sorted(desk.diagnostics, key=itemgetter("column")) == [
        {"column": column, "rule": rule, "rows": [{"row": row, "value": value} for row in (3, 41)]}
        for column, value, rule in broken
    ]
    assert not (desk.folder / "releases" / desk.site["dataset"]).exists()


def test_more_than_the_remaining_budget(desk):
    desk.site["budget"]["lifetime_epsilon"] = 1.3
    assert desk.release() == 0
    assert desk.release("--new-draw", "--json") == 3
    answer = json.loads(desk.output)
    assert (answer["error"], answer["exit_code"]) == ("BUDGET_EXCEEDED", 3)
    assert desk.line == f"BUDGET_EXCEEDED: {answer['message']}"
    assert "expected an epsilon of at most 0.776 at delta 1e-06" in desk.line
    assert desk.states == ["published"]
