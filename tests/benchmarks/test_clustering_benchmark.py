"""The clustering benchmark on generated images."""

import numpy as np
import pytest

from benchmarks import clustering


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
