"""Patients with laboratory values over time: two tables, one guarantee."""

import numpy as np
import pandas as pd

from clustmix import CategoricalColumn, ClustMix, DateColumn, EventTable, Label, RealColumn, Schema

# 2,000 made-up patients with 0 to 9 values each. A patient has a level, and high ones come back.
rng, n = np.random.default_rng(4), 2_000
level = rng.normal(0.0, 1.0, n)
patients = pd.DataFrame({"patient": np.arange(n), "ward": rng.choice(["A", "B"], n)})
patients["admitted"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 366, n), "D")
patients["back"] = np.where(level + rng.normal(0.0, 0.5, n) > 0.5, "yes", "no")
who = np.repeat(np.arange(n), rng.integers(0, 10, n))
labs = pd.DataFrame({"patient": who, "test": rng.choice(["glucose", "sodium"], len(who))})
later = pd.to_timedelta(rng.integers(0, 30, len(who)), "D")
labs["taken"] = patients["admitted"][who].array + later
mean = np.where(labs["test"] == "glucose", 110 + 20 * level[who], 140)
labs["value"] = (mean + rng.normal(0.0, 5.0, len(who))).round(1)

events = EventTable(
    name="labs",
    key="patient",
    at={"column": "taken", "since": "admitted"},
    max_rows_per_patient=8,
    kind="test",
    value="value",
    values={"sodium": {"lower": 120, "upper": 160, "bins": 8}},
    offsets=(0, 3, 10, 31),
    columns=(
        DateColumn(name="taken", lower="2024-01-01", upper="2025-01-31", bins="year"),
        CategoricalColumn(name="test", levels=("glucose", "sodium")),
        RealColumn(name="value", lower=40, upper=200, bins=16, decimals=1),
    ),
)
schema = Schema(
    columns=(
        CategoricalColumn(name="ward", levels=("A", "B")),
        DateColumn(name="admitted", lower="2024-01-01", upper="2024-12-31", bins="month"),
    ),
    label=Label(name="back", levels={"no": (), "yes": ()}),
    events=(events,),
)
model = ClustMix(schema, epsilon=2.0, delta=1e-6, patient_column="patient", patients=2_000)
model.fit(patients, events={"labs": labs})
synthetic = model.sample()

print("mean glucose of patients who come back and of those who do not:")
for name, people, table in (
    ("real", patients, labs),
    ("synthetic", synthetic["patients"], synthetic["labs"]),
):
    glucose = table[table["test"] == "glucose"].merge(people, on="patient")
    mean = glucose.groupby("back")["value"].mean()
    print(f"  {name:10} {mean['yes']:.0f} and {mean['no']:.0f}")
print(synthetic["labs"].head(3).to_string(index=False))
print(model.guarantee_)
