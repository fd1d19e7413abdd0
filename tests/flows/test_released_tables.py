import json

import made_up_release as made
import mlcroissant
import numpy as np
import pandas as pd
import pytest

# Of rdflib, whose reader of JSON-LD uses what it warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")


def test_the_files_of_a_release_hold_the_tables(desk):
    cohort = made.made_up_cohort()
    desk.declare_cohort(cohort)
    n_patients = cohort["patient"].nunique()
    desk.site |= {"method": {"kind": "clustmix"}, "rows": 20_000}
    assert desk.release() == 0
    parquet = pd.read_parquet(desk.bundle / "tables.parquet")
    empty = {name: [""] for name in ("low", "high", "noise_patients")}
    text = pd.read_csv(desk.bundle / "tables.csv", keep_default_na=False, na_values=empty)
    pd.testing.assert_frame_equal(parquet, text)
    told = parquet["low"].notna()
    assert (parquet["low"] <= parquet["high"])[told].all()
    assert (told == (parquet["known"] != "implied")).all()
    assert (told == (parquet["noise_patients"] > 0)).all()
    # Half an interval is 1.96 of the noise, for as many patients as there are, give or take.
    inside = parquet[(parquet["low"] > 0) & (parquet["high"] < 1)]
    patients = 1.96 * inside["noise_patients"] / ((inside["high"] - inside["low"]) / 2)
    # The noise of the number has a deviation of 40: five of them.
    assert patients.median() == pytest.approx(n_patients, rel=0.19)
    assert patients.std() < 0.1 * n_patients
    entry = mlcroissant.Dataset(jsonld=desk.bundle / "croissant.json")
    assert sum(1 for _ in entry.records("tables")) == len(parquet)
    assert 'class="between of-all"' in (desk.bundle / "report.html").read_text("utf-8")

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
    by_label = parquet[(parquet["column"] == "ward") & (parquet["by"] == "died")]
    counted = pd.crosstab(rows["ward"], rows["died"], normalize=True)
    by_label = by_label.pivot_table("share", "level", "by_level")
    assert (by_label - counted).abs().max(axis=None) < 0.02
    assert "tables.csv" in (desk.bundle / "data_card.md").read_text("utf-8")


def test_a_table_of_one_column_is_released(desk):
    desk.declare_cohort(made.made_up_cohort()[["patient", "age", "died"]])
    one, label = made.SCHEMA["columns"][0], made.SCHEMA["label"]
    desk.site |= {"method": {"kind": "clustmix"}, "schema": {"columns": [one], "label": label}}
    assert desk.release() == 0
    tables = pd.read_parquet(desk.bundle / "tables.parquet")
    assert set(tables["column"]) == {"age", "died"}
