"""The clustering benchmark on generated images."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import clustering
from benchmarks.clustering import ClusteringRow


def row_of(features: str, epsilon: float, accuracy: tuple[float, ...]) -> ClusteringRow:
    return ClusteringRow(
        features=features,
        epsilon=epsilon,
        delta=1e-5,
        rounds=20,
        n_clusters=10,
        width=200,
        accuracy=accuracy,
        seconds=1.0,
    )


ROWS = [
    row_of("fourier", 0.1, (0.4, 0.5)),
    row_of("plain", 0.1, (0.1, 0.2)),
    row_of("fourier", 2.0, (0.4, 0.4)),
    row_of("plain", 2.0, (0.5, 0.5)),
]


@pytest.mark.parametrize("features", clustering.FORMS)
def test_a_run_gives_an_accuracy_for_every_epsilon(features: str) -> None:
    rng = np.random.default_rng(0)
    digits = np.arange(400) % 10
    templates = rng.random((10, 784)) < 0.15
    images = (templates[digits] ^ (rng.random((400, 784)) < 0.01)).astype(np.float64)
    found = clustering.one_run(
        images, digits, features=features, epsilons=(0.01, 1e4), rounds=3, public_seed=3
    )
    (low, _), (high, seconds) = found
    # Any centres divide images as far apart as these; good ones keep them together.
    assert 0.1 <= low <= 1.0
    assert 0.5 < high <= 1.0
    assert seconds > 0.0


def test_only_epsilons_below_the_limit_are_asked_for() -> None:
    (asked,) = clustering.requirements(ROWS)
    assert asked.met
    assert "epsilon 0.1, 2 runs" in asked.text
    (missed,) = clustering.requirements([replace(ROWS[0], accuracy=(0.1, 0.1)), *ROWS[1:]])
    assert not missed.met


def test_rows_are_a_table_and_a_json_list(tmp_path: Path) -> None:
    lines = clustering.accuracy_table(ROWS).splitlines()
    assert lines[0].split() == ["epsilon", "fourier", "plain"]
    assert lines[2].startswith("0.1")
    path = tmp_path / "results" / "clustering.json"
    clustering.write_rows(path, ROWS)
    assert json.loads(path.read_text())[0]["accuracy"] == [0.4, 0.5]
