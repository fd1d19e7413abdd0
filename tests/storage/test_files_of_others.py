import gzip
import json
import re
import sqlite3
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_bytes import dicom
from pydantic import TypeAdapter
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence

from clustmix.frames import rows_of
from privacy.errors import ConfigurationError, InputError
from storage.schema.columns import NumericColumn, number_of
from storage.schema.labels import Label
from storage.schema.table import TableSchema
from storage.schema.visit_columns import VisitColumns
from storage.sources.cells import NumberMarks, with_plain_numbers
from storage.sources.cohorts import CohortReader
from storage.sources.declared import Source
from storage.sources.reading import RefusedRow
from tasks.ingest.patient_rows import moments_of


def reader(kind, **declared):
    return CohortReader(TypeAdapter(Source).validate_python({"kind": kind, **declared}))


def read(kind, **declared):
    source = reader(kind, **declared)
    return pd.concat(source.chunks(list(source.header())))


def refusal(kind, **declared):
    with pytest.raises((InputError, ConfigurationError)) as caught:
        read(kind, **declared)
    return caught.value


@pytest.mark.parametrize(
    "log", ["_delta_log/0.json", ".hoodie/hoodie.properties", "metadata/v1.metadata.json"]
)
@pytest.mark.parametrize("path", ["", "day=1", "day=1/a.parquet"])
def test_a_table_with_a_log_is_no_folder_of_parquet(tmp_path, log, path):
    for name in ("day=1/a.parquet", log):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "day=1" / "a.parquet")
    assert refusal("parquet", path=tmp_path / path).code == "TABLE_LOG"


@pytest.mark.parametrize(
    ("moment", "is_read"),
    [
        ("2020-01-31", True), ("2020-01-31 12:30:00", True), (None, True), (18292.0, False),
        (18292, False), (1580428800, False), ("31.01.2020", False), ("18292", False),
    ],
)  # fmt: skip
def test_times_in_sqlite_are_texts_of_dates(tmp_path, moment, is_read):
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        database.execute("CREATE TABLE visit (p TEXT, day)")
        database.execute("INSERT INTO visit VALUES ('a', ?), ('b', '2020-01-01')", (moment,))
    query = "WITH c AS (SELECT p, day FROM visit) SELECT c.p, UNIXEPOCH(c.day) AS d FROM c"
    base = "SELECT v.p, UNIXEPOCH(v.day) AS d FROM visit AS v"
    declared = {"url": f"sqlite:///{tmp_path}/a.sqlite", "dialect": "sqlite"}
    assert len(read("sql", query=query, **declared)) == 2  # of a part of WITH, not of a table
    if is_read:
        assert len(read("sql", query=base, **declared)) == 2
    else:
        found = refusal("sql", query=base, **declared)
        assert (found.code, "visit.day" in found.message) == ("DATE_FORM", True)


@pytest.mark.parametrize("backend", ["mssql+pyodbc", "oracle", "snowflake", "mysql"])
def test_other_databases_are_refused_before_a_driver_is_looked_for(backend):
    query = {"url_env": "CDM", "query": "SELECT p FROM t"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CDM", f"{backend}://reader:secret@127.0.0.1:1/db")
        found = refusal("sql", **query)
    assert found.code == "DATABASE_KIND"
    assert "export the table to Parquet" in found.message
    assert "secret" not in found.message


def test_decimals_and_identifiers_of_any_width(tmp_path):
    numbers, ids = ["1.5", "-2.0", None], [UUID(int=1), UUID(int=2), None]
    columns = {
        f"d{kind.bit_width}": pa.array(pd.Series(numbers, dtype=object)).cast(kind)
        for kind in (pa.decimal32(4, 1), pa.decimal64(12, 1), pa.decimal128(30, 1))
    }
    columns["id"] = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([one and one.bytes for one in ids], pa.binary(16))
    )
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    frame = read("parquet", path=tmp_path / "a.parquet")
    for name in list(columns)[:-1]:
        assert frame[name].fillna("-").tolist() == ["1.5", "-2", "-"]
    assert frame["id"].fillna("-").tolist() == [str(ids[0]), str(ids[1]), "-"]


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["f", "m"]), pl.String])
def test_categories_of_polars_are_their_texts(kind):
    frame = pl.DataFrame({"sex": ["m", "f", None, "m"]}).with_columns(pl.col("sex").cast(kind))
    assert rows_of(pa.table(frame))["sex"].fillna("-").tolist() == ["m", "f", "-", "m"]


@pytest.mark.parametrize(("row", "line"), [(0, 2), (3, 6)])
@pytest.mark.parametrize("broken", ["a;b", "a;b;c;d"])
def test_the_first_row_of_another_length_is_found(tmp_path, row, line, broken):
    rows = ['"x\ny";1;2', "b;1;2", "c;1;2", "d;1;2"]
    rows[row] = broken
    (tmp_path / "a.csv").write_text("p;q;r\n" + "\n".join(rows) + "\n")
    found = refusal("csv", path=tmp_path / "a.csv", delimiter=";")
    assert isinstance(found, RefusedRow)
    assert (found.row, found.place) == (row, f"a.csv, line {line}")
    assert "a.csv" not in str(found)


def test_headers_of_spreadsheets_and_of_data_frames(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(' p ,"q"," r"\na,1,2\n')
    assert read("csv", path=path).columns.tolist() == ["p", "q", "r"]
    for content, said in (("sep=;\np;q\n", "the line 'sep='"), (",p,q\n0,a,1\n", "its index")):
        path.write_text(content)
        assert said in refusal("csv", path=path).message


def test_the_log_of_a_bulk_client_is_no_resource_and_a_bad_line_is_found(tmp_path):
    features = [{"column": "sex", "expression": "Patient.gender"}]
    patient = json.dumps({"resourceType": "Patient", "id": "a", "gender": "female"})
    (tmp_path / "log.ndjson").write_text('{"exportId": "e", "eventId": "kickoff"}\n')
    (tmp_path / "Patient.ndjson").write_text(f"{patient}\n")
    assert read("fhir", path=tmp_path, features=features)["sex"].tolist() == ["female"]
    (tmp_path / "Patient.ndjson").rename(tmp_path / "plain")
    (tmp_path / "Patient.ndjson.gz").write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    assert read("fhir", path=tmp_path, features=features)["sex"].tolist() == ["female"]
    (tmp_path / "Patient.ndjson.gz").unlink()
    (tmp_path / "deleted").mkdir()
    (tmp_path / "deleted" / "Patient.ndjson").touch()
    (tmp_path / "Patient.ndjson").write_text(f"{patient}\n\n[]\n")
    found = refusal("fhir", path=tmp_path, features=features)
    assert (found.code, found.place) == ("FHIR_LINE", "Patient.ndjson, line 3")
    (tmp_path / "deleted" / "Patient.ndjson").write_text("{}")
    assert refusal("fhir", path=tmp_path, features=features).code == "FHIR_DELETED"


def test_values_of_dicom_are_those_of_its_modality(tmp_path):
    stored = np.arange(16, dtype=np.uint16).reshape(4, 4)
    group, values, table = Dataset(), Dataset(), Dataset()
    values.RescaleSlope, values.RescaleIntercept = "2", "-4"
    group.PixelValueTransformationSequence = Sequence([values])
    table.LUTDescriptor, table.LUTData = [16, 0, 16], stored[::-1, ::-1].tobytes()
    forms = {
        "slope": ({"RescaleSlope": "2", "RescaleIntercept": "-4"}, 2.0 * stored - 4),
        "frame": ({"SharedFunctionalGroupsSequence": Sequence([group])}, 2.0 * stored - 4),
        "table": ({"ModalityLUTSequence": Sequence([table])}, 15.0 - stored),
        "plain": ({}, 1.0 * stored),
    }
    for name, (elements, meant) in forms.items():
        folder = tmp_path / name / "ill"
        folder.mkdir(parents=True)
        plain = {"RescaleSlope": None, "RescaleIntercept": None}
        (folder / "0.dcm").write_bytes(dicom(stored, **{**plain, **elements}))
        frame = read(
            "dicom", folder=tmp_path / name, size=[4, 4], window={"center": 8, "width": 41},
            burned_in="accept",
        )  # fmt: skip
        part = np.clip((meant - 7.5) / 40 + 0.5, 0, 1)
        pixels = frame.filter(like="pixel").to_numpy(dtype=float).reshape(4, 4)
        assert np.array_equal(pixels, np.rint(255 * part)), name


@pytest.mark.parametrize("element", ["RescaleSlope", "RescaleIntercept"])
def test_an_empty_slope_is_refused_with_its_rule(tmp_path, element):
    (tmp_path / "ill").mkdir()
    stored = np.zeros((4, 4), dtype=np.uint16)
    (tmp_path / "ill" / "0.dcm").write_bytes(dicom(stored, **{element: ""}))
    found = refusal(
        "dicom", folder=tmp_path, size=[4, 4], window={"center": 8, "width": 41},
        burned_in="accept",
    )  # fmt: skip
    assert "a slope and an intercept, not empty" in str(found)


CSV = b"a,b\n" + b"".join(b"%d,%d\n" % (n, n * n) for n in range(50_000))
PACKED = gzip.compress(CSV, mtime=0)
PATIENT = b'{"resourceType": "Patient", "id": "p"}\n'
FORMS = {
    "a.csv": [
        (PACKED, "expected csv, found gzip; give the file a name that ends in .gz"),
        (b"PK\x03\x04", "found a zip archive or a workbook"),
        (b"PAR1", "found Parquet; declare kind: parquet"),
        (b"BZh9", "found bzip2; unpack"),
        (CSV.decode().encode("utf-16"), "found UTF-16; declare encoding: utf-16"),
    ],
    "a.csv.gz": [
        (
            CSV,
            "expected csv in gzip, as the name ends in .gz, found another form; correct the name",
        ),
        (b"PK\x03\x04", "csv in gzip, as the name ends in .gz, found a zip archive"),
        (gzip.compress(b"PAR1", mtime=0), "expected csv in gzip, .*, found Parquet"),
        (PACKED[: len(PACKED) // 2], "a compressed file is cut off or damaged"),
        (PACKED[:-8] + bytes(8), "a compressed file is cut off or damaged"),
        (PACKED[:15], "a compressed file is cut off or damaged"),
    ],
    "a.parquet": [(CSV, "expected parquet, found another form"), (PACKED, "parquet, found gzip")],
    "a.ndjson": [(gzip.compress(PATIENT, mtime=0), "expected ndjson, found gzip; give")],
    "a.ndjson.gz": [
        (PATIENT, "expected ndjson in gzip, as the name ends in .gz, found another form"),
        (gzip.compress(PATIENT * 9, mtime=0)[:-9], "a compressed file is cut off or damaged"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [(name, *each) for name, every in FORMS.items() for each in every],
    ids=lambda each: None if isinstance(each, bytes) else each[:30],
)
def test_a_file_of_another_form_than_its_name_says_so(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    kind = {"csv": "csv", "parquet": "parquet"}.get(name.split(".")[1], "fhir")
    declared = {"features": [{"column": "sex", "expression": "Patient.gender"}]}
    found = refusal(
        kind, path=tmp_path if kind == "fhir" else tmp_path / name,
        **(declared if kind == "fhir" else {}),
    )  # fmt: skip
    assert re.search(words, str(found))


def test_dates_reach_to_the_year_9999():
    visits = VisitColumns(first=2, order="seen", order_by="dates", columns=("x",))
    cells = pd.Series(["1800-01-01", "9999-12-31", "9999-12-30", "no date"])
    first, last, before, none = moments_of(cells, visits)
    assert first < before < last
    assert np.isnan(none)


MARKS = {
    NumberMarks(",", None): {"1,5": "1.5", "-,5": "-.5", "7": "7", "?": "?", "1,5e3": "1.5e3"},
    NumberMarks(",", "."): {"1.234,5": "1234.5", "1.234": "1234", "12.345.678": "12345678"},
    NumberMarks(".", ","): {"1,234.5": "1234.5", "999": "999"},
    NumberMarks(".", "'"): {"1'234": "1234"},
}


@pytest.mark.parametrize(("marks", "cells"), MARKS.items())
def test_numbers_are_read_by_the_declared_marks_and_no_others(marks, cells):
    schema = TableSchema(
        columns=(
            NumericColumn(kind="real", name="x", lower=0, upper=9, bins=2, missing=("-9,9",)),
        ),
        label=Label(name="y", levels={"a": (), "b": ()}),
    )
    frame = pd.DataFrame({"x": list(cells), "y": "1,5"})
    plain = with_plain_numbers(frame, schema.columns, marks)
    assert plain["x"].tolist() == list(cells.values())
    assert plain["y"].tolist() == ["1,5"] * len(cells)
    missing = with_plain_numbers(frame.assign(x="-9,9"), schema.columns, marks)
    assert set(missing["x"]) == {"-9,9"}
    other = "1.5" if marks.decimal == "," else "1,5"
    assert number_of(marks.plain(other)) is None
