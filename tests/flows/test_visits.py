import json

import numpy as np
import pandas as pd
import yaml

AGE = {"name": "age", "kind": "integer", "lower": 0, "upper": 99, "bins": 10}
PULSE = {"kind": "integer", "lower": 40, "upper": 199, "bins": 8, "nullable": True}
SCHEMA = {
    "columns": [AGE, *({"name": f"pulse_{visit}", **PULSE} for visit in (1, 2, 3))],
    "label": {"name": "died", "levels": {"no": ["n"], "yes": ["y"]}},
}
VISITS = {"first": 3, "order": "day", "columns": ["pulse"]}


def made_visits(n_patients=6_000):
    """Visits in any order: a pulse that rises from visit to visit, most of who rises fast dies."""
    rng = np.random.default_rng(4)
    patients = pd.DataFrame(
        {"patient": np.arange(n_patients), "age": rng.integers(20, 90, n_patients)}
        | {"rise": rng.integers(5, 40, n_patients), "visits": rng.integers(1, 6, n_patients)}
    )
    patients["died"] = np.where(patients["rise"] + rng.normal(0, 5, n_patients) > 22, "y", "n")
    rows = patients.loc[patients.index.repeat(patients["visits"])].reset_index(drop=True)
    number = rows.groupby("patient").cumcount()
    rows["pulse"] = 60 + number * rows["rise"]
    start = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 300, len(rows)), "D")
    rows["day"] = pd.Series(start).groupby(rows["patient"]).transform("first") + pd.to_timedelta(
        number, "D"
    )
    rows["day"] = rows["day"].dt.strftime("%Y-%m-%d")
    return rows.sample(frac=1.0, random_state=1)[["patient", "day", "age", "pulse", "died"]]


def test_visits_are_columns_in_order(desk):
    frame = made_visits()
    desk.declare_cohort(frame)
    unit = {"column": "patient", "max_rows_per_patient": 1, "visits": VISITS}
    desk.site |= {"schema": SCHEMA, "privacy_unit": unit, "rows": 6_000, "patients": 6_000}
    desk.site |= {"method": {"kind": "naive_bayes"}, "budget": {"lifetime_epsilon": 9.0}}
    desk.site["privacy"] = {"epsilon": 5.0, "delta": 1e-6}
    # A moment that cannot be read costs nothing, and is named nowhere.
    broken = frame.copy()
    broken.iloc[7, 1] = "some-day"
    broken.to_csv(desk.table, index=False)
    assert desk.release() != 0
    assert "column day: expected a full date as ISO 8601 writes it" in desk.line
    assert "some-day" not in desk.line
    frame.to_csv(desk.table, index=False)
    assert desk.release() == 0, desk.line
    rows = pd.read_csv(desk.bundle / "synthetic.csv")
    assert rows.columns.tolist() == ["age", "pulse_1", "pulse_2", "pulse_3", "died"]
    visits = frame.sort_values("day").groupby("patient")
    for place in range(3):
        real = visits["pulse"].nth(place)
        found, edges = rows[f"pulse_{place + 1}"], np.linspace(40, 200, 9)
        assert abs(found.isna().mean() - (1 - len(real) / 6_000)) < 0.02
        own, wanted = (
            np.histogram(x, edges)[0] / len(x) for x in (found.dropna(), real.astype(float))
        )
        assert np.abs(own - wanted).sum() / 2 < 0.03
    manifest = json.loads((desk.bundle / "manifest.json").read_text("utf-8"))
    assert manifest["privacy_unit"].endswith("with the first 3 visits by column day as one record")
    assert "the first 3 visits by column day" in (desk.bundle / "data_card.md").read_text("utf-8")
    assert "day" not in yaml.safe_load((desk.bundle / "schema.json").read_text("utf-8"))
