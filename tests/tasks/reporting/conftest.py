import numpy as np
import pandas as pd
import pytest
from made_manifests import manifest_of

from privacy.events import Gaussian
from storage.releases.manifest import GateRecord, MethodRecord
from storage.schema.table import TableSchema


@pytest.fixture
def schema():
    return TableSchema.model_validate(
        {
            "columns": [
                {"kind": "integer", "name": "age", "lower": 0, "upper": 100, "bins": 10},
                {"kind": "real", "name": "creatinine", "lower": 0, "upper": 12, "bins": 12}
                | {"nullable": True},
                {"kind": "integer", "name": "visits", "lower": 0, "upper": 20, "bins": 5}
                | {"missing": ["-1"]},
                {"kind": "categorical", "name": "admission", "other": "other", "missing": ["?"]}
                | {"levels": ["emergency", "urgent", "elective", "other"]},
            ],
            "label": {"name": "readmitted", "levels": {"no": [], "yes": []}, "positive": "yes"},
        }
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
            "admission": rng.choice(["emergency", "urgent", "elective", "?"], n),
            "readmitted": rng.choice(["no", "yes"], n, p=[0.8, 0.2]),
        }
    ).astype({"admission": "str", "readmitted": "str"})


EVENTS = tuple(
    Gaussian(statistic=name, l2_sensitivity=most, noise_stddev=stddev, n_values=n)
    for name, most, stddev, n in (
        ("clustering round 1", 16777216.0, 192937984.0, 640),
        ("second moment", 189812531.0, 1803219044.0, 528),
    )
)
METHOD = MethodRecord(
    name="clustmix", settings={"kind": "clustmix", "slices": 2, "alphas": [0.0, 0.1]}
)
FIELDS = {
    "dataset": "readmission", "release_id": "r-20261121-0a1b2c3d", "method": METHOD,
    "request": {"source": "REQUEST-MARKER"}, "mu": 0.2366, "rho": 0.02799, "epsilon": 1.0,
    "replace_one_epsilon": 2.1193, "privacy_unit": "one patient (column patient_nbr)",
    "max_rows_per_patient": 3, "ledger_entry": "e-17",
    "gate": tuple(GateRecord(check=name, passed=True) for name in ("columns", "bounds: age")),
    "rows": 400,
}  # fmt: skip


@pytest.fixture
def make_manifest():
    return lambda **changes: manifest_of(EVENTS, **{**FIELDS, **changes})
