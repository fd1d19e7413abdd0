import shutil

import made_up_release as made
import numpy as np
import pandas as pd
import pytest
from fixed_runs import Randomness

from benchmarks.in_process import SeededNoise
from clustmix import Schema

SCHEMA = Schema(
    columns=[
        {"name": "age", "kind": "integer", "lower": 0, "upper": 99, "bins": 5},
        {"name": "ward", "kind": "categorical", "levels": ["A", "B", "C"], "missing": ["?"]},
    ],
    label={"name": "died", "levels": [{"name": "no", "values": ["0"]},
                                      {"name": "yes", "values": ["1"]}]},
)  # fmt: skip


@pytest.fixture
def schema():
    return SCHEMA


@pytest.fixture
def frame():
    """2,000 stays of 1,000 patients; the older die more often."""
    rng = np.random.default_rng(7)
    age = rng.integers(0, 100, 2000)
    return pd.DataFrame(
        {
            "patient": [f"p{number}" for number in np.arange(2000) // 2],
            "age": age,
            "ward": rng.choice(["A", "B", "C", "?"], 2000),
            "died": (rng.random(2000) < age / 120).astype(int),
        }
    )


@pytest.fixture
def seeded():
    """Randomness that can be drawn again; what is made with it is marked."""

    def made(seed=1):
        return Randomness(noise_source=SeededNoise(seed), sampling=np.random.default_rng(seed))

    return made


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A bundle and the key that it is signed with, away from the installation."""
    folder = tmp_path_factory.mktemp("installation")
    with pytest.MonkeyPatch.context() as patch:
        made.install(patch, folder)
        outcome = made.release_without_engine(made.write_site(folder))
    reader = tmp_path_factory.mktemp("reader")
    shutil.copytree(outcome.bundle, reader / "bundle")
    [key] = (folder / "home").rglob("pipeline.pub")
    shutil.copy(key, reader / "pipeline.pub")
    return reader
