import numpy as np
import pytest
from measuring import curator_of, released_of

from benchmarks.in_process import SeededNoise
from tasks.measurement.method import measure
from tasks.methods.dpgm.dp_kmeans import DpKMeans, DpKMeansConfig
from tasks.methods.dpgm.dpgm import GRADIENTS, Dpgm
from tasks.methods.dpgm.dpgm_settings import DpgmConfig

CONFIG = DpgmConfig(
    clusters=3,
    clustering_rounds=2,
    fourier_features=8,
    min_cluster_size=5,
    hidden_units=3,
    network="vae",
    epochs=4,
    norm_bins=5,
    max_norm=10.0,
    l2_clip_norm=3.0,
)


@pytest.mark.parametrize("adaptive", [True, False])
def test_records_have_the_released_means_and_the_norm_adapts_if_it_may(small, adaptive):
    """Numbers have a coordinate per code, and the last epoch fits the biases to the means."""
    config = CONFIG.model_copy(update={"adaptive_clipping": adaptive})
    method, rows = Dpgm(small.domain, config), small.rows(small.patients(400, 2))
    assert {block.kind for block in method._vector_map.blocks} == {"one_hot", "binary"}
    curator = curator_of(method, [rows], SeededNoise(1), mu=2_000.0)
    released = measure(method, curator)
    norm, end_of_bin = float(released["l2_clip_norm"]), config.max_norm / config.norm_bins
    assert (norm != config.l2_clip_norm) == adaptive
    assert not adaptive or norm / end_of_bin == pytest.approx(round(norm / end_of_bin))
    n_bins = config.norm_bins if adaptive else 0
    assert curator.plan[GRADIENTS].shape == (n_bins + released["parameters"].size,)
    codes, labels = method.sample(released, n_rows=20_000, rng=np.random.default_rng(0))
    for drawn, real in [*zip(codes.T, rows.codes.T, strict=True), (labels, rows.label)]:
        wanted = np.bincount(real, weights=rows.weight, minlength=4) / rows.weight.sum()
        assert np.bincount(drawn, minlength=4) / len(drawn) == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize("features", ["plain", "fourier"])
def test_clusters_keep_columns_together_that_go_together(small, features):
    """Within a label two kinds of records: product densities of the label alone mix them."""
    rng = np.random.default_rng(3)
    kinds = [([0, 0, 0], 0), ([2, 1, 2], 0), ([1, 0, 1], 1)]
    rows = small.rows([(0, [kinds[index]]) for index in rng.integers(0, 3, 900)])
    config = DpKMeansConfig(clusters=6, rounds=6, features=features, n_features=16)
    method = DpKMeans(small.domain, config)
    released = released_of(method, rows, SeededNoise(1), mu=100.0)
    codes, labels = method.sample(released, n_rows=3_000, rng=np.random.default_rng(1))
    of_first = codes[labels == 0]
    assert (of_first[:, 0] == of_first[:, 2]).mean() > 0.95
    assert 0.4 < (of_first[:, 0] == 0).mean() < 0.6
    assert abs(labels.mean() - rows.label.mean()) < 0.03
