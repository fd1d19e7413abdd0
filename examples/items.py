"""Sets of items: what is bought with what, and rows under a condition."""

import numpy as np
import pandas as pd

from clustmix import ClustMix, Label, Schema

ITEMS = ("tea", "milk", "bread", "jam", "rice", "beans")

# 5,000 made-up baskets: milk goes with tea, and jam with bread.
rng = np.random.default_rng(3)
has = {name: rng.random(5_000) < 0.3 for name in ITEMS}
has["milk"] |= has["tea"] & (rng.random(5_000) < 0.8)
has["jam"] |= has["bread"] & (rng.random(5_000) < 0.6)
baskets = pd.DataFrame(has).astype(int)
baskets["card"] = np.where(rng.random(5_000) < 0.2 + 0.3 * has["rice"], "yes", "no")

schema = Schema(items=ITEMS, label=Label(name="card", levels={"no": (), "yes": ()}))
model = ClustMix(schema, epsilon=2.0, delta=1e-6, patients=5_000).fit(baskets)
synthetic = model.sample()

print("share of baskets with milk among those with tea and those without:")
for name, table in (("real", baskets), ("synthetic", synthetic)):
    milk = table["milk"].astype(int).groupby(table["tea"].astype(int)).mean()
    print(f"  {name:10} with tea {milk[1]:.0%}, without {milk[0]:.0%}")

# Rows for a question: only baskets with bread of somebody who has a card.
asked = model.sample(1_000, where={"bread": 1, "card": "yes"})
print("levels that were asked for:", *asked[["bread", "card"]].drop_duplicates().to_numpy().ravel())
print(model)
