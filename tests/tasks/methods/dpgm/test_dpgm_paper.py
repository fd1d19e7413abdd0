"""The printed algorithms: slow references, the flaws as they show, and whole runs."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from measuring import assert_valid

from privacy.parameters import PrivacyParameters
from tasks.methods.dpgm.dpgm_settings import DpgmConfig, PaperSettings
from tasks.methods.dpgm.record_gradients import BatchGradients
from tasks.papers.dpgm import dp_sgd
from tasks.papers.dpgm.kernel_kmeans import fourier_features, private_kernel_kmeans
from tasks.papers.dpgm.synthesizer import PaperDpgm
from tasks.papers.printed_noise import clip_rows

TINY = PaperSettings(
    sigma_g=20.0, sigma_k=60.0, sigma_c=20.0, sampling_probability=0.25, epochs=1,
    clustering_rounds=2,
)  # fmt: skip
CONFIG = DpgmConfig(clusters=2, fourier_features=6, hidden_units=2, network="vae", published=TINY)


def test_features_are_those_of_eq_3_and_may_be_longer_than_one():
    rng = np.random.default_rng(0)
    vectors = rng.random((400, 5))
    features = fourier_features(vectors, n_features=50, gamma=1.0, rng=np.random.default_rng(1))
    again = np.random.default_rng(1)
    frequencies, offsets = again.normal(0.0, 2.0, (5, 50)), again.uniform(0, 2 * math.pi, 50)
    expected = math.sqrt(2 / 50) * math.cos(float(vectors[3] @ frequencies[:, 7]) + offsets[7])
    assert features[3, 7] == pytest.approx(expected)
    # Flaw G4: one in expectation only; line 5 is what bounds the norm.
    norms = np.linalg.norm(features, axis=1)
    assert (norms > 1.0).mean() > 0.2
    assert np.linalg.norm(clip_rows(features, l2_clip_norm=1.0), axis=1).max() <= 1.0 + 1e-12


@pytest.mark.parametrize("simultaneous", [False, True])
def test_k_means_equals_the_typeset_loop(simultaneous):
    rng = np.random.default_rng(2)
    points, first = rng.normal(0.0, 0.4, (30, 3)), rng.normal(0.0, 0.4, (4, 3))
    found = private_kernel_kmeans(
        points,
        first,
        n_rounds=3,
        sigma_k=0.3,
        rng=np.random.default_rng(5),
        simultaneous=simultaneous,
    )
    noise = np.random.default_rng(5)
    clipped = [p / max(1.0, float(np.linalg.norm(p))) for p in points]
    centres = [c.copy() for c in first]

    def nearest(point):
        return int(np.argmin([float(((point - c) ** 2).sum()) for c in centres]))

    for _ in range(3):
        assigned = [nearest(p) for p in clipped]
        for i in range(4):
            now = assigned if simultaneous else [nearest(p) for p in clipped]
            member = [p for p, cluster in zip(clipped, now, strict=True) if cluster == i]
            size = len(member) + noise.normal(0.0, math.sqrt(2) * 0.3)
            total = np.sum(member, axis=0) if member else np.zeros(3)
            centres[i] = (total + noise.normal(0.0, math.sqrt(2) * 0.3, 3)) / size
    assert found.tolist() == [nearest(p) for p in clipped]


def test_a_noisy_mean_is_clipped_at_the_norm_of_its_own_batch():
    vectors = np.array([[0.0, 0.25]] * 5 + [[8.0, 0.0]])
    gradients = BatchGradients(
        norms=np.linalg.norm(vectors, axis=1), weighted_sum=lambda factors: factors @ vectors
    )
    rng = np.random.default_rng(1)
    cluster = SimpleNamespace(sigma_c=1e-6, sigma_g=1e-9, batch_size=6.0, rng=rng)
    assert dp_sgd.noisy_mean(gradients, cluster) == pytest.approx(
        np.array([0.3, 5 * 0.25]) / 6.0, rel=1e-5
    )


def test_a_run_makes_as_many_valid_records_as_there_are_real_ones(small):
    rows = small.rows(small.patients(25, 1))
    seen = []

    def mapped(function, items):
        seen.extend(items)
        return [function(item) for item in items]

    method = PaperDpgm(small.domain, CONFIG, PrivacyParameters(epsilon=50.0, delta=1e-5))
    codes, labels = method.synthesize(
        rows.codes, rows.label, np.random.default_rng(4), SimpleNamespace(map=mapped)
    )
    assert_valid(small.domain, codes, labels, len(rows))
    assert sum(item.n_steps for item in seen) == 4
    assert sum(len(item.vectors) for item in seen) == len(rows)
    assert dp_sgd.MAX_NORM == 10.0


# Settings of Fig. 4. The paper gives q, the epochs, T_K, sigma_C and delta; sigma_K and sigma_G are
# read off Fig. 2 and are the round numbers that give its epsilon of 1.74.
MNIST = dp_sgd.NoiseSettings(
    sigma_c=4.0,
    sigma_k=40.0,
    sigma_g=1.0,
    clustering_rounds=20,
    sampling_probability=0.0017,
    n_steps=dp_sgd.steps_of(epochs=20, sampling_probability=0.0017),
    delta=1e-5,
)


def test_the_figure_for_mnist_is_the_papers_to_its_last_digit_where_j_is_chosen_finer(monkeypatch):
    assert MNIST.n_steps == 20 * 589
    assert dp_sgd.paper_epsilon(MNIST) == pytest.approx(1.745, abs=0.001)
    dp_sgd._step_moment.cache_clear()
    monkeypatch.setattr(dp_sgd, "J_VALUES", tuple(np.arange(5, 15) / 100))
    found = dp_sgd.paper_epsilon(MNIST)
    dp_sgd._step_moment.cache_clear()
    assert round(found, 2) == 1.74


def test_a_sample_of_everybody_has_the_moment_of_a_gaussian():
    """(l^2 + l) / (2 sigma^2), twice what Lemma 1 prints (flaw G1)."""
    assert dp_sgd._sampled_moment(5.0, 1.0, 3.0) == pytest.approx(30.0 / 18.0)


def test_the_noise_scale_of_the_gradients_is_found_from_a_claimed_epsilon(monkeypatch):
    monkeypatch.setattr(dp_sgd, "MAX_ORDER", 12)
    settings = replace(MNIST, n_steps=1000, sigma_g=77.0)
    sigma_g = dp_sgd.paper_sigma_g(settings, epsilon=2.0)
    assert 1.99 < dp_sgd.paper_epsilon(replace(settings, sigma_g=sigma_g)) <= 2.0
