"""Each wrong input gives one line, the right exit code and the right charge."""

import copy
import json
import os
import sqlite3
from operator import itemgetter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from desks import CANARY, HOME

from storage.ledger.ledger_db import LedgerDatabase
from tasks.ingest import pieces as ingest_pieces

SITE = {
    "privacy_unit": {"column": "patient", "max_rows_per_patient": 2},
    "schema": {
        "columns": [
            {"name": "age", "kind": "integer", "lower": 0, "upper": 110, "bins": 11},
            {"name": "lactate", "kind": "real", "lower": 0, "upper": 20, "bins": 10},
            {"name": "sex", "kind": "categorical", "levels": ["f", "m"]},
            {
                "name": "unit",
                "kind": "categorical",
                "levels": ["icu", "ward", "others"],
                "other": "others",
            },
        ],
        "label": {"name": "died", "levels": {"no": [0], "yes": [1]}},
        "ignore": ["note"],
    },
}


def cohort():
    """Sixty rows of forty patients, all as declared."""
    rng = np.random.default_rng(8)
    n = 60
    return pd.DataFrame(
        {
            "patient": [f"p{i % 40}" for i in range(n)],
            "age": rng.integers(20, 90, n).astype(object),
            "lactate": np.round(rng.uniform(0.5, 9, n), 2).astype(object),
            "sex": rng.choice(["f", "m"], n).astype(object),
            "unit": rng.choice(["icu", "ward"], n).astype(object),
            "died": (np.arange(n) % 3 == 0).astype(int).astype(object),
            "note": "-",
        }
    )


@pytest.fixture
def desk(desk):
    desk.table = desk.folder / "cohort.csv"
    desk.site |= copy.deepcopy(SITE) | {"source": {"kind": "csv", "path": str(desk.table)}}
    write(desk, cohort())
    return desk


def write(desk, frame, **options):
    frame.to_csv(desk.table, index=False, **options)


def refused(desk, line, *, code=2, options=()):
    assert desk.release(*options) == code
    assert desk.line == line


def database(desk, *, table="cohort", url_env=None):
    path = desk.folder / "cohort.sqlite"
    with sqlite3.connect(path) as connection:
        cohort().to_sql("cohort", connection, index=False)
    connection.close()
    desk.site["source"] = {
        "kind": "sql",
        "query": f"SELECT * FROM {table} WHERE note = :note ORDER BY patient",  # noqa: S608
        "parameters": {"note": "-"},
        "dialect": "sqlite",
        **({"url": f"sqlite:///{path}"} if url_env is None else {"url_env": url_env}),
    }


def parquet(desk, content):
    path = desk.folder / "a.parquet"
    path.mkdir() if content is None else path.write_bytes(content)
    desk.site["source"] = {"kind": "parquet", "path": str(path)}


def no_header_line(desk):
    frame = cohort()
    frame.loc[0, "patient"] = CANARY
    write(desk, frame, header=False)


def window_over_patients(desk):
    database(desk)
    desk.site["source"]["query"] = "SELECT c.*, COUNT(*) OVER () AS n FROM cohort c"
    del desk.site["source"]["parameters"]


def none_named(names):
    return (
        f"HEADER_MISMATCH: expected the declared columns, found none named {names}; check the "
        "delimiter and the names in the schema"
    )


SOURCES = {
    "missing file": (
        lambda desk: desk.table.unlink(),
        "SOURCE_MISSING: expected a file or folder at {folder}/cohort.csv; correct the path in "
        "the site file",
    ),
    "no patient": (
        lambda desk: write(desk, cohort().drop(columns="patient")),
        none_named("patient"),
    ),
    "extra column": (
        lambda desk: write(desk, cohort().assign(height=CANARY)),
        "HEADER_MISMATCH: expected declared columns only, found height; declare them in the "
        "schema or list them under ignore",
    ),
    "no header line": (no_header_line, none_named("age, died, lactate, note, patient, sex, unit")),
    "text as parquet": (
        lambda desk: parquet(desk, CANARY.encode()),
        "SOURCE_UNREADABLE: every file must be Parquet with the same columns and types; write it "
        "again",
    ),
    "empty folder": (
        lambda desk: parquet(desk, None),
        "SOURCE_MISSING: expected files '*.parquet' in folder {folder}/a.parquet",
    ),
    "absent table": (
        lambda desk: database(desk, table=CANARY),
        "SOURCE_UNREADABLE: the query could not be run or its result not be read; try the query, "
        "the address and the driver with the database's own client",
    ),
    "several patients": (
        window_over_patients,
        "SITE_INVALID: site.yaml: source.query: expected a query that acts on one patient at a "
        "time, found a window over several patients; ",
    ),
    "no address": (
        lambda desk: database(desk, url_env="COHORT_URL"),
        "DATABASE_URL: environment variable COHORT_URL is not set; set it to the SQLAlchemy URL "
        "of the database",
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_that_cannot_be_used(desk, before_the_flow, name):
    spoil, line = SOURCES[name]
    spoil(desk)
    assert desk.release() == 2
    line = line.format(folder=desk.folder)
    assert desk.line.startswith(line) if line.endswith("; ") else desk.line == line
    assert desk.states == []


def test_a_site_file_that_cannot_be_used(desk, before_the_flow):
    desk.site["privacy"]["epsilon"] = 0
    refused(desk, "SITE_INVALID: site.yaml: privacy.epsilon: expected a number greater than 0")
    assert desk.states == []
    desk.path.unlink()
    desk.site = None
    refused(
        desk,
        f"SITE_MISSING: expected a site file at {desk.path}; check the path, or run clustmix init",
    )
    desk.path.mkdir()
    refused(
        desk,
        f"SITE_MISSING: expected a site file at {desk.path}, found a folder; name a file in it",
    )


def test_the_published_analysis_is_not_released(desk, before_the_flow):
    desk.site |= {"analysis": "published", "public_benchmark_data": True}
    refused(
        desk,
        "NOT_PUBLISHABLE: expected analysis: proven, found published: its epsilon is claimed by "
        "the paper, not proven, so it can be compared (clustmix benchmark) but not released",
    )
    assert desk.states == []


def test_a_home_that_is_open_or_on_a_read_only_file_system(desk, before_the_flow, monkeypatch):
    home = desk.folder / "home"
    home.mkdir(mode=0o755)
    monkeypatch.setenv("CLUSTMIX_HOME", str(home))
    refused(
        desk,
        f"DIRECTORY_MODE: directory {home} holds private data and must have mode 0700, found "
        f"0755; run: chmod 700 {home}",
    )
    assert list(home.iterdir()) == []
    home.chmod(0o700)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    refused(
        desk,
        f"DIRECTORY_UNUSABLE: expected to write to the private directory {home}, found it "
        "read-only; choose another place (CLUSTMIX_HOME)",
    )


@pytest.mark.parametrize(
    ("variable", "below", "line"),
    [
        (
            "CLUSTMIX_HOME",
            "home",
            "DIRECTORY_UNUSABLE: expected to make the private directory {place}, found: Not a "
            "directory; choose another place (CLUSTMIX_HOME) or mend its permissions",
        ),
        (
            "CLUSTMIX_RELEASES",
            "releases",
            "RELEASES_UNUSABLE: expected to write releases below {place.parent}, found that this "
            "is not permitted; mend its permissions or set CLUSTMIX_RELEASES to another folder",
        ),
    ],
)
def test_a_folder_that_is_a_file_or_below_one(
    desk, before_the_flow, monkeypatch, variable, below, line
):
    place = desk.table / below
    monkeypatch.setenv(variable, str(place))
    refused(desk, line.format(place=place))


@pytest.mark.parametrize("below", [False, True])
def test_a_release_folder_that_is_a_file(desk, before_the_flow, below):
    folder = desk.folder / "releases"
    if below:
        folder.mkdir()
        folder /= desk.site["dataset"]
    folder.touch()
    refused(
        desk,
        f"RELEASES_UNUSABLE: expected a folder for releases at {folder}, found a file; move it "
        "away or set CLUSTMIX_RELEASES to another folder",
    )
    assert desk.states == []


def refusal_of(*broken):
    columns = "; ".join(f"column {column}: expected {rule}" for column, rule in broken)
    return (
        f"INPUT_REFUSED: {columns}; correct the source or the schema; the rows are in ID.jsonl "
        "(restricted; folder diagnostics of CLUSTMIX_HOME)"
    )


NUMBERS_ONLY = "numbers and the declared missing codes only"
LEVELS_ONLY = "declared levels only, as no level is declared for other values"


@pytest.mark.parametrize(
    "broken",
    [
        [
            ("age", CANARY, NUMBERS_ONLY),
            ("died", CANARY, "declared label values only"),
            ("lactate", "-inf", "finite numbers only"),
            ("sex", CANARY, LEVELS_ONLY),
        ],
        [("age", "NaN", NUMBERS_ONLY)],
        [("age", "40.5", "whole numbers only"), ("patient", " ", "a value in every cell")],
        [("age", "", "a value in every cell")],
    ],
)
def test_values_that_break_a_rule(desk, broken):
    frame = cohort()
    for column, value, _ in broken:
        frame.loc[[3, 41], column] = value
    write(desk, frame)
    refused(desk, refusal_of(*((column, rule) for column, _, rule in broken)))
    assert desk.states == ["burned"]
    assert sorted(desk.diagnostics, key=itemgetter("column")) == [
        {"column": column, "rule": rule, "rows": [{"row": row, "value": value} for row in (3, 41)]}
        for column, value, rule in broken
    ]
    assert not (desk.folder / "releases" / desk.site["dataset"]).exists()


def test_numbers_that_are_not_finite_in_parquet(desk):
    frame = cohort().astype({"age": float, "lactate": float, "died": int})
    frame.loc[2, "age"] = np.nan
    frame.loc[5, "lactate"] = np.inf
    path = desk.folder / "cohort.parquet"
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path)
    desk.site["source"] = {"kind": "parquet", "path": str(path)}
    line = refusal_of(("age", "a value in every cell"), ("lactate", "finite numbers only"))
    refused(desk, line, options=["--json"])
    assert [record["rows"] for record in desk.diagnostics] == [
        [{"row": 2, "value": "nan"}],
        [{"row": 5, "value": "inf"}],
    ]
    answer = json.loads(desk.output)
    assert answer["error"] == "INPUT_REFUSED"
    assert answer["exit_code"] == 2
    assert desk.errors == f"clustmix: {answer['error']}: {answer['message']}\n"


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (
            lambda frame: frame.iloc[:0],
            "EMPTY_TABLE: expected rows in the source, found an empty table",
        ),
        (
            lambda frame: frame.assign(died=""),
            "EMPTY_TABLE: column died: expected rows with a label, found none",
        ),
        (
            lambda frame: frame.assign(died=1),
            "ONE_LABEL_LEVEL: column died: expected two or more label levels in the source, found "
            "one; a classifier cannot be trained on it",
        ),
    ],
)
def test_a_table_without_rows_labels_or_a_second_level(desk, spoil, line):
    desk.site["schema"]["label"]["nullable"] = True
    write(desk, spoil(cohort()))
    refused(desk, line)
    assert desk.states == ["burned"]


def test_a_file_that_changes_while_it_is_read(desk, monkeypatch):
    encode = ingest_pieces.encode_chunk

    def meanwhile(frame, schema):
        with desk.table.open("a") as handle:
            handle.write("p99,50,1,f,icu,0,-\n")
        return encode(frame, schema)

    monkeypatch.setattr(ingest_pieces, "encode_chunk", meanwhile)
    refused(
        desk,
        "SOURCE_CHANGED: the source changed while it was read; wait until the export is complete "
        "and start again",
    )
    assert desk.states == ["burned"]


def released(desk):
    assert desk.release("--json") == 0, desk.errors
    assert desk.states == ["published"]
    assert Path(json.loads(desk.output)["bundle"]) == desk.bundle
    table = pd.read_csv(desk.bundle / "synthetic.csv")
    assert len(table) == desk.site["rows"]
    return table


def test_unknown_categories_and_values_out_of_bounds_are_mended(desk):
    frame = cohort()
    frame.loc[:9, "unit"] = CANARY
    frame.loc[10:19, "age"] = 7143
    frame.loc[20:29, "lactate"] = -7143.5
    write(desk, frame)
    table = released(desk)
    assert set(table["unit"]) <= {"icu", "ward", "others"}
    assert table["age"].between(0, 110).all()
    assert table["lactate"].between(0, 20).all()


def test_a_partitioned_parquet_folder(desk):
    frame = cohort().astype({"age": int, "lactate": float, "died": int})
    folder = desk.folder / "parts"
    pq.write_to_dataset(
        pa.Table.from_pandas(frame, preserve_index=False), folder, partition_cols=["unit"]
    )
    desk.site["source"] = {"kind": "parquet", "path": str(folder)}
    released(desk)


def test_a_query(desk, monkeypatch):
    database(desk, url_env="COHORT_URL")
    monkeypatch.setenv("COHORT_URL", f"sqlite:///{desk.folder / 'cohort.sqlite'}")
    released(desk)


def test_more_than_the_remaining_budget(desk):
    desk.site["budget"]["lifetime_epsilon"] = 1.3
    released(desk)
    ledger = LedgerDatabase(HOME / "ledger.sqlite")
    (entry,) = ledger.entries(desk.site["dataset"])
    balance = ledger.balance(desk.site["dataset"])
    message = (
        f"expected at most rho {balance.remaining_rho:f}, what is left of the "
        f"lifetime cap {balance.cap_rho:f} of cohort '{desk.site['dataset']}', found a request "
        f"for {entry.rho:f}; at delta 1e-06 an epsilon of at most 0.776 fits, and 0 releases like "
        "this one are left"
    )
    refused(desk, f"BUDGET_EXCEEDED: {message}", code=3, options=["--new-draw", "--json"])
    assert desk.states == ["published"]
    assert json.loads(desk.output) == {
        "error": "BUDGET_EXCEEDED",
        "message": message,
        "exit_code": 3,
    }
