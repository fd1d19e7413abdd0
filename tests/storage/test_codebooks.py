import json

import openpyxl
import pytest
import yaml

from privacy.errors import ConfigurationError
from storage.codebooks.codebook_files import read_codebook
from storage.codebooks.ranges import CITATIONS, CLINICAL_RANGES, range_of, ranges_named
from storage.codebooks.variables import variable
from storage.schema.columns import NumericColumn

ROWS = [
    ["Registry of the ward"],
    [],
    ["Variable", "Type", "Min", "Max", "Values", "Unit", "Missing codes", "Description"],
    ["patient", "identifier", "", "", "", "", "", "Pseudonym"],
    ["age", "integer", 0, 120, "", "years", "", "Age at\nadmission"],
    ["creatinine", "number", "", "60", "", "mg/dL", "-1 = no blood; ?", "Creatinine"],
    ["sex", "code", "", "", "1=male; 2=female; 9=not recorded", "", "", "Sex"],
    ["ward", "", "", "", "A | B, the old one", "", "", ""],
    ["pain", "ordinal", "", "", "0 to 3", "", "", ""],
]


def csv_text(rows, delimiter=","):
    quoted = ('"' + str(cell).replace('"', '""') + '"' for row in rows for cell in row)
    return "\n".join(delimiter.join(next(quoted) for _ in row) for row in rows)


def in_csv(folder, delimiter=","):
    path = folder / "codebook.csv"
    path.write_text("\ufeff" + csv_text(ROWS, delimiter), encoding="utf-8")
    return path


def in_excel(folder):
    book = openpyxl.Workbook()
    book.active.append(["nothing here"])
    sheet = book.create_sheet()
    for row in ROWS:
        sheet.append(row)
    book.save(folder / "codebook.xlsx")
    return folder / "codebook.xlsx"


@pytest.mark.parametrize("write", [in_csv, lambda folder: in_csv(folder, ";"), in_excel])
def test_a_sheet_is_read_below_its_title(tmp_path, write):
    found = read_codebook(write(tmp_path))
    assert list(found) == [row[0] for row in ROWS[3:]]
    assert found["patient"].kind == "ignore"
    age, creatinine = found["age"], found["creatinine"]
    assert (age.kind, age.lower, age.upper, age.unit) == ("integer", 0, 120, "years")
    assert (age.meaning, age.required) == ("Age at admission", None)
    assert (creatinine.lower, creatinine.upper, creatinine.missing) == (None, 60, ("-1", "?"))
    assert found["sex"].levels == (("1", "male"), ("2", "female"))
    assert (found["sex"].kind, found["sex"].missing) == ("categorical", ("9",))
    assert found["ward"].levels == (("A", ""), ("B, the old one", ""))
    assert [code for code, _ in found["pain"].levels] == ["0", "1", "2", "3"]
    assert age.unread == ()
    coded = {"kind": "coded", "levels": (("0", "missing"), ("1", "observed"))}
    assert variable("row 2", "r", **coded).levels == coded["levels"]
    other = tmp_path / "german.csv"
    other.write_text("Merkmal,Typ,Bemerkung\nalter,integer,x\n")
    assert read_codebook(other)["alter"].unread == ("Bemerkung",)


REDCAP = [
    "Variable / Field Name,Form Name,Field Type,Field Label,"
    '"Choices, Calculations, OR Slider Labels",'
    "Text Validation Type OR Show Slider Number,Text Validation Min,Text Validation Max,"
    "Identifier?,Required Field?",
    "mrn,a,text,Record,,,,,y,y",
    "age,a,text,Age,,integer,0,120,,y",
    "hb,a,text,Haemoglobin,,number_1dp,,,,",
    'sex,a,radio,Sex,"1, Male | 2, Female, or so",,,,,y',
    "smoker,a,yesno,Smokes,,,,,,",
    'drug,a,checkbox,Drugs,"A, one | B, two",,,,,',
    "bmi,a,calc,BMI,[weight]/[height],,,,,",
    "seen,a,text,Seen on,,date_ymd,2000-01-01,2030-01-01,,",
    "intro,a,descriptive,Hello,,,,,,",
    "story,a,notes,Story,,,,,,",
]


def test_a_dictionary_of_redcap(tmp_path):
    (tmp_path / "dictionary.csv").write_text("\n".join(REDCAP), "utf-8")
    found = read_codebook(tmp_path / "dictionary.csv")
    unused = [name for name, one in found.items() if one.kind == "ignore" and not one.optional]
    assert unused == ["mrn", "story"]
    assert (found["seen"].kind, found["seen"].lower) == ("date", 10957)
    assert (found["age"].kind, found["age"].upper, found["age"].required) == ("integer", 120, True)
    assert (found["hb"].kind, found["bmi"].kind, found["hb"].required) == ("real", "real", False)
    assert found["sex"].levels == (("1", "Male"), ("2", "Female, or so"))
    assert found["smoker"].levels == (("1", "Yes"), ("0", "No"))
    assert found["drug___b"].levels == (("1", "True"), ("0", "False"))
    assert found["drug___b"].meaning == "Drugs: two"
    assert "drug" not in found
    assert "intro" not in found


FORM = (
    "Variable / Field Name,Form Name,Field Type,Field Label,"
    '"Choices, Calculations, OR Slider Labels",'
    "Text Validation Type OR Show Slider Number,Text Validation Min,Text Validation Max,"
    "Branching Logic (Show field only if...),Required Field?\n"
)


def redcap(folder, *fields):
    (folder / "dictionary.csv").write_text(FORM + "\n".join(fields), "utf-8")
    return read_codebook(folder / "dictionary.csv")


@pytest.mark.parametrize(
    ("code", "column"),
    [("-99", "drug____99"), ("B", "drug___b"), ("a.1", "drug___a_1"), ("2", "drug___2")],
)
def test_a_choice_is_the_column_that_an_export_makes_of_it(tmp_path, code, column):
    found = redcap(tmp_path, f'drug,a,checkbox,Drugs,"{code}, one | 7, other",,,,,')
    assert found[column].levels == (("1", "True"), ("0", "False"))


@pytest.mark.parametrize(
    ("validation", "lower", "upper", "bounds", "decimals"),
    [
        ("number_2dp", "0", "3", (0, 3), 2),
        ("number_1dp_comma_decimal", '"0,5"', '"2,5"', (0.5, 2.5), 1),
        ("number_comma_decimal", "", '"2,25"', (None, 2.25), None),
        ("number", "[other_event][low]", "9", (None, 9), None),
        ("number_4dp", "1.5", "[high]", (1.5, None), 4),
    ],
)
def test_a_validation_of_redcap(tmp_path, validation, lower, upper, bounds, decimals):
    found = redcap(tmp_path, f"x,a,text,X,,{validation},{lower},{upper},,y")["x"]
    assert ((found.lower, found.upper), found.decimals) == (bounds, decimals)
    assert (found.kind, found.required) == ("real", True)


def test_a_field_that_branching_hides_may_be_empty(tmp_path):
    found = redcap(tmp_path, "x,a,yesno,X,,,,,[sex] = '2',y", "y,a,yesno,Y,,,,,,y")
    assert (found["x"].required, found["y"].required) == (False, True)


def test_columns_that_an_export_adds_are_known(tmp_path):
    found = redcap(tmp_path, "x,visit,yesno,X,,,,,,y", "y,lab,yesno,Y,,,,,,y")
    complete = [found["visit_complete"], found["lab_complete"]]
    assert [[code for code, _ in one.levels] for one in complete] == [["0", "1", "2"]] * 2
    assert found["redcap_event_name"].kind == "ignore"
    assert not found["x"].optional
    assert found["lab_complete"].optional


def test_a_variable_stands_once_in_a_dictionary(tmp_path):
    for between in ([], ["y,a,yesno,Y,,,,,,"]):
        with pytest.raises(ConfigurationError, match=r"row \d of the codebook: expected each"):
            redcap(tmp_path, "x,a,yesno,X,,,,,,", *between, "x,a,text,X,,number,,,,")


BOUNDS = {"minimum": 0, "maximum": 120}
TABLE_SCHEMA = {
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "age", "type": "integer", "title": "Age"}
        | {"constraints": {**BOUNDS, "required": True}},
        {"name": "sex", "type": "integer", "categories": [{"value": 1, "label": "male"}, 2]},
    ],
    "missingValues": ["", "-99"],
}
CODES = {"type": ["integer", "null"], "oneOf": [{"const": 1, "title": "male"}, {"const": 2}]}
PROPERTIES = {"id": {"type": "string"}, "age": {"$ref": "#/$defs/age"}, "sex": CODES}
JSON_SCHEMA = {
    "type": "array",
    "items": {"$ref": "#/$defs/row"},
    "$defs": {
        "age": {"type": "integer", "title": "Age", **BOUNDS},
        "row": {"required": ["age", "sex"], "properties": PROPERTIES},
    },
}
YEARS = {"range": "integer", "title": "Age", "minimum_value": 0, "maximum_value": 120}
LINKML = {
    "classes": {
        "Stay": {"attributes": {"id": {"range": "string"}, "age": {**YEARS, "required": True}}}
    },
    "slots": {"sex": {"range": "Sex"}},
    "enums": {"Sex": {"permissible_values": {1: {"description": "male"}, 2: {}}}},
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("schema.json", TABLE_SCHEMA),
        ("package.json", {"resources": [{"path": "x.csv", "schema": TABLE_SCHEMA}]}),
        ("row.json", JSON_SCHEMA),
        ("model.yaml", LINKML),
    ],
)
def test_a_schema(tmp_path, name, content):
    path = tmp_path / name
    text = json.dumps(content) if path.suffix == ".json" else yaml.safe_dump(content)
    path.write_text(text, "utf-8")
    found = read_codebook(path)
    assert set(found) == {"id", "age", "sex"}
    age, sex = found["age"], found["sex"]
    assert (age.kind, age.lower, age.upper, age.required) == ("integer", 0, 120, True)
    assert (age.meaning, found["id"].kind) == ("Age", None)
    assert (sex.kind, sex.required) == ("categorical", False)
    assert sex.levels == (("1", "male"), ("2", ""))
    assert age.missing == (("-99",) if "fields" in text else ())


BAD = {
    "absent.csv": (None, "MISSING"),
    "old.xls": ("x", "KIND"),
    "deep.json": ("[" * 100_000, "UNREADABLE"),
    "tag.yaml": ("a: !!python/object:os.system {}", "UNREADABLE"),
    "prose.txt": ("Once upon a time,\nthere was a table.\n", "UNKNOWN"),
    "two.json": (
        '{"resources": [{"schema": {"fields": []}}, {"schema": {"fields": []}}]}',
        "TABLES",
    ),
    "unnamed.json": ('{"fields": [{"type": "integer"}]}', "NAME"),
    "bounds.csv": ("name,min,max\nZEBRA,9,1\n", "BOUNDS"),
    "number.csv": ("name,min,max\nZEBRA,low,1\n", "NUMBER"),
    "comma.tsv": ("name\tmin\tmax\nZEBRA\t0,1\t1\n", "NUMBER"),
    "levels.csv": ("name,levels\nZEBRA,1=a;1=b\n", "LEVELS"),
    "twice.csv": ("name,type\nZEBRA,int\nage,int\nZEBRA,int\n", "DUPLICATE"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_codebook_is_one_clear_line(tmp_path, name):
    content, code = BAD[name]
    if content is not None:
        (tmp_path / name).write_text(content, "utf-8", errors="surrogateescape")
    with pytest.raises(ConfigurationError) as caught:
        read_codebook(tmp_path / name)
    assert caught.value.code == f"CODEBOOK_{code}"
    assert "expected" in caught.value.message
    assert caught.value.message.isprintable()
    # A private table that is given by mistake has patients where a codebook has names.
    assert "ZEBRA" not in caught.value.message
    assert ("found '0,1'; write 0.1" in caught.value.message) == (name == "comma.tsv")
    assert caught.value.__context__ is None


def test_clinical_ranges_are_valid_columns_with_sources():
    found = CLINICAL_RANGES
    assert len({one.title for one in found}) >= 40
    assert {source for one in found for source in one.sources} == set(CITATIONS)
    for one in found:
        kind = "real" if one.decimals else "integer"
        column = NumericColumn(
            name=one.key,
            kind=kind,
            lower=one.lower,
            upper=one.upper,
            bins=one.edges,
            decimals=one.decimals,
        )
        assert column.n_bins == len(one.edges) - 1
        assert range_of(one.names[0], "", one.unit) == one
        assert one in ranges_named(one.key)


@pytest.mark.parametrize(
    ("column", "key"),
    [
        (("HeartRate_max", "", ""), "heart-rate"),
        (("x17", "Serum creatinine", ""), "creatinine"),
        (("creatinine_urine", "", ""), None),
        (("ca", "vessels", ""), None),  # of two letters, and no unit
        (("na", "", "mmol/L"), "sodium"),
    ],
)
def test_a_range_is_found_by_name_meaning_and_unit(column, key):
    found = range_of(*column)
    assert (found and found.key) == key
