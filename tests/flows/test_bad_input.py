"""Each wrong input gives one line, the right exit code and the right charge.

The releases run in this process, against the orchestrator of the test session, in the home that
`tests/conftest.py` made for it; every test has a dataset of its own in the shared ledger.
"""

import copy
import itertools
import json
import os
import re
import sqlite3
import stat
from operator import itemgetter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from flows.cli import main
from flows.site.request import job_of
from flows.site.site_file import load_site
from storage.files.diagnostics import DiagnosticsFile
from storage.files.workspace import PrivateWorkspace
from storage.ledger.ledger_db import LedgerDatabase
from storage.settings import Settings
from storage.sources.cohorts import CohortReader
from tasks.execution import runtime
from tasks.execution.shards import load_shard
from tasks.ingest import pieces as ingest_pieces
from tasks.steps.ingest_steps import ingest

HOME = Path(os.environ["PREFECT_HOME"]).parent
CANARY = "zq7143"
NUMBERS = itertools.count()

SITE = {
    "dataset": "wards",
    "title": "Wards",
    "source": {"kind": "csv", "path": "cohort.csv"},
    "privacy_unit": {"column": "patient", "max_rows_per_patient": 2},
    "privacy": {"epsilon": 1.0, "delta": 1.0e-6},
    "budget": {"lifetime_epsilon": 5.0},
    "method": {"kind": "naive_bayes"},
    "rows": 40,
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


class Desk:
    """A folder with a table and a site file, and a way to run the command on them."""

    def __init__(self, folder, capsys):
        self.folder = folder
        self._capsys = capsys
        self.site = copy.deepcopy(SITE)
        self.site["dataset"] = f"wards-{next(NUMBERS)}"
        self.table = folder / "cohort.csv"
        self.path = folder / "site.yaml"
        self.site["source"]["path"] = str(self.table)
        self.write_table(cohort())
        self.errors = ""
        self.output = ""

    def write_table(self, frame, **options):
        frame.to_csv(self.table, index=False, **options)

    def cells(self, column, **values):
        """Write the table with these cells changed, ``row_3="x"`` for row 3."""
        frame = cohort()
        for row, value in values.items():
            frame.loc[int(row.removeprefix("row_")), column] = value
        self.write_table(frame)

    def release(self, *options):
        if isinstance(self.site, dict):
            self.path.write_text(yaml.safe_dump(self.site))
        self._capsys.readouterr()
        code = main(["release", str(self.path), *options])
        self.output, self.errors = self._capsys.readouterr()
        assert "Traceback" not in self.errors + self.output
        assert CANARY not in self.errors + self.output
        return code

    @property
    def line(self):
        """The one line of a failure, with the name of the diagnostics file made constant."""
        (line,) = (text for text in self.errors.splitlines() if text.startswith("clustmix: "))
        assert self.errors.endswith(line + "\n")
        return re.sub(r"r-\d{8}-[0-9a-f]{8}", "ID", line.removeprefix("clustmix: "))

    @property
    def states(self):
        """States of the entries of the dataset, in order."""
        if not (HOME / "ledger.sqlite").exists():
            return []
        ledger = LedgerDatabase(HOME / "ledger.sqlite")
        return [str(entry.state.value) for entry in ledger.entries(self.site["dataset"])]

    @property
    def diagnostics(self):
        """The records of the diagnostics file that the line points to."""
        (name,) = re.findall(r"r-\d{8}-[0-9a-f]{8}\.jsonl", self.errors)
        path = HOME / "diagnostics" / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        return [json.loads(record) for record in path.read_text().splitlines()]


@pytest.fixture
def desk(tmp_path, capsys, monkeypatch):
    for name in [name for name in os.environ if name.startswith("CLUSTMIX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLUSTMIX_HOME", str(HOME))
    monkeypatch.setenv("CLUSTMIX_RELEASES", str(tmp_path / "releases"))
    monkeypatch.setenv("CLUSTMIX_DASK_WORKERS", "0")
    monkeypatch.setenv("CLUSTMIX_OFFLINE", "true")
    monkeypatch.chdir(tmp_path)
    umask = os.umask(0o022)
    yield Desk(tmp_path, capsys)
    os.umask(umask)


@pytest.fixture
def before_the_flow(desk, monkeypatch):
    """Let nothing past the point where the orchestrator would be started."""

    def started(settings):
        raise AssertionError("the orchestrator was started")

    monkeypatch.setattr(runtime, "configure_prefect", started)
    return desk


def refused(desk, line, *, code=2, options=()):
    assert desk.release(*options) == code
    assert desk.line == line


# ---- the source, before a row is read: no orchestrator, no entry -----------------------------


def test_missing_file(before_the_flow):
    desk = before_the_flow
    desk.table.unlink()
    refused(
        desk,
        f"SOURCE_MISSING: expected a file or folder at {desk.table}; correct the path in the site "
        "file",
    )
    assert desk.states == []


def test_a_folder_is_no_csv_file(before_the_flow):
    desk = before_the_flow
    desk.table.unlink()
    desk.table.mkdir()
    refused(desk, f"SOURCE_MISSING: expected a file at {desk.table}, found a folder")


def test_wrong_delimiter(before_the_flow):
    desk = before_the_flow
    desk.write_table(cohort(), sep=";")
    refused(
        desk,
        "CSV_DELIMITER: the header is one column with delimiter ',' and contains ';'; set "
        "'delimiter' in the site file to the one the file uses",
    )
    assert desk.states == []


@pytest.mark.parametrize("column", ["age", "died", "patient", "note"])
def test_missing_column(before_the_flow, column):
    desk = before_the_flow
    desk.write_table(cohort().drop(columns=column))
    refused(
        desk,
        f"HEADER_MISMATCH: expected the declared columns, found none named {column}; check the "
        "delimiter and the names in the schema",
    )
    assert desk.states == []


def test_extra_column(before_the_flow):
    desk = before_the_flow
    desk.write_table(cohort().assign(height=CANARY))
    refused(
        desk,
        "HEADER_MISMATCH: expected declared columns only, found height; declare them in the schema "
        "or list them under ignore",
    )


def test_duplicate_column(before_the_flow):
    desk = before_the_flow
    frame = cohort()
    frame.insert(3, CANARY, 1)
    frame.insert(4, CANARY + "x", 1)
    desk.write_table(frame.rename(columns={CANARY + "x": CANARY}))
    refused(
        desk,
        "HEADER_DUPLICATE: every column needs a name of its own; columns 4 and 5 of the header "
        "have the same: rename one of them",
    )


def test_column_without_a_name(before_the_flow):
    desk = before_the_flow
    desk.write_table(cohort().rename(columns={"note": ""}))
    refused(
        desk,
        "HEADER_EMPTY_NAME: every column needs a name; column 7 of the header has none: add it",
    )


def test_a_table_without_header_line_shows_no_cell(before_the_flow):
    desk = before_the_flow
    frame = cohort()
    frame.loc[0, "patient"] = CANARY
    desk.write_table(frame, header=False)
    refused(
        desk,
        "HEADER_MISMATCH: expected the declared columns, found none named age, died, lactate, "
        "note, patient, sex, unit; check the delimiter and the names in the schema",
    )


def test_zero_bytes(before_the_flow):
    desk = before_the_flow
    desk.table.write_bytes(b"")
    refused(
        desk,
        "CSV_HEADER: the first line must hold the column names; it is empty or longer than a "
        "million characters",
    )
    assert desk.states == []


@pytest.mark.parametrize("content", [CANARY.encode(), b"", b"PAR1" + b"\0" * 40 + b"PAR1"])
def test_a_parquet_file_that_is_none(before_the_flow, content):
    desk = before_the_flow
    desk.site["source"] = {"kind": "parquet", "path": str(desk.folder / "a.parquet")}
    (desk.folder / "a.parquet").write_bytes(content)
    refused(
        desk,
        "SOURCE_UNREADABLE: every file must be Parquet with the same columns and types; write it "
        "again",
    )
    assert desk.states == []


def test_an_empty_parquet_folder(before_the_flow):
    desk = before_the_flow
    folder = desk.folder / "parts"
    folder.mkdir()
    desk.site["source"] = {"kind": "parquet", "path": str(folder)}
    refused(desk, f"SOURCE_MISSING: expected files '*.parquet' in folder {folder}")


UNREADABLE_QUERY = (
    "SOURCE_UNREADABLE: the query could not be run or its result not be read; try the query, the "
    "address and the driver with the database's own client"
)


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


def test_a_query_for_a_table_that_is_absent(before_the_flow):
    database(before_the_flow, table=CANARY)
    refused(before_the_flow, UNREADABLE_QUERY)
    assert before_the_flow.states == []


def test_a_query_about_several_patients_at_once(before_the_flow):
    database(before_the_flow)
    before_the_flow.site["source"]["query"] = (
        "SELECT c.*, COUNT(*) OVER () AS n FROM cohort c WHERE note = :note"
    )
    assert before_the_flow.release() == 2
    assert before_the_flow.line.startswith(
        "SITE_INVALID: site.yaml: source.query: expected a query that acts on one patient at a "
        "time, found a window over several patients; "
    )
    assert before_the_flow.states == []


def test_a_database_that_is_absent(before_the_flow):
    desk = before_the_flow
    database(desk)
    desk.site["source"]["url"] = f"sqlite:///{desk.folder}/{CANARY}"
    refused(
        desk,
        "SOURCE_MISSING: expected a SQLite file at the address of the source; correct the site "
        "file or the environment variable",
    )


@pytest.mark.parametrize("url", [f"{CANARY}://user:pass@host/x", CANARY, "sqlite:///"])
def test_a_url_that_is_none(before_the_flow, monkeypatch, url):
    database(before_the_flow, url_env="COHORT_URL")
    monkeypatch.setenv("COHORT_URL", url)
    assert before_the_flow.release() == 2
    assert before_the_flow.line.startswith(("SOURCE_UNREADABLE: ", "SOURCE_MISSING: "))


def test_a_url_that_is_not_set(before_the_flow):
    database(before_the_flow, url_env="COHORT_URL")
    refused(
        before_the_flow,
        "DATABASE_URL: environment variable COHORT_URL is not set; set it to the SQLAlchemy URL of "
        "the database",
    )


# ---- the site file: no orchestrator, no entry ------------------------------------------------


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("privacy.epsilon", 0, "expected a number greater than 0"),
        ("privacy.epsilon", -1.0, "expected a number greater than 0"),
        ("privacy.epsilon", float("nan"), "expected a finite number"),
        ("privacy.epsilon", float("inf"), "expected a finite number"),
        ("privacy.delta", 0.001, "expected a number less than 0.001"),
        ("privacy.delta", 0, "expected a number greater than 0"),
        ("privacy.delta", -1e-6, "expected a number greater than 0"),
        ("privacy.delta", float("nan"), "expected a finite number"),
        ("colour", "red", "unknown key"),
        ("privacy.gamma", 1, "unknown key"),
        ("source.delimeter", ";", "unknown key"),
        ("rows", 0, "expected a number greater than or equal to 1"),
        ("rows", "many", "expected a valid integer"),
        ("rows", None, "expected this key, found none"),
        (
            "method",
            {"kind": "magic"},
            "expected 'kind' to be one of 'clustmix', 'dp_cda', 'dpgm', 'naive_bayes', "
            "'dp_kmeans', 'dp_merf', 'dp_mix', 'local_perturbation', 'mwem', "
            "'random_projection', found 'magic'",
        ),
        ("method", {"slices": 2}, "expected the key 'kind', found none"),
        (
            "method",
            {"kind": "clustmix", "min_cluster_size": 0},
            ".min_cluster_size: expected a number greater than or equal to 1",
        ),
        (
            "method",
            {"kind": "clustmix", "slices": 65},
            ".slices: expected a number less than or equal to 64",
        ),
        ("method", {"kind": "naive_bayes", "slices": 2}, ".slices: unknown key"),
        ("method", "clustmix", "expected a mapping of keys"),
        ("title", "a\nb", "expected one line of text with printable characters"),
        ("schema.columns", [], "expected a list with at least 1 item, not 0"),
    ],
)
def test_a_site_file_that_declares_something_wrong(before_the_flow, where, value, message):
    desk = before_the_flow
    target = desk.site
    *above, last = where.split(".")
    for key in above:
        target = target[key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    path = where + message.partition(":")[0] if message.startswith(".") else where
    text = message.partition(": ")[2] if message.startswith(".") else message
    refused(desk, f"SITE_INVALID: site.yaml: {path}: {text}")
    assert desk.states == []


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            "a: [",
            "SITE_UNREADABLE: site.yaml: expected plain YAML, found an error at line 1, column 5: "
            "expected the node content, but found '<stream end>'",
        ),
        ("", "SITE_UNREADABLE: site.yaml: expected a mapping of keys; see clustmix init"),
        ("- a\n- b\n", "SITE_UNREADABLE: site.yaml: expected a mapping of keys; see clustmix init"),
        (
            "rows: 1\ntitle: x\nrows: 2\n",
            "SITE_UNREADABLE: site.yaml: expected plain YAML, found an error at line 3, column 1: "
            "the key 'rows' is given twice",
        ),
    ],
)
def test_a_site_file_that_is_no_mapping(before_the_flow, content, line):
    desk = before_the_flow
    desk.site = None
    desk.path.write_text(content)
    refused(desk, line)


def test_a_site_file_that_is_a_folder_or_absent(before_the_flow):
    desk = before_the_flow
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


def test_the_published_analysis_is_not_released(before_the_flow):
    desk = before_the_flow
    desk.site |= {"analysis": "published", "public_benchmark_data": True}
    refused(
        desk,
        "NOT_PUBLISHABLE: expected analysis: proven, found published: its epsilon is claimed by "
        "the paper, not proven, so it can be compared (clustmix benchmark) but not released",
    )
    assert desk.states == []


# ---- the folders -----------------------------------------------------------------------------


def test_a_home_that_is_open_to_others(before_the_flow, monkeypatch):
    desk = before_the_flow
    home = desk.folder / "home"
    home.mkdir()
    home.chmod(0o755)
    monkeypatch.setenv("CLUSTMIX_HOME", str(home))
    refused(
        desk,
        f"DIRECTORY_MODE: directory {home} holds private data and must have mode 0700, found 0755; "
        f"run: chmod 700 {home}",
    )
    assert list(home.iterdir()) == []


def test_a_home_that_is_closed_to_its_owner(before_the_flow, monkeypatch):
    desk = before_the_flow
    home = desk.folder / "home"
    home.mkdir()
    home.chmod(0o500)
    monkeypatch.setenv("CLUSTMIX_HOME", str(home))
    refused(
        desk,
        f"DIRECTORY_MODE: directory {home} holds private data and must have mode 0700, found 0500; "
        f"run: chmod 700 {home}",
    )
    home.chmod(0o700)


def test_a_home_on_a_read_only_file_system(before_the_flow, monkeypatch):
    desk = before_the_flow
    home = desk.folder / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("CLUSTMIX_HOME", str(home))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    refused(
        desk,
        f"DIRECTORY_UNUSABLE: expected to write to the private directory {home}, found it "
        "read-only; choose another place (CLUSTMIX_HOME)",
    )


def test_a_home_that_cannot_be_made(before_the_flow, monkeypatch):
    desk = before_the_flow
    home = desk.table / "home"
    monkeypatch.setenv("CLUSTMIX_HOME", str(home))
    refused(
        desk,
        f"DIRECTORY_UNUSABLE: expected to make the private directory {home}, found: Not a "
        "directory; choose another place (CLUSTMIX_HOME) or mend its permissions",
    )


def test_a_home_that_is_a_file(before_the_flow, monkeypatch):
    desk = before_the_flow
    monkeypatch.setenv("CLUSTMIX_HOME", str(desk.table))
    refused(
        desk,
        f"NOT_A_DIRECTORY: expected a directory at {desk.table}, found a file or a symbolic link; "
        "remove it or choose another place",
    )


@pytest.mark.parametrize("below", [False, True])
def test_a_release_folder_that_is_a_file(before_the_flow, below):
    desk = before_the_flow
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


def test_a_release_folder_that_cannot_be_made(before_the_flow, monkeypatch):
    desk = before_the_flow
    monkeypatch.setenv("CLUSTMIX_RELEASES", str(desk.table / "releases"))
    refused(
        desk,
        f"RELEASES_UNUSABLE: expected to write releases below {desk.table}, found that this is not "
        "permitted; mend its permissions or set CLUSTMIX_RELEASES to another folder",
    )


def test_a_setting_that_is_wrong(before_the_flow, monkeypatch):
    monkeypatch.setenv("CLUSTMIX_DASK_WORKERS", CANARY)
    refused(
        before_the_flow,
        "INVALID_SETTING: environment variable CLUSTMIX_DASK_WORKERS: Input should be a valid "
        "integer, unable to parse string as an integer; correct or unset it",
    )


# ---- values, in the flow: the charge stands, since rows were read ----------------------------


def refusal_of(*broken):
    columns = "; ".join(f"column {column}: expected {rule}" for column, rule in broken)
    return (
        f"INPUT_REFUSED: {columns}; correct the source or the schema; the rows are in ID.jsonl "
        "(restricted; folder diagnostics of CLUSTMIX_HOME)"
    )


NUMBERS_ONLY = "numbers and the declared missing codes only"


@pytest.mark.parametrize(
    "broken",
    [
        [
            ("age", CANARY, NUMBERS_ONLY),
            ("died", CANARY, "declared label values only"),
            ("lactate", "-inf", "finite numbers only"),
            ("sex", CANARY, "declared levels only, as no level is declared for other values"),
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
    desk.write_table(frame)
    refused(desk, refusal_of(*((column, rule) for column, _, rule in broken)))
    # Rows were read: the charge is not given back.
    assert desk.states == ["burned"]
    assert sorted(desk.diagnostics, key=itemgetter("column")) == [
        {"column": column, "rule": rule, "rows": [{"row": row, "value": value} for row in (3, 41)]}
        for column, value, rule in broken
    ]
    assert not (desk.folder / "releases" / desk.site["dataset"]).exists()


def test_numbers_that_are_not_finite_in_parquet(desk):
    frame = cohort()
    frame["age"] = frame["age"].astype(float)
    frame["lactate"] = frame["lactate"].astype(float)
    frame["died"] = frame["died"].astype(int)
    frame.loc[2, "age"] = np.nan
    frame.loc[5, "lactate"] = np.inf
    path = desk.folder / "cohort.parquet"
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path)
    desk.site["source"] = {"kind": "parquet", "path": str(path)}
    refused(
        desk,
        "INPUT_REFUSED: column age: expected a value in every cell; column lactate: expected "
        "finite numbers only; correct the source or the schema; the rows are in ID.jsonl "
        "(restricted; folder diagnostics of CLUSTMIX_HOME)",
        options=["--json"],
    )
    assert [record["rows"] for record in desk.diagnostics] == [
        [{"row": 2, "value": "nan"}],
        [{"row": 5, "value": "inf"}],
    ]
    answer = json.loads(desk.output)
    assert answer["error"] == "INPUT_REFUSED"
    assert answer["exit_code"] == 2
    assert desk.errors == f"clustmix: {answer['error']}: {answer['message']}\n"


def test_rows_are_numbered_over_the_whole_source(desk, monkeypatch):
    chunks = CohortReader.chunks
    monkeypatch.setattr(CohortReader, "chunks", lambda self, names: chunks(self, names, 10))
    frame = cohort()
    frame.loc[[0, 1, 22], "note"] = "x"
    frame.loc[[3, 25, 58], "sex"] = CANARY
    desk.write_table(frame)
    desk.site["source"]["select"] = {"note": "-"}
    refused(
        desk, refusal_of(("sex", "declared levels only, as no level is declared for other values"))
    )
    rows = [row["row"] for record in desk.diagnostics for row in record["rows"]]
    assert rows == [3, 25, 58]


@pytest.mark.parametrize("chunk_rows", [7, 60])
def test_chunks_leave_shards_and_weights_as_they_are(desk, monkeypatch, chunk_rows):
    desk.path.write_text(yaml.safe_dump(desk.site))
    job = job_of(load_site(desk.path), "r-20260101-00000000")
    chunks = CohortReader.chunks
    monkeypatch.setattr(CohortReader, "chunks", lambda self, names: chunks(self, names, chunk_rows))
    with PrivateWorkspace.create(desk.folder / "private", job.ref.release_id) as workspace:
        reader = CohortReader(job.source, settings=Settings(home=desk.folder))
        diagnostics = DiagnosticsFile(desk.folder / "private" / "d.jsonl")
        rows = [load_shard(path) for path in ingest(job, reader, workspace, diagnostics)]
    codes = np.concatenate([shard.codes for shard in rows])
    weight = np.concatenate([shard.weight for shard in rows])
    # Twenty of the forty patients have two rows.
    assert len(codes) == 60
    assert weight.sum() == 40.0
    expected = np.clip(cohort()["age"].astype(int) // 10, 0, 10)
    assert sorted(codes[:, 0].tolist()) == sorted(expected.tolist())


def test_a_header_without_rows(desk):
    desk.write_table(cohort().iloc[:0])
    refused(desk, "EMPTY_TABLE: expected rows in the source, found an empty table")
    assert desk.states == ["burned"]


def test_a_table_without_labels(desk):
    desk.site["schema"]["label"]["nullable"] = True
    desk.write_table(cohort().assign(died=""))
    refused(desk, "EMPTY_TABLE: column died: expected rows with a label, found none")


def test_one_label_level(desk):
    desk.write_table(cohort().assign(died=1))
    refused(
        desk,
        "ONE_LABEL_LEVEL: column died: expected two or more label levels in the source, found one; "
        "a classifier cannot be trained on it",
    )
    assert desk.states == ["burned"]


def test_rows_of_different_length(desk):
    with desk.table.open("a") as handle:
        handle.write(f"{CANARY},1\n")
    refused(
        desk,
        "SOURCE_UNREADABLE: the file must have a header line, the declared encoding and delimiter, "
        "and as many cells in every row as in the header; export it again or correct the site file",
    )


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


# ---- what is mended by a declared rule, and other sources ------------------------------------


def released(desk):
    assert desk.release("--json") == 0, desk.errors
    assert desk.states == ["published"]
    answer = json.loads(desk.output)
    bundle = Path(answer["bundle"])
    assert bundle.parent == desk.folder / "releases" / desk.site["dataset"]
    table = pd.read_csv(bundle / "synthetic.csv")
    assert len(table) == desk.site["rows"]
    return table


def test_unknown_categories_and_values_out_of_bounds_are_mended(desk):
    frame = cohort()
    frame.loc[:9, "unit"] = CANARY
    frame.loc[10:19, "age"] = 7143
    frame.loc[20:29, "lactate"] = -7143.5
    desk.write_table(frame)
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
    line = (
        f"BUDGET_EXCEEDED: expected at most rho {balance.remaining_rho:f}, what is left of the "
        f"lifetime cap {balance.cap_rho:f} of cohort '{desk.site['dataset']}', found a request "
        f"for {entry.rho:f}; 0 releases like this one are left"
    )
    refused(desk, line, code=3, options=["--new-draw"])
    assert desk.states == ["published"]
    refused(desk, line, code=3, options=["--new-draw", "--json"])
    assert json.loads(desk.output) == {
        "error": "BUDGET_EXCEEDED",
        "message": line.removeprefix("BUDGET_EXCEEDED: "),
        "exit_code": 3,
    }
