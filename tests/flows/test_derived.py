import json
import re

import made_up_release as made
import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.site.template import site_template
from storage.codebooks.codebook_files import read_codebook
from storage.schema.table import TableSchema
from storage.schema.visit_columns import VisitColumns
from tasks.ingest.encoding import decode, encode_chunk

WARDS = {"icu": 3, "surgery": 2, "medicine": None, "elsewhere": 0.5}
BROKEN = {3: "child", 4: "strange"}
DERIVED = {
    "band": {"from": "age", "edges": [18, 65], "levels": ["child", "adult", "old"]},
    "class": {"from": "lactate", "edges": [0, 2, 20], "levels": ["low", "high"]},
    "points": {"sum": ["age", "extra"], "missing_as": 0},
    "weight": {"from": "ward", "map": WARDS, "when_broken": "mend"},
}
BOOK = """name,type,levels,minimum,maximum,derived from
BMI,real,,10,90,
BMI_WHO,categorical,<18.5 | 18.5-24.9 | 25+,,,BMI
a,integer,,0,5,
b,integer,,0,5,
total,integer,,0,10,sum of a + b
age,integer,,0,99,
age_group,categorical,1=<18; 2=18-99,,,
risk,categorical,low | high,,,"age, guideline"
died,categorical,0=no; 1=yes,,,
"""
DECLARED = """
label: {name: y, levels: [{name: "no", values: []}, {name: "yes", values: []}]}
columns:
- {name: x, kind: real, lower: -2, upper: 9, decimals: 2, bins: 7, missing: ["?"]}
- {name: n, kind: integer, lower: -1, upper: 3, bins: 2, nullable: true}
- {name: w, kind: categorical, levels: [a, b], nullable: true}
- {name: f, kind: categorical, levels: [0, 0.5]}
- {name: d, kind: date, lower: "2020-01-01", upper: "2021-01-01", bins: year}
"""
P, V = {-1: "p", 0: "q", 1: "p", 2: None, 3: "r"}, {"a": 2.5, "b": -1}
REFUSED = {
    "no label and no derived column, found ok": {"from": "ok", "map": {}},
    "levels or numbers of d": {"from": "d", "edges": [1], "levels": [1, 2]},
    "numbers, found levels that are none": {"sum": ["n", "w"]},
    "each of a, b and no other; compare b": {"from": "w", "map": {"a": 1}},
}


def schema_of(constraints=(), **derived):
    declared = {"derived": derived, "constraints": constraints}
    return TableSchema.model_validate(yaml.safe_load(DECLARED) | declared)


@pytest.fixture
def desk(desk):
    rng, frame = np.random.default_rng(5), made.made_up_cohort(0)
    frame["extra"] = rng.choice(["0", "10", ""], len(frame))
    frame["band"] = np.select([frame["age"] < 18, frame["age"] < 65], ["child", "adult"], "old")
    frame["points"] = frame["age"] + pd.to_numeric(frame["extra"]).fillna(0)
    frame["weight"] = frame["ward"].map(WARDS)
    desk.declare_cohort(frame)
    extra = {"name": "extra", "kind": "categorical", "levels": [0, 10], "nullable": True}
    columns = {"columns": [*made.SCHEMA["columns"], extra]}
    desk.site |= {"schema": made.SCHEMA | columns | {"derived": DERIVED}, "rows": 3_000}
    desk.frame = frame
    return desk


def test_a_release_keeps_the_rules_in_every_row_at_no_cost(desk):
    assert desk.run("plan", "--json") == 0
    assert (
        "points, the sum of age + extra, costs nothing; weight"
        in json.loads(desk.output)["derived"]
    )
    assert desk.release() == 0, desk.line
    rows = pd.read_csv(desk.bundle / "synthetic.csv")
    assert [*rows] == ["age", "lactate", "ward", "smoker", "extra", *DERIVED, "died"]
    assert rows["class"].tolist() == np.where(rows["lactate"] < 2, "low", "high").tolist()
    assert rows["weight"].equals(rows["ward"].map(WARDS))
    assert rows["points"].equals(rows["age"] + rows["extra"].fillna(0).astype(int))
    gate = json.loads((desk.bundle / "manifest.json").read_text())["gate"]
    assert {"the class of age", "level: band", "grid: weight"} <= {one["check"] for one in gate}
    said = "computed as the value by a map of ward (elsewhere = 0.5; icu = 3; medicine = missing; "
    for file in ("croissant.json", "datapackage.json", "healthdcat.jsonld", "data_card.md"):
        assert said in (desk.bundle / file).read_text("utf-8"), file


def test_a_check_counts_rows_that_break_a_rule_and_a_release_refuses_by_name(desk):
    desk.frame.loc[[*BROKEN], "band"] = [*BROKEN.values()]
    desk.frame.loc[5:8, "weight"] = 77
    desk.frame.to_csv(desk.table, index=False)
    assert desk.run("check", "--show") == 2
    shown = " ".join(desk.output.split())
    assert "band 0.1 % rows that break the rule of a derived column weight 0.2 %" in shown
    assert desk.release() == 2
    assert desk.line.startswith("INPUT_REFUSED: column band: expected the class of age; correct")
    assert (desk.states[-1], "77" in desk.line) == ("void", False)
    assert desk.diagnostics[0]["rows"] == [{"row": row, "value": v} for row, v in BROKEN.items()]


def test_init_proposes_rules_by_the_codebook_and_others_by_name_as_comments(tmp_path):
    (book := tmp_path / "book.csv").write_text(BOOK)
    text = site_template([*(known := read_codebook(book))], codebook=known, label="died")
    for line in (
        '    BMI_WHO: {from: BMI, edges: [18.5, 25], levels: ["<18.5", "18.5-24.9", "25+"]}  # BMI',
        "    total: {sum: [a, b]}  # sum of a + b",
        "    risk: {from: age, edges: FILL_IN, levels: [low, high]}  # age, guideline",
        "  #   age_group: {from: age, edges: [18], levels: [1, 2]}",
    ):
        assert f"{line}\n" in text
    assert re.findall("- name: ([A-Za-z_]+)", text)[:4] == ["BMI", "a", "b", "age"]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_rows_follow_the_rules_and_are_checked_by_them(seed):
    rng, levels = np.random.default_rng(seed), ["c0", "c1", "c2"]
    edges = sorted(rng.choice(np.arange(-300, 950) / 100, 2, replace=False).tolist())
    classes = {"from": "x", "edges": edges, "levels": levels, "missing_as": "unknown"}
    maps = {"m": {"from": "n", "map": P}, "v": {"from": "w", "map": V}}
    schema = schema_of(c=classes, s={"sum": ["x", "n", "f"]}, **maps)
    assert TableSchema.model_validate_json(schema.model_dump_json()) == schema
    codes = rng.integers([one.n_codes for one in schema.columns], size=(40, 5), dtype=np.uint16)
    rows = decode(codes, codes[:, 3], schema, rng=rng)
    cells = rows.astype(object).mask(rows.isna() | (rows == "?"), None)
    for row in cells.to_dict("records"):
        x, n = (None if row[name] is None else float(row[name]) for name in "xn")
        assert row["c"] == ("unknown" if x is None else levels[sum(x >= edge for edge in edges)])
        assert (row["m"], row["v"]) == (P.get(n), V.get(row["w"]))
        assert row["s"] == (None if None in (x, n) else round(x + n + float(row["f"]), 2))
    assert encode_chunk(rows, schema, mend=False).violations == ()
    other = rows[name := str(rng.choice([*schema.derived]))].sample(frac=1.0).array
    own, moved = (pd.Series(one, dtype=object).fillna("-") for one in (rows[name], other))
    unlike = np.flatnonzero(own != moved).tolist()
    broken = encode_chunk(rows.assign(**{name: other}), schema).violations
    assert [(one.column, one.rows.tolist()) for one in broken] == [(name, unlike)] * bool(unlike)


@pytest.mark.parametrize("said", REFUSED)
def test_a_rule_that_does_not_fit_is_refused(said):
    with pytest.raises(ValueError, match=said):
        schema_of(bad=REFUSED[said], ok={"sum": ["n"]})
    with pytest.raises(ValueError, match="derived, t: expected no constraint of it"):
        schema_of([{"holds": "n + f = t"}], t={"sum": ["n", "f"]})


def test_visits_leave_derived_columns_of_visits_to_the_release():
    visits, schema = VisitColumns(first=2, order="at", columns=("n",)), schema_of()
    own = [schema.columns[1].model_copy(update={"name": name}) for name in visits.released]
    derived = {"t": {"sum": visits.released}, "c": {"from": "x", "edges": [1], "levels": [1, 2]}}
    schema = TableSchema(columns=[schema.columns[0], *own], label=schema.label, derived=derived)
    assert [*visits.row_schema(schema).derived] == ["c"]
    assert visits.source_columns(schema) == ("x", "n", "y", "at")
