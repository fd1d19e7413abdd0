import json

import frictionless
import made_up_release as made
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

STAY = {"relative_to": "admitted", "lower": 0, "upper": 60, "bins": [0, 1, 7, 30, 61]}
DATES = {
    "born": {"lower": "1920-01-01", "upper": "2020-12-31", "bins": 10, "format": "%d.%m.%Y"},
    "admitted": {"lower": "2015-01-01", "upper": "2020-12-31", "bins": "quarter"},
    "left": STAY | {"nullable": True},
    "seen": {"lower": "2015-01-01", "upper": "2021-12-31", "bins": 9, "missing": ["9999-12-31"]},
}


@pytest.fixture
def desk(desk):
    rng, frame = np.random.default_rng(8), made.made_up_cohort(0)
    n, ages = len(frame), frame["age"].array
    days = pd.to_datetime("2015-01-01") + pd.to_timedelta(rng.integers(0, 2_192, n), "D")
    frame["born"] = (days - pd.to_timedelta(366 * ages, "D")).strftime("%d.%m.%Y")
    frame["admitted"] = days.strftime("%Y-%m-%d")
    left = (days + pd.to_timedelta(rng.geometric(0.1, n) - 1, "D")).strftime("%Y-%m-%d 11:30")
    frame["left"] = np.where(rng.random(n) < 0.2, "", left)
    frame["seen"] = np.where(rng.random(n) < 0.3, "9999-12-31", frame["admitted"])
    desk.declare_cohort(frame)
    columns = [*made.SCHEMA["columns"], *({"kind": "date", "name": n} | DATES[n] for n in DATES)]
    rules = [{"holds": "born <= admitted <= seen"}]
    desk.site["schema"] = made.SCHEMA | {"columns": columns, "constraints": rules}
    desk.frame = frame
    return desk


def test_a_release_has_dates_in_order(desk, quick):
    desk.site |= {"method": {"kind": "clustmix"}, "rows": 3_000}
    assert desk.run("plan") == desk.release() == 0, desk.line
    stored = pq.read_schema(desk.bundle / "synthetic.parquet")
    assert [stored.field(name).type for name in DATES] == [pa.date32()] * 4
    rows = pd.read_csv(desk.bundle / "synthetic.csv")[[*DATES]].apply(pd.to_datetime)
    stay = (rows["left"] - rows["admitted"]).dropna().dt.days
    assert (stay.between(0, 60).all(), 6 < stay.mean() < 16) == (True, True)
    assert ((rows["born"] <= rows["admitted"]) & (rows["admitted"] <= rows["seen"])).all()
    assert 0.15 < (rows["seen"].dt.year == 9999).mean() < 0.45
    assert frictionless.Package(desk.bundle / "datapackage.json").validate().valid
    types = json.loads((desk.bundle / "croissant.json").read_text())["recordSet"][0]["field"]
    assert [one["dataType"] for one in types if one["name"] in DATES] == ["sc:Date"] * 4
    report = (desk.bundle / "report.html").read_text("utf-8")
    for shown in ("2016-01-01 to 2016-03-31", ">2018</text>", "% per 10 days", "7 to 29"):
        assert shown in report


def test_a_check_shows_odd_dates_and_refuses_others_by_rule_and_column(desk):
    odd = {0: "1925-03-04", 1: "2199-12-31", 2: "9999-12-31 00:00:00", 3: "3012-05-06"}
    odd |= {6: "2019-05-01T10:00:00Z"}
    desk.frame.loc[[*odd], "admitted"] = [*odd.values()]
    desk.frame.loc[5, "born"] = "04/13/1960"
    desk.frame.to_csv(desk.table, index=False)
    assert desk.run("check", "--show") == 2
    mended = "form of the source", "zone whose days count", "correct the source, or declare these"
    assert all(mend in desk.output for mend in mended)
    assert "missing: ['2199-12-31', '9999-12-31 00:00:00']" in desk.output
    assert "3012" not in desk.output
    assert desk.release() == 2
    assert desk.line.startswith("INPUT_REFUSED: column admitted: expected full dates and the")
    assert ("1960" in desk.line, {*desk.states}) == (False, {"void"})
