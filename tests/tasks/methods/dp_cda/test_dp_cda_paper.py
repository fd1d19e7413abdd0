import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from measuring import assert_valid, domain_with
from printed_theorem import printed_theorem

from privacy.parameters import PrivacyParameters
from tasks.methods.dp_cda.dp_cda_settings import DpCdaConfig, PaperSettings
from tasks.papers import dp_cda
from tasks.papers import dp_cda as printed

MNIST = {"order": 4, "n_records": 60_000, "n_outputs": 60_000}


@pytest.fixture(autouse=True)
def few_orders(monkeypatch):
    """Orders in which the least of these tests lies: the others take seconds."""
    monkeypatch.setattr(printed, "ORDERS", tuple(range(3, 20)))


@pytest.mark.parametrize("noise_multiplier", [0.4, 0.5])
def test_theorem_1_equals_the_form_of_its_source(noise_multiplier):
    found = dp_cda.theorem_1_epsilon(noise_multiplier, **MNIST, delta=1e-5)
    expected = printed_theorem(noise_multiplier, **MNIST, delta=1e-5, orders=range(3, 20))
    assert found == pytest.approx(expected, rel=1e-6)


def test_theorem_claims_more_than_a_tighter_conversion():
    # Flaw A5, with the conversion of Canonne, Kamath and Steinke 2020.
    engine = RdpAccountant(
        orders=list(range(3, 20)), neighboring_relation=NeighboringRelation.REPLACE_ONE
    )
    noise = dp_event.GaussianDpEvent(0.4)
    engine.compose(dp_event.SampledWithoutReplacementDpEvent(60_000, 4, noise), 60_000)
    assert engine.get_epsilon(1e-5) < dp_cda.theorem_1_epsilon(0.4, **MNIST, delta=1e-5)


def test_noise_is_the_least_that_theorem_1_allows():
    parameters = PrivacyParameters(epsilon=10.0, delta=1e-5)
    noise = dp_cda.theorem_1_noise(parameters, **MNIST, l2_clip_norm=3.0, label_share=0.25)
    # epsilon(alpha) = alpha / l^2 (2 c^2 / sigma_x^2 + 1 / sigma_y^2) = alpha / (2 z^2).
    inverse = 2 / 4**2 * (2 * 3.0**2 / noise.record_stddev**2 + 1 / noise.label_stddev**2)
    multiplier = inverse**-0.5
    assert (2 / 4**2 / noise.label_stddev**2) / inverse == pytest.approx(0.25)
    assert dp_cda.theorem_1_epsilon(multiplier * (1 + 1e-9), **MNIST, delta=1e-5) <= 10.0
    assert dp_cda.theorem_1_epsilon(multiplier * (1 - 2e-3), **MNIST, delta=1e-5) > 10.0


def test_label_noise_turns_labels_over():
    pool = dp_cda.ClassPool(records=np.zeros((4, 2)), label=1, order=2, n_mixtures=4_000)
    rng = np.random.default_rng(0)
    noise = dp_cda.MixingNoise(record_stddev=0.5, label_stddev=1.0)
    mixtures, labels = dp_cda.noisy_mixtures((pool, 2, noise, rng))
    assert mixtures.std() == pytest.approx(0.5, rel=0.05)
    # The other label wins if a normal variable of deviation sqrt(2) exceeds one.
    turned = math.erfc(1 / math.sqrt(2) / math.sqrt(2)) / 2
    assert (labels != 1).mean() == pytest.approx(turned, abs=0.03)
    _, kept = dp_cda.noisy_mixtures((pool, 2, None, rng))
    assert (kept == 1).all()


DOMAIN = domain_with(11, 3, numeric=[0])


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    codes = np.stack([rng.integers(0, 5, n) + 6 * labels, rng.integers(0, 2, n) + labels], axis=1)
    return codes.astype(np.uint16), labels.astype(np.uint16)


def test_synthesizes_valid_records_of_every_class():
    config = DpCdaConfig(
        order_of_mixture=20, mixtures_per_class=30, published=PaperSettings(l2_clip_norm=1.5)
    )
    method = dp_cda.PaperDpCda(DOMAIN, config, PrivacyParameters(epsilon=500.0, delta=1e-5))
    codes, labels = method.synthesize(*table(200), np.random.default_rng(0))
    assert_valid(DOMAIN, codes, labels, 60)
    # Little noise: the classes of the first column, 0-4 and 6-10, stay apart.
    assert ((codes[:, 0] >= 5) == (labels == 1)).mean() > 0.9


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 40), data=st.data())
def test_samples_have_different_records(n, data):
    order = data.draw(st.integers(1, n))
    chosen = dp_cda.distinct_indices(n, order=order, n_samples=20, rng=np.random.default_rng(n))
    assert chosen.shape == (20, order)
    assert chosen.min() >= 0
    assert chosen.max() < n
    assert all(len(set(sample)) == order for sample in chosen.tolist())


def test_every_set_of_records_is_as_likely():
    chosen = dp_cda.distinct_indices(5, order=3, n_samples=20_000, rng=np.random.default_rng(0))
    found = Counter(frozenset(sample) for sample in chosen.tolist())
    expected = {frozenset(sample) for sample in combinations(range(5), 3)}
    assert set(found) == expected
    # 2,000 each; five standard deviations of a count.
    assert max(abs(count - 2_000) for count in found.values()) < 5 * np.sqrt(2_000 * 0.9)


def test_mixtures_are_means_of_the_class_alone():
    rng = np.random.default_rng(1)
    records, labels = rng.random((12, 4)).astype(np.float32), np.arange(12) % 2
    pools = dp_cda.class_pools(records, labels, n_labels=2, order=3, mixtures_per_class=50)
    for label, pool in enumerate(pools):
        means = dp_cda.mix_class(pool, rng)
        assert means.dtype == np.float32
        own = records[labels == label].astype(np.float64)
        possible = np.array([own[list(s)].mean(axis=0) for s in combinations(range(6), 3)])
        distance = np.abs(means[:, None] - possible[None]).max(axis=2).min(axis=1)
        assert distance.max() < 1e-6
