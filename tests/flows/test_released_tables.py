"""The tables of a bundle, read from its files as a reader does."""

import json

import made_up_release as made
import numpy as np
import pandas as pd


def test_the_files_of_a_release_hold_the_tables(desk):
    desk.declare_cohort()
    made.made_up_cohort().to_csv(desk.table, index=False)
    desk.site |= {"method": {"kind": "clustmix"}, "rows": 20_000}
    assert desk.release() == 0
    parquet = pd.read_parquet(desk.bundle / "tables.parquet")
    empty = {"low": [""], "high": [""]}
    text = pd.read_csv(desk.bundle / "tables.csv", keep_default_na=False, na_values=empty)
    pd.testing.assert_frame_equal(parquet, text)
    told = parquet["low"].notna()
    assert (parquet["low"] <= parquet["high"])[told].all()
    assert (told == (parquet["known"] != "implied")).all()

    alone = parquet[parquet["by"] == ""]
    np.testing.assert_allclose(alone.groupby("column")["share"].sum(), 1.0, atol=1e-4)
    schema = json.loads((desk.bundle / "schema.json").read_text("utf-8"))
    names = [column["name"] for column in schema["columns"]] + [schema["label"]["name"]]
    assert sorted(alone["column"].unique()) == sorted(names)
    wards = alone[alone["column"] == "ward"]["level"].tolist()
    assert wards == ["icu", "surgery", "medicine", "elsewhere"]
    n_columns = len(schema["columns"])
    pairs = parquet[(parquet["by"] != "") & (parquet["by"] != "died")].groupby(["column", "by"])
    assert len(pairs) == n_columns * (n_columns - 1) // 2
    # The synthetic rows are sampled from what the tables say.
    rows = pd.read_parquet(desk.bundle / "synthetic.parquet")
    said = alone[alone["column"] == "smoker"].set_index("level")["share"]
    assert abs((rows["smoker"] == "y").mean() - said["y"]) < 0.05
    assert "tables.csv" in (desk.bundle / "data_card.md").read_text("utf-8")
