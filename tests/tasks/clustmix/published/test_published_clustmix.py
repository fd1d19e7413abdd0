import pickle

import numpy as np
import pytest

from privacy.errors import ConfigurationError
from tasks.papers.clustmix.algorithm import PublishedClustMix
from tasks.papers.clustmix.config import PublishedConfig
from tasks.papers.clustmix.noise import minimum_cluster_size
from tasks.papers.clustmix.scaling import ScalingKind


def config(**changes):
    settings = {
        "epsilon": 10.0,
        "delta": 1e-3,
        "sigma_max": 0.05,
        "max_slice_rows": 400,
        "hidden_layers": 1,
        "kip_steps": 10,
        "gmm_iterations": 5,
    }
    return PublishedConfig(**(settings | changes))


def two_classes(n=900, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.uniform(size=n) < 0.4, 7, 3)
    centres = np.where(labels == 7, 0.7, 0.3)[:, None]
    return np.clip(centres + 0.1 * rng.standard_normal((n, 4)), 0, 1), labels


@pytest.mark.parametrize(
    "scaling",
    [
        ScalingKind.MIN_MAX,
        *(pytest.param(one, marks=pytest.mark.integration) for one in list(ScalingKind)[1:]),
    ],
)
def test_synthetic_records_resemble_their_class(scaling):
    features, labels = two_classes()
    model = PublishedClustMix(config=config(scaling=scaling))
    synthetic, synthetic_labels = model.synthesize(features, labels, np.random.default_rng(1))
    assert synthetic.shape == (len(synthetic_labels), 4)
    assert set(synthetic_labels) == {3, 7}
    assert synthetic.min() >= 0.0
    assert synthetic.max() <= 1.0
    for label in (3, 7):
        difference = synthetic[synthetic_labels == label].mean() - features[labels == label].mean()
        assert abs(difference) < 0.08


def test_items_can_be_pickled_and_order_is_kept():
    features, labels = two_classes(500)

    def remote_map(function, items):
        def travel(value):
            return pickle.loads(pickle.dumps(value))  # noqa: S301

        return [travel(travel(function)(travel(item))) for item in items]

    model = PublishedClustMix(config=config(kip_steps=3))
    near = model.synthesize(features, labels, np.random.default_rng(1))
    far = model.synthesize(features, labels, np.random.default_rng(1), remote_map)
    np.testing.assert_array_equal(near[0], far[0])
    np.testing.assert_array_equal(near[1], far[1])


def test_a_clock_that_runs_out_still_gives_the_clusters():
    features, labels = two_classes(500)
    ticks = iter(range(0, 10**9, 1000))
    late = PublishedClustMix(config=config(kip_steps=3), clock=lambda: float(next(ticks)))
    in_time = PublishedClustMix(config=config(kip_steps=3))
    rng = np.random.default_rng
    assert len(late.synthesize(features, labels, rng(1))[0]) == len(
        in_time.synthesize(features, labels, rng(1))[0]
    )


def test_adaptation_moves_the_means_unless_alpha_is_one():
    features, labels = two_classes(300)
    held = PublishedClustMix(config=config(alpha=1.0, kip_steps=2, hidden_layers=0))
    free = PublishedClustMix(config=config(alpha=0.0, kip_steps=2, hidden_layers=0))
    held_points, _ = held.synthesize(features, labels, np.random.default_rng(1))
    free_points, _ = free.synthesize(features, labels, np.random.default_rng(1))
    assert held_points.shape == free_points.shape
    assert not np.array_equal(held_points, free_points)


def test_flaw_c3_the_number_of_records_shows_an_exact_count():
    settings = {"epsilon": 10.0, "delta": 1e-3, "sigma_max": 0.05}
    size = minimum_cluster_size(n_classes=2, n_features=4, **settings)
    rng = np.random.default_rng(0)
    features = rng.uniform(size=(6 * size, 4))
    labels = np.repeat([0, 1], 3 * size)
    model = PublishedClustMix(config=config(max_slice_rows=6 * size, kip_steps=1))
    _, full = model.synthesize(features, labels, np.random.default_rng(1))
    _, without_one = model.synthesize(features[1:], labels[1:], np.random.default_rng(1))
    assert np.bincount(full).tolist() == [3, 3]
    assert np.bincount(without_one).tolist() == [2, 3]


def test_too_few_rows_give_no_records():
    features, labels = two_classes(20)
    for changes in ({}, {"delta": 1e-3, "epsilon": 1e-3}):
        synthetic, synthetic_labels = PublishedClustMix(config=config(**changes)).synthesize(
            features, labels, np.random.default_rng(1)
        )
        assert synthetic.shape == (0, 4)
        assert synthetic_labels.shape == (0,)


def test_bad_arrays_are_refused():
    model = PublishedClustMix(config=config())
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"expected every feature in \[0, 1\]"):
        model.synthesize(np.full((3, 2), 1.5), np.zeros(3, dtype=int), rng)
    with pytest.raises(ValueError, match=r"expected every feature in \[0, 1\]"):
        model.synthesize(np.full((3, 2), np.nan), np.zeros(3, dtype=int), rng)
    for features, n_labels in ((np.zeros(3), 3), (np.zeros((3, 2)), 2), (np.zeros((0, 2)), 0)):
        with pytest.raises(ValueError, match=r"expected features of shape \(n, D\)"):
            model.synthesize(features, np.zeros(n_labels, dtype=int), rng)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "expected epsilon above 0, found 0.0; change epsilon of the published"),
        ({"epsilon": np.inf}, "expected epsilon above 0, found inf"),
        ({"delta": 1.0}, r"expected delta in \(0, 1\), found 1.0"),
        ({"sigma_max": 0.0}, "expected sigma_max above 0, found 0.0"),
        ({"alpha": 1.1}, r"expected alpha in \[0, 1\], found 1.1"),
        ({"ridge": 0.0}, "expected ridge above 0, found 0.0"),
        ({"max_slice_rows": 0}, "expected max_slice_rows of 1 or more, found 0"),
        ({"n_cutoffs": 0}, "expected n_cutoffs of 1 or more, found 0"),
        ({"hidden_layers": -1}, "expected hidden_layers of 0 or more, found -1"),
        ({"kip_steps": 0}, "expected kip_steps of 1 or more, found 0"),
        ({"learning_rate": 0.0}, "expected learning_rate above 0, found 0.0"),
        ({"gmm_iterations": 0}, "expected gmm_iterations of 1 or more, found 0"),
        ({"gmm_starts": 0}, "expected gmm_starts of 1 or more, found 0"),
        ({"timeout_seconds": 0.0}, "expected timeout_seconds above 0, found 0.0"),
    ],
)
def test_configuration_refuses_values_outside_their_range(change, message):
    with pytest.raises(ConfigurationError, match=message):
        config(**change)
