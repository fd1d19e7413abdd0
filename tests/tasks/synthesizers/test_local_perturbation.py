import math

import numpy as np
import pytest
from scipy.stats import norm

from privacy.accountants.gaussian import gaussian_delta
from privacy.calibration import gdp_mu
from privacy.parameters import Guarantee, PrivacyParameters
from privacy.randomness import SeededNoise
from tasks.measurement.curator import Curator, InProcessCompute
from tasks.measurement.statistics import SUM_SCALE
from tasks.measurement.synthesizer import measure
from tasks.papers.local_perturbation import (
    PaperLocalPerturbation,
    perturbed_labels,
)
from tasks.synthesizers.slots.local_perturbation import LocalPerturbation
from tasks.synthesizers.slots.local_perturbation_config import (
    LocalPerturbationConfig,
    PaperSettings,
)
from tasks.synthesizers.slots.slot_release import SLOTS
from tasks.synthesizers.slots.slots import slots_of

PARAMETERS = PrivacyParameters(epsilon=10.0, delta=1e-5)


class NoNoise:
    tainted = True

    def discrete_gaussian(self, shape, *, noise_stddev):
        return np.zeros(shape, dtype=np.int64)


def released_of(method, rows, noise_source, mu=1.0):
    compute = InProcessCompute([rows])
    curator = Curator(plan=method.plan(mu=mu), compute=compute, noise_source=noise_source)
    released = measure(method, curator, mu=mu)
    assert curator.event == method.plan(mu=mu).event
    return released


def test_plan_is_one_gaussian_for_a_whole_record(small):
    method = LocalPerturbation(small.domain, LocalPerturbationConfig(n_slots=20))
    [planned] = method.plan(mu=0.5).statistics
    assert method.guarantee is Guarantee.PROVEN
    assert [stage.name for stage in method.stages(mu=0.5)] == ["slots"]
    assert (planned.name, planned.shape, planned.is_series) == (SLOTS, (20, 6), False)
    assert planned.l2_sensitivity == pytest.approx(math.sqrt(3.25 / 0.8) * SUM_SCALE)
    assert planned.unit_noise_stddev == pytest.approx(2 * math.sqrt(3.25 / 0.8), rel=1e-6)


def test_the_number_of_released_rows_says_nothing_about_the_patients(small):
    method = LocalPerturbation(small.domain, LocalPerturbationConfig(n_slots=20))
    empty = released_of(method, small.rows([]), SeededNoise(0))
    full = released_of(method, small.rows(small.patients(50, 0)), SeededNoise(1))
    assert empty[SLOTS].shape == full[SLOTS].shape == (20, 6)
    # Nobody in the table: 120 values of pure noise; five standard errors either way.
    noise = method.plan(mu=1.0)[SLOTS].unit_noise_stddev
    assert empty[SLOTS].std() == pytest.approx(noise, rel=5 / math.sqrt(240))


def test_a_record_alone_in_its_slot_comes_back_without_noise(small):
    config = LocalPerturbationConfig(n_slots=500)
    method = LocalPerturbation(small.domain, config)
    record, label = (3, 1, 2), 1
    released = released_of(method, small.rows([(0, [(record, label)])]), NoNoise())
    slot = int(slots_of(np.array([record], np.uint16), np.array([label]), n_slots=500)[0])
    codes, labels = method._release().vectors.decode(released[SLOTS])
    assert (codes[slot].tolist(), labels[slot]) == (list(record), label)


@pytest.mark.parametrize("mu", [0.05, 5.0])
def test_samples_are_valid_records(small, mu):
    method = LocalPerturbation(small.domain, LocalPerturbationConfig(n_slots=30))
    released = released_of(method, small.rows(small.patients(40, 0)), SeededNoise(0), mu=mu)
    codes, labels = method.sample(released, n_rows=70, rng=np.random.default_rng(0))
    assert (codes.shape, codes.dtype, labels.shape) == ((70, 3), np.uint16, (70,))
    assert (codes < [4, 2, 3]).all()
    assert (labels < 2).all()


@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_paper_noise_by_hand(small, ratio):
    config = LocalPerturbationConfig(published=PaperSettings(label_noise_ratio=ratio))
    feature, label = PaperLocalPerturbation(small.domain, config, PARAMETERS).noise_stddevs()
    assert label == pytest.approx(ratio * feature)
    # Four coordinates and two labels; the exact delta of the Gaussian mechanism at epsilon 10.
    mu = math.sqrt(4 / feature**2 + 2 / label**2)
    assert mu == pytest.approx(gdp_mu(epsilon=10.0, delta=1e-5))
    assert gaussian_delta(epsilon=10.0, mu=mu) == pytest.approx(1e-5, rel=1e-6)


def test_paper_labels_are_right_as_often_as_they_should():
    labels = np.random.default_rng(0).integers(0, 2, 40_000).astype(np.uint16)
    noisy = perturbed_labels(labels, n_labels=2, noise_stddev=1.5, rng=np.random.default_rng(1))
    # Two coordinates: right if their difference, N(1, 2 * 1.5^2), is positive.
    expected = norm.cdf(1 / (1.5 * math.sqrt(2)))
    error = 5 * math.sqrt(expected * (1 - expected) / 40_000)
    assert (noisy == labels).mean() == pytest.approx(expected, abs=error)


def test_paper_form_gives_one_valid_record_per_record_each_by_itself(small):
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(k, size=5_000) for k in (4, 2, 3)], axis=1).astype(np.uint16)
    labels = rng.integers(2, size=5_000).astype(np.uint16)
    method = PaperLocalPerturbation(small.domain, LocalPerturbationConfig(), PARAMETERS)
    out, out_labels = method.synthesize(codes, labels, np.random.default_rng(1))
    assert (out.shape, out.dtype, out_labels.shape) == (codes.shape, np.uint16, labels.shape)
    assert (out < [4, 2, 3]).all()
    # The binary column is right if its noise is below one half.
    feature, _ = method.noise_stddevs()
    expected = norm.cdf(0.5 / feature)
    error = 5 * math.sqrt(expected * (1 - expected) / 5_000)
    assert (out[:, 1] == codes[:, 1]).mean() == pytest.approx(expected, abs=error)
    # Replacing one record changes that row of the output alone.
    other = codes.copy()
    other[77] = [0, 0, 0] if codes[77].any() else [1, 1, 1]
    again, _ = method.synthesize(other, labels, np.random.default_rng(1))
    assert set(np.flatnonzero((out != again).any(axis=1))) <= {77}
