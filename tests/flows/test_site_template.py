import re

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.cli import main
from flows.site.site_file import load_site
from flows.site.template import site_template
from privacy.errors import ClustMixError, ConfigurationError
from storage.codebooks.variables import Variable
from storage.schema.plain_yaml import PLACEHOLDER

HEADER = ["patient", "age", "lactate", "ward", "no", "when (first): #1"]
KINDS = {"patient": "integer", "age": "integer", "lactate": "real", "ward": "categorical"}


def test_a_template_is_refused_until_it_is_filled_in(tmp_path):
    path = tmp_path / "new.yaml"
    path.write_text(site_template(HEADER, KINDS))
    with pytest.raises(
        ConfigurationError, match=r"INCOMPLETE: new\.yaml: .* dataset: expected a value"
    ):
        load_site(path)


def filled_in(template):
    data = yaml.safe_load(template)
    age, ward, _ = data["schema"]["columns"]
    age.update(lower=0, upper=110, bins=11)
    ward.update(levels=["A", "B"])
    data["schema"]["columns"] = [age, ward]
    data["schema"]["label"] = {"name": "died", "levels": {"no": [0], "yes": [1]}}
    data["source"] = {"kind": "csv", "path": "cohort.csv"}
    data["privacy_unit"] = {"column": "patient", "max_rows_per_patient": 2}
    data["privacy"] = {"epsilon": 1.0, "delta": 1e-6}
    data["budget"]["lifetime_epsilon"] = 2.0
    data.update(dataset="wards", title="Wards", patients=1000)
    return yaml.safe_dump(data)


TEMPLATE = site_template(["age", "ward", "died"], {"age": "integer", "ward": "categorical"})


def test_a_template_that_is_filled_in_loads_with_what_its_comments_offer(tmp_path):
    path = tmp_path / "wards.yaml"
    path.write_text(filled_in(TEMPLATE))
    site = load_site(path)
    assert site.columns_to_read == ("age", "ward", "died", "patient")
    assert site.budget.model_dump(exclude_none=True) == {"lifetime_epsilon": 2.0}
    assert site.approval == "none"
    offered = re.sub(
        r"^( *)# (?=(?:cohort|dataset_epsilon|window|approval): )", r"\1", TEMPLATE, flags=re.M
    )
    path.write_text(filled_in(offered))
    site = load_site(path)
    assert site.cohort == "heart-failure"
    assert (site.budget.dataset_epsilon, site.budget.window.days) == (2.0, 365)
    assert site.approval == "officer"


CODEBOOK = {
    "PATIENT ": Variable(name="PATIENT ", kind="ignore"),
    "age": Variable(name="age", kind="integer", lower=0, upper=120, unit="years", required=True),
    "lactate": Variable(name="lactate", meaning="Lactate:\t#1", unit="mmol/L", missing=("?",)),
    "ward": Variable(
        name="ward", kind="categorical", levels=(("A", "old"), ("B", "new")), required=False
    ),
    "no": Variable(name="no", kind="categorical", levels=(("0", "no"), ("1", "yes"))),
    "elsewhere": Variable(name="elsewhere"),
}


def proposed(*arguments, **options):
    text = site_template(*arguments, **options)
    return text, yaml.safe_load(text)


def test_a_codebook_fills_in_what_it_says_and_marks_the_rest():
    text, data = proposed(HEADER, KINDS, codebook=CODEBOOK, label="no", ignore=[HEADER[-1]])
    age, lactate, ward = data["schema"]["columns"]
    assert age == {
        "name": "age",
        "kind": "integer",
        "lower": 0,
        "upper": 120,
        "bins": [0, 30, 40, 50, 60, 70, 80, 90, 120],
    }
    assert (lactate["lower"], lactate["upper"], lactate["missing"]) == (0, 30, ["?"])
    assert ward == {"name": "ward", "kind": "categorical", "levels": ["A", "B"], "nullable": True}
    assert data["schema"]["label"]["levels"] == [
        {"name": "no", "values": [0]},
        {"name": "yes", "values": [1]},
    ]
    assert data["schema"]["ignore"] == ["patient", "when (first): #1"]
    assert "the table has no column: elsewhere\n" in text
    guesses = [line.split("#")[0].split() for line in text.splitlines() if "# guess" in line]
    assert [line[0] for line in guesses] == [
        *("bins:", "lower:", "upper:", "bins:", "decimals:", "nullable:")
    ]
    _, data = proposed(HEADER, KINDS, codebook=CODEBOOK, patient="patient")
    assert data["privacy_unit"] == {"column": "patient", "max_rows_per_patient": PLACEHOLDER}
    assert data["schema"]["ignore"] == []


def test_names_alone_are_hints():
    header = ["is_smoker", "icd_code", "heart_rate", "admitted_date", "sepsisFlag", "ward_temp"]
    text, data = proposed(header, {"is_smoker": "integer", "sepsisFlag": "integer"})
    kinds = [column["kind"] for column in data["schema"]["columns"]]
    coded = "categorical"
    assert kinds == [coded, coded, "integer", "date", coded, PLACEHOLDER]
    assert "kind: date  # guess by its name" in text
    assert (data["schema"]["columns"][3]["lower"], text.count("guess: or quarter")) == (
        PLACEHOLDER,
        1,
    )
    assert text.count(": yes or no") == 2


@pytest.mark.parametrize(
    "told",
    [
        {"missing": ("999",)},  # a number that the range has
        {"kind": "integer", "meaning": "potassium"},  # whole numbers, in tenths
        {"upper": -1.0},
    ],
)
def test_a_range_that_does_not_go_with_the_codebook_is_not_proposed(told):
    told = {"kind": "real", "meaning": "glucose"} | told
    text, data = proposed(["x"], codebook={"x": Variable(name="x", **told)})
    assert data["schema"]["columns"][0]["lower"] == PLACEHOLDER
    assert "Harutyunyan" not in text


_TEXT = st.text(max_size=12)


@settings(deadline=None, max_examples=40)
@given(
    name=st.text(min_size=1, max_size=8),
    meaning=_TEXT,
    unit=_TEXT,
    levels=st.lists(st.tuples(st.text(min_size=1, max_size=5), _TEXT), max_size=3),
    ends=st.sampled_from([(None, None), (0.0, 0.5), (-1.0, 200.0), (None, 7.0)]),
    label=st.booleans(),
)
def test_whatever_a_codebook_says_the_template_is_plain_yaml(
    name, meaning, unit, levels, ends, label
):
    told = Variable(
        name=name, levels=tuple(levels), meaning=meaning, unit=unit, lower=ends[0], upper=ends[1]
    )
    _, data = proposed([name, "z"], codebook={name: told}, label=name if label else None)
    columns = [column["name"] for column in data["schema"]["columns"]]
    assert columns == (["z"] if label else [name, "z"])


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"label": "ZEBRA"}, "COLUMN_MISSING"),
        ({"patient": "ZEBRA"}, "COLUMN_MISSING"),
        ({"ignore": ["age", "ZEBRA"]}, "COLUMN_MISSING"),
        ({"codebook": {"ZEBRA": Variable(name="ZEBRA")}}, "CODEBOOK_OTHER_TABLE"),
    ],
)
def test_what_does_not_fit_the_table_is_one_clear_line(options, code):
    with pytest.raises(ClustMixError, match=f"^{code}: .*expected") as caught:
        site_template(HEADER, KINDS, **options)
    assert "ZEBRA" not in str(caught.value)


def test_the_commands(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("patient,age,died\n7,CANARY,1\n")
    (tmp_path / "book.csv").write_text("name,type,values\nage,int,0-120\ndied,code,0=no;1=yes\n")
    options = "--codebook book.csv --label died --patient patient --output site.yaml".split()
    assert main(["init", "table.csv", *options]) == 0
    assert "agree with 2 guesses" in capsys.readouterr().out
    data = yaml.safe_load((tmp_path / "site.yaml").read_text())
    assert [column["name"] for column in data["schema"]["columns"]] == ["age"]
    assert "CANARY" not in (tmp_path / "site.yaml").read_text()
    assert main(["init", "table.csv", *options]) == 2
    assert "FILE_EXISTS" in capsys.readouterr().err
    assert main(["init", "table.csv", "--codebook", "table.csv"]) == 2
    assert "7" not in capsys.readouterr().err

    assert main(["init", "--ranges", "all"]) == 0
    assert main(["init", "--ranges", "SBP", "--json"]) == 0
    assert '"loinc": "8480-6"' in capsys.readouterr().out
    assert main(["init", "--ranges", "hb"]) == 0
    assert "Kratz" not in capsys.readouterr().out
    assert main(["init", "--ranges", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("clustmix: RANGE_UNKNOWN: expected")


def test_tables_of_events_stand_beside_the_patients(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text("patient,age,died\n7,CANARY,1\n")
    (tmp_path / "stays.csv").write_text("who,day,device\n7,CANARY,d\n")
    labs = {"patient": ["CANARY"], "taken": [pd.Timestamp("2024-01-01")], "test": ["CANARY"]}
    pd.DataFrame(labs).to_parquet("labs.parquet")
    book = "name,type,values,required\nage,int,0-120,\ndied,code,0=no;1=yes,\ntest,code,hb;ldl,yes"
    (tmp_path / "book.csv").write_text(book)
    told = "people.csv --codebook book.csv --label died --patient patient --ignore device "
    tables = "--events labs=labs.parquet --events stays=stays.csv "
    assert main(["init", *told.split(), *tables.split()]) == 0
    text = capsys.readouterr().out
    assert "CANARY" not in text
    assert "no column" not in text
    first, second = (data := yaml.safe_load(text))["events"]
    assert (second["key"], second["at"]) == (PLACEHOLDER, {"column": PLACEHOLDER})
    assert (second["ignore"], len(second["columns"])) == (["device"], 2)
    assert (first["key"], first["at"]) == ("patient", {"column": "taken"})
    first["columns"][0] |= {"lower": "2024-01-01", "upper": "2024-12-31"}
    first |= {"max_rows_per_patient": 9, "kind": "test"}
    data |= {"dataset": "labs", "title": "Labs", "patients": 900, "events": [first]}
    data |= {"privacy": {"epsilon": 1.0, "delta": 1e-6}, "budget": {"lifetime_epsilon": 2.0}}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(data))
    assert load_site(tmp_path / "site.yaml").events[0].kinds == ("hb", "ldl")
    for wrong in ("--events labs.parquet", f"{tables} --events labs=stays.csv"):
        assert main(["init", *told.split(), *wrong.split()]) == 2
        assert capsys.readouterr().err.startswith("clustmix: EVENTS_FORM: expected")


@pytest.mark.parametrize(
    ("name", "units"), [("cholesterol", "mg/dL or mmol/L"), ("temperature", r"Cel or \[degF\]")]
)
def test_a_quantity_of_two_units_is_not_guessed(name, units):
    text = site_template(["patient", name])
    assert re.search(rf"lower: FILL_IN .* is the table in {units}\?", text)
    known = {name: Variable(name=name, kind="real", unit=units.split()[0])}
    assert "lower: FILL_IN" not in site_template(["patient", name], codebook=known)
