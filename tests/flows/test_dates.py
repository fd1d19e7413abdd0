import made_up_release as made
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from tasks.methods.clustmix.tables import table_clustmix as synthesizer

ORDER = {"holds": "born <= admitted <= seen"}
DATES = [
    {"name": "born", "kind": "date", "lower": "1920-01-01", "upper": "2020-12-31", "bins": 10}
    | {"format": "%d.%m.%Y"},
    {"name": "admitted", "kind": "date", "lower": "2015-01-01", "upper": "2020-12-31"}
    | {"bins": "quarter"},
    {"name": "left", "kind": "date", "relative_to": "admitted", "lower": 0, "upper": 60}
    | {"bins": [0, 1, 7, 30, 61], "nullable": True},
    {"name": "seen", "kind": "date", "lower": "2015-01-01", "upper": "2021-12-31", "bins": "year"}
    | {"missing": ["9999-12-31"]},
]
QUICK = synthesizer.Effort(starts=1, steps=60, fit_rows=2_000)


@pytest.fixture
def desk(desk):
    desk.declare_cohort()
    rng, frame = np.random.default_rng(8), made.made_up_cohort(0)
    n = len(frame)
    days = pd.to_datetime("2015-01-01") + pd.to_timedelta(rng.integers(0, 2_192, n), "D")
    frame["admitted"] = days.strftime("%Y-%m-%d")
    frame["born"] = (days - pd.to_timedelta(366 * frame["age"].to_numpy(), "D")).strftime(
        "%d.%m.%Y"
    )
    left = (days + pd.to_timedelta(rng.geometric(0.1, n) - 1, "D")).strftime("%Y-%m-%d 11:30")
    frame["left"] = np.where(rng.random(n) < 0.2, "", left)
    later = days + pd.to_timedelta(rng.integers(0, 366, n), "D")
    frame["seen"] = np.where(rng.random(n) < 0.3, "9999-12-31", later.strftime("%Y-%m-%d"))
    desk.frame = frame
    frame.to_csv(desk.table, index=False)
    columns = [*made.SCHEMA["columns"], *DATES]
    desk.site["schema"] = {**made.SCHEMA, "columns": columns, "constraints": [ORDER]}
    return desk


def test_a_release_has_dates_in_order(desk, monkeypatch):
    monkeypatch.setattr(synthesizer.TableClustMix.__init__, "__defaults__", (QUICK,))
    desk.site |= {"method": {"kind": "clustmix"}, "rows": 3_000}
    assert desk.release() == 0, desk.line
    rows = pq.read_table(desk.bundle / "synthetic.parquet")
    assert [rows.schema.field(one["name"]).type for one in DATES] == [pa.date32()] * 4
    text = pa_csv.read_csv(desk.bundle / "synthetic.csv")
    assert text["born"].type == pa.date32()
