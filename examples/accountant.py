"""An accountant's view: what would be drawn, what it adds up to, and what a ledger allows."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from clustmix import ClustMix, Label, NaiveBayes, Schema
from privacy.errors import BudgetRefused
from storage.ledger.ledger_db import LedgerDatabase

schema = Schema(
    items=("tea", "milk", "bread"), label=Label(name="card", levels={"no": (), "yes": ()})
)

# A plan reads nothing: it is calibrated from public settings alone.
for epsilon in (0.5, 1.0, 2.0):
    plan = NaiveBayes(schema, epsilon=epsilon, delta=1e-6).plan()
    [noise] = plan.to_frame()["noise"]
    print(f"epsilon {epsilon}: noise of {noise:.3g} on sums that one patient moves by at most 1")

# The events are all that the guarantee is computed from; ask them at another delta.
plan = ClustMix(schema, epsilon=1.0, delta=1e-6, patients=2_000).plan()
print(f"\n{plan}\n")
for event in plan.guarantee.events:
    print(f"{event.statistic}: {type(event).__name__}")
for delta in (1e-5, 1e-6, 1e-9):
    print(f"delta {delta:g}: epsilon {plan.guarantee.at(delta=delta).epsilon:.3f}")
print(f"one patient replaced by another: epsilon {plan.guarantee.replace_one_epsilon:.3f}\n")

# A ledger counts what the same patients have paid, and refuses what does not fit under their cap.
rng = np.random.default_rng(4)
baskets = pd.DataFrame(rng.integers(0, 2, (2_000, 3)), columns=["tea", "milk", "bread"])
baskets["card"] = rng.choice(["no", "yes"], 2_000)
with tempfile.TemporaryDirectory() as folder:
    ledger = LedgerDatabase(Path(folder) / "ledger.db")
    for _ in range(3):
        model = NaiveBayes(schema, epsilon=1.0, delta=1e-6)
        try:
            model.fit(baskets, ledger=ledger, cohort="shoppers", lifetime_epsilon=1.5)
        except BudgetRefused as error:
            print(error)
        else:
            left = ledger.balance("shoppers").remaining_rho
            print(f"{model.guarantee_.charged} Left: rho {left:.4f}")
    ledger.verify()
