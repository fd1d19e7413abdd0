"""A made-up release: a schema, synthetic rows drawn from nothing, and a manifest."""

from datetime import date

import numpy as np
import pandas as pd
import pytest

from privacy.event_records import event_to_dict
from privacy.events import ComposedEvent, DiscreteGaussianEvent
from storage.releases.manifest import GateRecord, Manifest, MethodRecord, file_digests
from storage.schema.columns import CategoricalColumn, NumericColumn
from storage.schema.table import Label, TableSchema


@pytest.fixture
def schema():
    return TableSchema(
        columns=(
            NumericColumn(kind="integer", name="age", lower=0, upper=100, bins=10),
            NumericColumn(
                kind="real", name="creatinine", lower=0, upper=12, bins=12, nullable=True
            ),
            NumericColumn(
                kind="integer", name="visits", lower=0, upper=20, bins=5, missing=("-1",)
            ),
            CategoricalColumn(
                kind="categorical",
                name="admission",
                levels=("emergency", "urgent", "elective", "other"),
                other="other",
                missing=("?",),
            ),
        ),
        label=Label(name="readmitted", levels={"no": (), "yes": ()}, positive="yes"),
    )


@pytest.fixture
def rows():
    rng = np.random.default_rng(5)
    n = 400
    creatinine = np.round(rng.gamma(2.0, 0.8, n).clip(0, 12), 2)
    creatinine[rng.random(n) < 0.2] = np.nan
    return pd.DataFrame(
        {
            "age": rng.normal(62, 18, n).clip(0, 100).astype(np.int64),
            "creatinine": creatinine,
            "visits": rng.choice([-1, 0, 1, 2, 3, 7, 20], n),
            "admission": pd.Series(
                rng.choice(["emergency", "urgent", "elective", "?"], n), dtype="str"
            ),
            "readmitted": pd.Series(rng.choice(["no", "yes"], n, p=[0.8, 0.2]), dtype="str"),
        }
    )


@pytest.fixture
def make_manifest():
    def make(**changes):
        events = ComposedEvent(
            events=(
                DiscreteGaussianEvent(
                    statistic="clustering round 1",
                    l2_sensitivity=16777216.0,
                    noise_stddev=192937984.0,
                    n_values=640,
                ),
                DiscreteGaussianEvent(
                    statistic="second moment",
                    l2_sensitivity=189812531.0,
                    noise_stddev=1803219044.0,
                    n_values=528,
                ),
            )
        )
        values = {
            "dataset": "readmission",
            "release_id": "r-20261121-0a1b2c3d",
            "created_on": date(2026, 11, 21),
            "analysis": "proven",
            "guarantee": "see the report",
            "method": MethodRecord(
                name="clustmix", settings={"kind": "clustmix", "slices": 2, "alphas": [0.0, 0.1]}
            ),
            "request": {"source": "REQUEST-MARKER"},
            "code_version": "1.0.0",
            "events": (event_to_dict(events),),
            "mu": 0.2366,
            "rho": 0.02799,
            "epsilon": 1.0,
            "delta": 1e-6,
            "replace_one_epsilon": 2.1193,
            "adjacency": "add_remove",
            "privacy_unit": "one patient (column patient_nbr)",
            "max_rows_per_patient": 3,
            "ledger_entry": "e-17",
            "measurement_sha256": "a" * 64,
            "code_sha256": "c" * 64,
            "needs_approval": False,
            "requester": None,
            "gate": (
                GateRecord(check="columns", passed=True),
                GateRecord(check="bounds: age", passed=True),
            ),
            "rows": 400,
            "tainted": False,
            "files": file_digests({"synthetic.csv": b"synthetic"}),
        }
        return Manifest(**{**values, **changes})

    return make
