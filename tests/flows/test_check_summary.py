import json
import re
import sqlite3

import made_up_release as made
import numpy as np
import pytest
import yaml
from desks import CANARY, HOME

from storage.files.diagnostics import MAX_ROWS_PER_RULE
from storage.schema.table import TableSchema
from storage.sources.tables import parquet_files

COLUMNS = [
    *made.SCHEMA["columns"],
    {"name": "sex", "kind": "categorical", "levels": ["female", "male", "else"], "other": "else"},
    {"name": "cholesterol", "kind": "real", "lower": 80, "upper": 400, "bins": 8, "decimals": 1},
    {"name": "admitted", "kind": "integer", "lower": 2000, "upper": 2025, "bins": 5},
    {"name": "weight", "kind": "real", "lower": 20, "upper": 200, "bins": 9, "nullable": True},
]


@pytest.fixture
def desk(desk):
    desk.declare_cohort()
    desk.site["schema"] = {**made.SCHEMA, "columns": COLUMNS}
    rng = np.random.default_rng(3)
    desk.frame = made.made_up_cohort(0).astype(object).reset_index(drop=True)
    n = len(desk.frame)
    desk.frame["sex"] = rng.choice(["female", "male"], n)
    desk.frame["cholesterol"] = rng.normal(200, 30, n).clip(90, 390).round(1)
    desk.frame["admitted"] = rng.integers(2001, 2024, n)
    desk.frame["weight"] = rng.normal(80, 9, n).clip(30, 190).round(1)
    return desk


def shown(desk, *, code=0):
    desk.frame.to_csv(desk.table, index=False)
    assert desk.run("check", "--show") == code
    return desk.output.splitlines()


def third(cells, value):
    return np.where(np.arange(len(cells)) % 3 == 0, value, cells)


FAULTS = {
    "a code for missing": ("age", lambda age: third(age, 999), "999: stands for missing?"),
    "a low code for missing": ("age", lambda age: third(age, -9), "-9: stands for missing?"),
    "a text for missing": ("lactate", lambda cells: third(cells, "NA"), "NA: stands for missing?"),
    "upper case": ("sex", lambda sex: sex.str.upper(), "FEMALE, MALE: another spelling?"),
    "a level in upper case": ("ward", lambda w: w.replace("icu", "ICU"), "ICU: another spelling?"),
    "a refused spelling": ("smoker", lambda one: one.replace("y", "Y"), "Y: another spelling?"),
    "a label in upper case": ("died", lambda one: one.replace("y", "Yes"), "Yes: another spelling"),
    "an empty column": ("weight", lambda _: "", "no cell has a value"),
    "a wrong unit": ("cholesterol", lambda one: one / 38.67, "most beyond a bound: another unit?"),
    "a unit inside": ("weight", lambda one: one / 3 + 0, "nine tenths at one end: another unit?"),
    "a year of birth": ("age", lambda age: 2024 - age, "years, above upper"),
    "a short year": ("admitted", lambda year: year % 100, "short years or ages, below lower"),
    "a date": ("age", lambda age: "1950-02-" + (age % 9 + 10).astype(str), "dates, not numbers"),
    "a decimal comma": ("lactate", lambda c: c.astype(str).str.replace(".", ","), "decimal comma"),
    "no key": ("patient", lambda keys: third(keys, ""), "rows without a patient key"),
    "NA as a key": ("patient", lambda keys: third(keys, "NA"), "NA: no key of a patient?"),
    "one key for many": ("patient", lambda keys: third(keys, "P00001"), "a twentieth of the rows"),
}  # fmt: skip
REFUSED = {"a text for missing", "a refused spelling", "a label in upper case", "a date"} | {
    "a decimal comma", "no key",
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_in_the_first_lines_with_what_would_mend_it(desk, name):
    column, spoilt, said = FAULTS[name]
    desk.frame[column] = spoilt(desk.frame[column])
    lines = shown(desk, code=2 if name in REFUSED else 0)
    (at,) = (n for n, line in enumerate(lines[:20]) if line.startswith(f"  {column} "))
    seen = " ".join(" ".join(lines[at:20]).split())
    assert said in seen.partition("nothing to mend")[0]
    assert sum(line.startswith("# ") for line in lines) == 1
    assert f"# {column}: " in "\n".join(lines)
    assert (name == "a decimal comma") == ("decimal: ','" in lines)


def test_all_faults_together_are_seen_and_the_changes_make_the_table_pass(desk):
    frame = desk.frame
    frame["age"], frame["weight"] = third(frame["age"], 999), ""
    frame["sex"], frame["smoker"] = frame["sex"].str.upper(), frame["smoker"].replace("y", "Y")
    lines = shown(desk, code=2)
    assert lines[1].startswith("  smoker ")  # the one for which the table is refused
    for said in ("999: stands", "FEMALE, MALE:", "Y: another", "no cell has a value"):
        assert any(said in line for line in lines[:20])
    changes = [yaml.safe_load(line[2:]) for line in lines if line.startswith("- {")]
    own = {one["name"]: one for one in COLUMNS if one["name"] != "weight"}
    own |= {one["name"]: one for one in changes}
    desk.site["schema"] |= {"columns": [*own.values()], "ignore": ["note", "weight"]}
    TableSchema.model_validate(desk.site["schema"])
    lines = shown(desk)
    assert lines[1].startswith(f"nothing to mend in {len(own) + 2}: ")


def test_a_cell_that_only_the_table_has_is_not_proposed(desk):
    desk.frame["smoker"] = third(desk.frame["smoker"], CANARY)
    desk.frame["lactate"] = third(desk.frame["lactate"], 47.3)
    assert shown(desk, code=2)  # which looks for the canary
    assert "47.3" not in desk.output
    assert "other: FILL_IN" in desk.output
    assert desk.run("check", "--show", "--json") == 2
    answer = json.loads(desk.output)
    assert (answer["passed"], answer["error"]) == (False, "CHECK_FAILED")
    lactate = next(one for one in answer["summary"] if one.get("column") == "lactate")
    assert lactate["shares"]["clipped_high"] == pytest.approx(1 / 3, abs=0.01)
    assert {"low", "high", "shares"} & {*lactate} == {"shares"}
    assert desk.run("check", "--json") == 2
    assert "summary" not in json.loads(desk.output)


def test_twenty_rows_of_a_rule_whoever_reads(desk, monkeypatch):
    monkeypatch.setattr(parquet_files, "ROWS_WORTH_A_FRAGMENT", 100)
    desk.frame["smoker"] = third(desk.frame["smoker"], CANARY)
    frame = desk.frame.astype({"age": int, "lactate": float, "cholesterol": float, "weight": float})
    shown(desk, code=2)
    summaries = []
    for source in ("csv", "parquet"):
        if source == "parquet":
            path = desk.folder / "cohort.parquet"
            frame.convert_dtypes().to_parquet(path, row_group_size=50, index=False)
            desk.site["source"] = {"kind": source, "path": str(path)}
            assert desk.run("check", "--show") == 2
        rows = [row for one in desk.diagnostics for row in one["rows"]]
        assert [row["row"] for row in rows] == [3 * n for n in range(MAX_ROWS_PER_RULE)]
        assert {row["value"] for row in rows} == {CANARY}
        (name,) = re.findall(r"r-\d{8}-[0-9a-f]{8}\.jsonl", desk.errors)
        lines = (HOME / "diagnostics" / name).read_text().splitlines()
        assert ["rule" in json.loads(line) for line in lines] == sorted("rule" in x for x in lines)
        summaries.append([line for line in lines if '"rule"' not in line])
    assert summaries[0] == summaries[1]


def test_an_open_quote_and_a_row_of_a_query_are_found(desk):
    text = desk.frame.to_csv(index=False).splitlines()
    text[700] = text[700].rpartition(",")[0] + ',"female'
    desk.table.write_text("\n".join(text))
    assert desk.run("check") == 2
    (row,) = (row for one in desk.diagnostics for row in one["rows"])
    assert row == {"row": 699, "value": "cohort.csv, line 701"}
    database = desk.folder / "cohort.sqlite"
    desk.frame["weight"] = [
        b"\x00" if n == 77 else cell for n, cell in enumerate(desk.frame["age"])
    ]
    with sqlite3.connect(database) as connection:
        desk.frame.to_sql("cohort", connection, index=False)
    desk.site["source"] = {"kind": "sql", "dialect": "sqlite", "url": f"sqlite:///{database}"}
    names = [*(one["name"] for one in COLUMNS), "patient", "died", "note"]
    desk.site["source"]["query"] = f"SELECT {', '.join(names)} FROM cohort"  # noqa: S608
    assert desk.run("check") == 2
    (row,) = (row for one in desk.diagnostics for row in one["rows"])
    assert row == {"row": 77, "value": "row 78 of the query"}


def test_a_column_in_one_bin_is_named_on_page_and_card(desk):
    desk.frame["cholesterol"] /= 38.67
    desk.site["schema"]["columns"] = [
        one | {"lower": 0} if one["name"] == "cholesterol" else one for one in COLUMNS
    ]
    desk.frame.to_csv(desk.table, index=False)
    assert desk.release() == 0
    for name in ("report.html", "data_card.md"):
        page = (desk.bundle / name).read_text("utf-8")
        (said,) = re.findall(r"Nine tenths or more of .* of these columns: (.*?)\. By the", page)
        assert said.startswith("cholesterol (0 to below 50")
        assert "age" not in said
