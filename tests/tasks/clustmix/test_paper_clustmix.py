import pickle

import numpy as np
import pytest
from pydantic import ValidationError

from tasks.execution.executor import IN_PROCESS, InProcessExecutor
from tasks.papers.clustmix.algorithm import ClustMixAlgorithm
from tasks.papers.clustmix.config import AlgorithmConfig
from tasks.papers.clustmix.noise import minimum_cluster_size
from tasks.papers.clustmix.scaling import ScalingKind

TARGET = {"epsilon": 10.0, "delta": 1e-3, "sigma_max": 0.05}


def config(**changes):
    # One depth, and slices and clusters that are padded to few sizes: little is compiled.
    settings = {"max_slice_rows": 200, "hidden_layers": 1, "kip_steps": 3, "gmm_iterations": 5}
    return AlgorithmConfig(**TARGET | settings | changes)


def synthesize(features, labels, *, executor=IN_PROCESS, clock=None, **changes):
    model = ClustMixAlgorithm(config=config(**changes), clock=clock)
    return model.synthesize(features, labels, np.random.default_rng(1), executor)


def two_classes(n=300, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.uniform(size=n) < 0.4, 7, 3)
    centres = np.where(labels == 7, 0.7, 0.3)[:, None]
    return np.clip(centres + 0.1 * rng.standard_normal((n, 4)), 0, 1), labels


@pytest.mark.parametrize("scaling", ScalingKind)
def test_synthetic_records_resemble_their_class(scaling):
    features, labels = two_classes()
    synthetic, synthetic_labels = synthesize(features, labels, scaling=scaling, kip_steps=10)
    assert synthetic.shape == (len(synthetic_labels), 4)
    assert set(synthetic_labels) == {3, 7}
    assert 0.0 <= synthetic.min() <= synthetic.max() <= 1.0
    for label in (3, 7):
        difference = synthetic[synthetic_labels == label].mean() - features[labels == label].mean()
        assert abs(difference) < 0.08


def test_items_can_be_pickled_and_order_is_kept():
    def travel(value):
        return pickle.loads(pickle.dumps(value))  # noqa: S301

    class Remote(InProcessExecutor):
        def map(self, function, items, *, gpu=False):
            return [travel(travel(function)(travel(item))) for item in items]

    near, far = (synthesize(*two_classes(), executor=each) for each in (IN_PROCESS, Remote()))
    np.testing.assert_array_equal(near[0], far[0])
    np.testing.assert_array_equal(near[1], far[1])


def test_as_many_means_come_late_or_held_where_they_are_and_adaptation_moves_them():
    ticks = iter(range(0, 10**9, 1000))
    late, _ = synthesize(*two_classes(), clock=lambda: float(next(ticks)))
    held, free = (synthesize(*two_classes(), alpha=alpha)[0] for alpha in (1.0, 0.0))
    assert late.shape == held.shape == free.shape
    assert not np.array_equal(held, free)


def test_flaw_c3_the_number_of_records_shows_an_exact_count():
    size = minimum_cluster_size(n_classes=2, n_features=4, **TARGET)
    features = np.random.default_rng(0).uniform(size=(6 * size, 4))
    labels = np.repeat([0, 1], 3 * size)
    _, full = synthesize(features, labels)
    _, without_one = synthesize(features[1:], labels[1:])
    assert np.bincount(full).tolist() == [3, 3]
    assert np.bincount(without_one).tolist() == [2, 3]


def test_too_few_rows_give_no_records():
    for changes in ({}, {"epsilon": 1e-3}):
        synthetic, synthetic_labels = synthesize(*two_classes(20), **changes)
        assert synthetic.shape == (0, 4)
        assert synthetic_labels.shape == (0,)


def test_bad_arrays_are_refused():
    for value in (1.5, np.nan):
        with pytest.raises(ValueError, match=r"expected every feature in \[0, 1\]"):
            synthesize(np.full((3, 2), value), np.zeros(3, dtype=int))
    for features, n_labels in ((np.zeros(3), 3), (np.zeros((3, 2)), 2), (np.zeros((0, 2)), 0)):
        with pytest.raises(ValueError, match=r"expected features of shape \(n, D\)"):
            synthesize(features, np.zeros(n_labels, dtype=int))


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.0}, {"epsilon": np.inf}, {"delta": 1.0}, {"sigma_max": 0.0}, {"alpha": 1.1},
        {"ridge": 0.0}, {"max_slice_rows": 0}, {"n_cutoffs": 0}, {"hidden_layers": -1},
        {"kip_steps": 0}, {"learning_rate": 0.0}, {"gmm_iterations": 0}, {"gmm_starts": 0},
        {"timeout_seconds": 0.0}, {"rounds": 1},
    ],
    ids=str,
)  # fmt: skip
def test_configuration_refuses_values_outside_their_range(change):
    with pytest.raises(ValidationError):
        config(**change)
