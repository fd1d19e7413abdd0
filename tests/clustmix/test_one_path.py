import io

import made_up_release as made
import numpy as np
import pandas as pd
import pytest
from fixed_runs import Randomness, fixed_randomness

import clustmix
from benchmarks.in_process import SeededNoise
from clustmix import Schema
from privacy.errors import Withheld
from storage.releases.measurements import MeasurementStore
from storage.releases.release_store import ReleaseStore

RELEASE_ID = "r-20250101-00c0ffee"


def randomness():
    return Randomness(noise_source=SeededNoise(3), sampling=np.random.default_rng(4))


@pytest.mark.parametrize(
    "method",
    [
        {"kind": "naive_bayes"},
        {"kind": "dp_cda", "order_of_mixture": 8, "declared_patients": 1_500},
        {"kind": "clustmix"},
    ],
    ids=lambda method: method["kind"],
)
def test_the_same_noise_gives_the_same_release(tmp_path, monkeypatch, method):
    site = made.write_site(tmp_path, method=method, patients=1_500)
    made.install(monkeypatch, tmp_path)
    published = {}

    def keep(store, files, manifest, **signatures):
        published.update(files, events=manifest.events)
        raise Withheld("KEPT", "kept by the test")

    monkeypatch.setattr(ReleaseStore, "publish", keep)
    with fixed_randomness(randomness()), pytest.raises(Withheld, match="KEPT"):
        made.release_without_engine(site, release_id=RELEASE_ID)
    sealed = MeasurementStore(tmp_path / "home" / "measurements").open(RELEASE_ID).released

    settings = {name: value for name, value in method.items() if name != "kind"}
    made_class = {"naive_bayes": "NaiveBayes", "dp_cda": "DPCDA", "clustmix": "ClustMix"}
    model = getattr(clustmix, made_class[method["kind"]])(
        Schema.from_yaml(site),
        epsilon=1.0,
        delta=1e-5,
        patient_column="patient",
        max_rows_per_patient=3,
        patients=1_500,
        **settings,
    )
    cohort = pd.read_csv(tmp_path / "cohort.csv")
    with fixed_randomness(randomness()):
        rows = model.fit(cohort).sample(300)
    assert model.released_.keys() == sealed.keys()
    assert all(np.array_equal(model.released_[name], sealed[name]) for name in sealed)
    pd.testing.assert_frame_equal(
        pd.read_parquet(io.BytesIO(published["synthetic.parquet"])), rows, check_dtype=False
    )
    assert len(published["events"]) == len(model.guarantee_.events)
