"""Conclusions: odds ratios with honest intervals, from one month and from a pool of two."""

import numpy as np
import pandas as pd

import clustmix
from clustmix import CategoricalColumn, ClustMix, IntegerColumn, Label, Schema

# A made-up hospital: smokers are readmitted more often, at odds that are twice as high.
rng = np.random.default_rng(2)
n = 8_000
age, smoker = rng.integers(18, 95, n), rng.random(n) < 0.3
odds = np.exp(-2.0 + 0.01 * age + np.log(2.0) * smoker)
patients = pd.DataFrame(
    {
        "age": age,
        "smoker": np.where(smoker, "yes", "no"),
        "readmitted": np.where(rng.random(n) < odds / (1.0 + odds), "yes", "no"),
    }
)
schema = Schema(
    columns=(
        IntegerColumn(name="age", lower=0, upper=119, bins=12),
        CategoricalColumn(name="smoker", levels=("no", "yes")),
    ),
    label=Label(name="readmitted", levels={"no": (), "yes": ()}),
)

# Each month measures patients of its own; their noisy sums add up to one release, at no charge.
january, february = (
    ClustMix(schema, epsilon=1.0, delta=1e-6, patients=4_000).fit(month)
    for month in (patients[: n // 2], patients[n // 2 :])
)
both = clustmix.pool([january, february], disjoint=True)
print(both.guarantee_, end="\n\n")

# Read from the measured tables, without a model; refused by name where no interval is honest.
for name, model in (("January", january), ("both", both)):
    ratio = clustmix.contrast(model, "odds_ratio", "readmitted=yes", by="smoker=yes")
    print(f"{name:8} odds ratio {ratio}")


# Any other estimate: from the rows of a release, and of other draws of its noise.
def estimated(model: ClustMix) -> tuple[float, float]:
    """Return the mean age of who was readmitted, and its variance among the rows."""
    rows = model.sample(20_000)
    ages = rows.loc[rows["readmitted"] == "yes", "age"]
    return ages.mean(), ages.var() / len(ages)


estimates, variances = zip(*map(estimated, (january, *january.draws(10))), strict=True)
mean = clustmix.combine(estimates, variances, rows=20_000, patients=4_000)
print(f"January  mean age of who was readmitted {mean}")
