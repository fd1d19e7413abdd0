"""DPGM as a whole: plan, stages, empty clusters, valid records."""

import measuring
import numpy as np
import pytest

from privacy.randomness import SeededNoise
from tasks.measurement.method import measure
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
BIG_MU = 50.0


def curator_of(method, rows, *, mu=BIG_MU):
    return measuring.curator_of(method, [rows], SeededNoise(1), mu=mu)


@pytest.fixture(scope="module")
def measured(small):
    method = Dpgm(small.domain, CONFIG)
    curator = curator_of(method, small.rows(small.patients(200, 1)))
    return method, curator, measure(method, curator, mu=BIG_MU)


def test_the_norm_adapts_and_stays_at_an_end_of_a_bin(measured):
    _, _, released = measured
    norm = float(released["l2_clip_norm"])
    assert norm != CONFIG.l2_clip_norm
    assert norm / (CONFIG.max_norm / CONFIG.norm_bins) == pytest.approx(round(norm / 2.0))


def test_without_adaption_the_norm_stays_and_no_histogram_is_drawn(small):
    config = CONFIG.model_copy(update={"adaptive_clipping": False})
    method = Dpgm(small.domain, config)
    curator = curator_of(method, small.rows(small.patients(40, 1)))
    released = measure(method, curator, mu=BIG_MU)
    assert float(released["l2_clip_norm"]) == config.l2_clip_norm
    assert curator.plan[GRADIENTS].shape == (released["parameters"].size,)


def test_records_have_the_released_means(small):
    """Numbers have a coordinate per code, and the last epoch fits the biases to the means."""
    method = Dpgm(small.domain, CONFIG)
    assert {block.kind for block in method._vector_map.blocks} == {"one_hot", "binary"}
    rows = small.rows(small.patients(400, 2))
    released = measure(method, curator_of(method, rows, mu=2_000.0), mu=2_000.0)
    codes, labels = method.sample(released, n_rows=20_000, rng=np.random.default_rng(0))
    for drawn, real in [*zip(codes.T, rows.codes.T, strict=True), (labels, rows.label)]:
        wanted = np.bincount(real, weights=rows.weight, minlength=4) / rows.weight.sum()
        assert np.bincount(drawn, minlength=4) / len(drawn) == pytest.approx(wanted, abs=0.03)
