"""A table: stays of patients go in, synthetic stays with a guarantee for every patient come out."""

import numpy as np
import pandas as pd

from clustmix import CategoricalColumn, ClustMix, IntegerColumn, Label, Schema

# A made-up hospital: 6,000 stays of 4,000 patients, of whom the older ones come back more often.
rng = np.random.default_rng(1)
age = rng.integers(18, 95, 6_000)
ward = rng.choice(["surgery", "medicine", "intensive care"], 6_000, p=[0.5, 0.4, 0.1])
risk = 0.1 + age / 250 + 0.2 * (ward == "intensive care")
stays = pd.DataFrame(
    {
        "patient": rng.integers(0, 4_000, 6_000),
        "age": age,
        "ward": ward,
        "readmitted": np.where(rng.random(6_000) < risk, "yes", "no"),
    }
)

# Bounds, bins and levels come from a codebook. None of them may be looked up in the rows.
schema = Schema(
    columns=(
        IntegerColumn(name="age", lower=0, upper=120, bins=12),
        CategoricalColumn(name="ward", levels=("surgery", "medicine", "intensive care")),
    ),
    label=Label(name="readmitted", levels={"no": (), "yes": ()}),
)

# A patient has up to three stays here; all of them together are protected.
model = ClustMix(schema, epsilon=1.0, delta=1e-6, patient_column="patient", max_rows_per_patient=3)
print(model.plan(), end="\n\n")
model.fit(stays)
synthetic = model.sample(20_000)

for name, table in (("real", stays), ("synthetic", synthetic)):
    rates = table["readmitted"].eq("yes").groupby(table["ward"]).mean()
    print(f"{name:10}", ", ".join(f"{ward}: {rate:.0%}" for ward, rate in rates.items()))
print()
print(model.guarantee_)
