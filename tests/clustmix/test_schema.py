import warnings

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from clustmix import (
    CategoricalColumn,
    ClustMix,
    ImageColumns,
    IntegerColumn,
    Label,
    RealColumn,
    Schema,
)
from privacy.errors import ConfigurationError

LABEL = Label(name="y", levels={"no": ("0",), "yes": ("1",)})


class Sealed(pd.DataFrame):
    def __getitem__(self, key):
        raise AssertionError("a cell was read")

    iterrows = itertuples = to_numpy = __getitem__


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IntegerColumn(name="a", lower=3, upper=1, bins=2), "IntegerColumn: .*lower below"),
        (lambda: IntegerColumn(name="a"), "IntegerColumn: lower: .*; and upper: .*; and bins: "),
        (lambda: CategoricalColumn(name="a", level=("x",)), "CategoricalColumn: .*unknown key"),
        (lambda: ImageColumns(height=100, width=2), "ImageColumns: height: expected a number"),
        (lambda: Schema(items=("a",), label=3), "Schema: label: expected"),
        (lambda: Schema(columns=({"name": "a"},), label=LABEL), "columns.*the key 'kind'"),
    ],
)
def test_a_declaration_that_is_not_acceptable_is_one_line_of_ours(make, message):
    with pytest.raises(ConfigurationError, match=f"SCHEMA_INVALID: .*{message}") as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_schema_from_a_site_file_and_from_a_schema_alone(tmp_path):
    site = tmp_path / "site.yaml"
    site.write_text(
        "dataset: x\nschema:\n  columns:\n    - {name: a, kind: integer, lower: 0, upper: 9, "
        "bins: 2}\n  label: {name: y, levels: {'no': [], 'yes': []}}\n"
    )
    alone = tmp_path / "alone.yaml"
    alone.write_text("items: [a, b]\nlabel: {name: y, levels: {'no': [], 'yes': []}}\n")
    assert Schema.from_yaml(site).column_names == ("a",)
    schema = Schema.from_yaml(str(alone))
    assert schema.column_names == ("a", "b")
    again = tmp_path / "again.yaml"
    # A class implies its kind.
    typed = Schema(
        columns=(
            IntegerColumn(name="age", lower=0, upper=99, bins=5),
            RealColumn(name="hb", lower=0, upper=25, bins=(0, 12.5, 25), decimals=1),
            CategoricalColumn(name="ward", levels=("A", "No"), missing=("?",)),
        ),
        label=LABEL,
        ignore=("note",),
    )
    assert typed.to_yaml(again) == again.read_text()
    assert Schema.from_yaml(again).model_dump() == typed.model_dump()
    with pytest.raises(ConfigurationError, match=r"FILE_NOT_MADE.* File exists"):
        typed.to_yaml(again)
    for text, message in (("label: {name: y}", "label: expected ex"), ("schema: 3", "")):
        alone.write_text(text)
        with pytest.raises(ConfigurationError, match=f"SCHEMA_INVALID: alone.yaml: {message}"):
            Schema.from_yaml(alone)
    with pytest.raises(ConfigurationError, match="SITE_MISSING"):
        Schema.from_yaml(tmp_path / "absent.yaml")


DAYS = "lower: 2020-01-01\n  upper: 2025-12-31\n  bins: year"


def test_a_draft_has_types_and_declared_levels_and_nothing_of_a_cell(tmp_path):
    frame = Sealed(
        {
            "patient": ["p1", "p2"],
            "age": [41, 67],
            "hb": [12.5, 13.1],
            "ward": ["A", "B"],
            "sex": pd.Categorical(["f", "f"], categories=["f", "m"]),
            "again": [True, True],
            "seen": pd.to_datetime(["2025-01-01", "2025-01-02"]),
            "died": pd.Categorical(["no", "no"], categories=["no", "yes"]),
        }
    )
    draft = Schema.from_frame(frame, label="died", patient="patient")
    written = draft.to_yaml(tmp_path / "schema.yaml")
    for cell in ("41", "67", "12.5", "- A", "p1", "2025"):
        assert cell not in written
    assert draft.columns[3].levels == ("f", "m")
    assert draft.columns[4].levels == ("False", "True")
    assert draft.label.level_names == ("no", "yes")
    assert (draft.columns[5].kind, draft.columns[5].bins) == ("date", "year")
    places = (
        r"columns\[0\] \(age\).lower, columns\[0\] \(age\).upper, .*, "
        r"columns\[1\] \(hb\).bins, columns\[2\] \(ward\).levels, .*;"
    )
    for use in (
        lambda: ClustMix(draft, epsilon=1.0, delta=1e-6),
        lambda: Schema.from_yaml(tmp_path / "schema.yaml"),
    ):
        with pytest.raises(ConfigurationError, match=f"SCHEMA_INCOMPLETE: .*{places}"):
            use()
    filled = (
        written.replace("levels: FILL_IN", "levels: [A, B]")
        .replace("lower: FILL_IN\n  upper: FILL_IN\n  bins: year", DAYS)
        .replace("lower: FILL_IN", "lower: 0")
        .replace("FILL_IN", "5", 2)
        .replace("upper: FILL_IN", "upper: 30")
        .replace("FILL_IN", "5")
    )
    (tmp_path / "filled.yaml").write_text(filled)
    schema = Schema.from_yaml(tmp_path / "filled.yaml")
    model = ClustMix(schema, epsilon=1.0, delta=1e-6, patient_column="patient")
    assert model.plan().guarantee.epsilon <= 1.0
    with pytest.raises(ConfigurationError, match=r"COLUMN_MISSING: .*found 'dead'"):
        Schema.from_frame(frame, label="dead")


def test_levels_of_polars_and_arrow_are_taken_where_a_person_declared_them():
    table = pl.DataFrame(
        {"open": ["a"], "closed": ["u"], "y": [True]},
        schema={"open": pl.Categorical, "closed": pl.Enum(["u", "v"]), "y": pl.Boolean},
    )
    draft = Schema.from_frame(table, label="y")
    assert draft.label.level_names == ("False", "True")
    # A Categorical of polars collects the levels of rows, of other tables too.
    assert [column.levels for column in draft.columns] == ["FILL_IN", ("u", "v")]
    coded = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["u", "v"]))
    arrow = pa.table({"closed": coded, "n": pa.array([1]), "y": pa.array([True])})
    draft = Schema.from_frame(arrow, label="y")
    assert draft.columns[0].levels == ("u", "v")
    assert draft.columns[1].lower == "FILL_IN"


CODEBOOK = """name,type,minimum,maximum,levels,missing,required
pid,identifier,,,,,
age,integer,0,120,,,yes
hb,real,0,25.5,,-1,
children,integer,0,9,,,
ward,categorical,,,A=Surgery; B=Medicine,?,
died,categorical,,,0=no; 1=yes,,
"""


def test_a_codebook_with_bounds_and_levels_is_a_whole_schema(tmp_path):
    path = tmp_path / "codebook.csv"
    path.write_text(CODEBOOK)
    schema = Schema.from_codebook(path, label="died", patient="pid")
    age, hb, children, ward = schema.columns
    assert (age.lower, age.upper, age.bins, age.kind) == (0, 120, 10, "integer")
    assert (hb.decimals, hb.missing, hb.nullable) == (1, ("-1",), True)
    assert children.bins == 10
    assert (ward.levels, ward.missing) == (("A", "B"), ("?",))
    assert schema.label.levels == {"no": ("0",), "yes": ("1",)}
    ClustMix(schema, epsilon=1.0, delta=1e-6, patient_column="pid").plan()
    path.write_text(f"{CODEBOOK}lactate,real,0,,,,\nnote,,,,,,\n")
    draft = Schema.from_codebook(path, label="died", patient="pid")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        places = r"\(lactate\).upper, .* \(lactate\).bins, .* \(note\).kind;"
        with pytest.raises(ConfigurationError, match=places):
            ClustMix(draft, epsilon=1.0, delta=1e-6)
