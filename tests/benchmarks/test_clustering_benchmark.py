"""The clustering benchmark on generated images."""

import numpy as np
import pytest

from benchmarks import clustering


def rows_of(features, epsilon, accuracy):
    return [
        clustering.row_of(features, epsilon, number, found, 1.0, 20)
        for number, found in enumerate(accuracy)
    ]


ROWS = [
    *rows_of("fourier", 0.1, (0.4, 0.5)),
    *rows_of("plain", 0.1, (0.1, 0.2)),
    *rows_of("fourier", 2.0, (0.4, 0.4)),
    *rows_of("plain", 2.0, (0.5, 0.5)),
]


@pytest.mark.parametrize("features", clustering.FORMS)
def test_a_run_gives_an_accuracy_for_every_epsilon(features):
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


def test_only_epsilons_below_the_limit_are_asked_for():
    (asked,) = clustering.requirements(ROWS)
    assert asked.met
    assert "epsilon 0.1, 2 runs" in asked.text
    (missed,) = clustering.requirements([*rows_of("fourier", 0.1, (0.1, 0.1)), *ROWS[2:]])
    assert not missed.met
