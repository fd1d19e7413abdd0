"""Private k-means as a method: plan, valid records, and clusters that carry dependence."""

import numpy as np
import pytest
from measuring import released_of

from privacy.randomness import SeededNoise
from tasks.methods.dpgm.dp_kmeans import DpKMeans, DpKMeansConfig

FEATURES = ("plain", "fourier")


def config_of(features, **settings):
    return DpKMeansConfig(
        **{"clusters": 4, "rounds": 3, "features": features, "n_features": 16, **settings}
    )


@pytest.mark.parametrize("features", FEATURES)
def test_clusters_keep_columns_together_that_go_together(small, features):
    """Within a label two kinds of records: product densities of the label alone mix them."""
    rng = np.random.default_rng(3)
    kinds = [([0, 0, 0], 0), ([2, 1, 2], 0), ([1, 0, 1], 1)]
    rows = small.rows([(0, [kinds[index]]) for index in rng.integers(0, 3, 900)])
    method = DpKMeans(small.domain, config_of(features, clusters=6, rounds=6))
    released = released_of(method, rows, SeededNoise(1), mu=100.0)
    codes, labels = method.sample(released, n_rows=3_000, rng=np.random.default_rng(1))
    of_first = codes[labels == 0]
    assert (of_first[:, 0] == of_first[:, 2]).mean() > 0.95
    assert 0.4 < (of_first[:, 0] == 0).mean() < 0.6
    assert abs(labels.mean() - rows.label.mean()) < 0.03
