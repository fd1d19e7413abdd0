"""ClustMix as printed: three pairs of neighbours on which it breaks its claim, by running it.

Madl et al., "Approximate, Adapt, Anonymize (3A)", Algorithm 2. The claim is Eq. 8, at which the
noise of every cluster mean is set. Each pair is given to the printed algorithm as it is shipped
for comparison, and to the proven one. Flaws C3, C4 and C7 of docs/methods.md; more on them in
tests/benchmarks/test_rivals.py and tests/test_docs.py.
"""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from measuring import domain_with, rows_with, transcript_of
from scipy.stats import chi2, norm

from benchmarks.rivals.clustmix.algorithm import ClustMixSettings, synthesize
from benchmarks.rivals.clustmix.claimed_noise import noise_sigma
from benchmarks.rivals.clustmix.constrained_gmm import cluster_means, constrained_gmm
from benchmarks.rivals.clustmix.stages import anonymize
from privacy.calibration import gdp_mu
from privacy.gaussian import gaussian_delta, gaussian_epsilon
from privacy.parameters import PrivacyParameters
from tasks.methods.clustmix.images.image_clustmix import ImageClustMix
from tasks.methods.clustmix.images.image_draws import residuals, with_features
from tasks.methods.clustmix.images.image_layout import ImageLayout
from tasks.methods.clustmix.images.teacher import whitening_of
from tasks.methods.clustmix.table_clustmix import Effort, TableClustMix
from tests.counterexamples.attacks import rates

EPSILON, DELTA, LEAST = 1.0, 1e-5, 20
CLAIM = {"epsilon": EPSILON, "delta": DELTA, "n_classes": 1, "n_features": 1}

PARAMETERS = PrivacyParameters(epsilon=EPSILON, delta=DELTA)


def printed(table, rng):
    """The printed algorithm with clusters of at least LEAST rows; alpha 1 holds the centres."""
    settings = ClustMixSettings(
        sigma_max=noise_sigma(cluster_size=LEAST, **CLAIM) * (1 + 1e-9),
        alpha=1.0,
        kip_steps=1,
        hidden_layers=1,
        gmm_starts=10,
        max_slice_rows=len(table),
    )
    labels = np.zeros(len(table), dtype=int)
    return synthesize(table[:, None], labels, settings=settings, parameters=PARAMETERS, rng=rng)[0]


def line_table(moved, least=LEAST):
    """Rows in [0, 1], 59 of them; the record at `moved` is the only difference."""
    block = least - 1
    return np.array([0.0] * block + [moved] + [0.5] * block + [0.9] + [1.0] * block)


def outputs_of(table, n_runs, seed):
    """Synthetic rows of independent runs of the whole printed algorithm."""
    rng = np.random.default_rng(seed)
    return [printed(table, rng) for _ in range(n_runs)]


def measured_delta(hits, alarms, n_runs):
    """Lower bound of delta at EPSILON from the counts of one event on both tables."""
    least, most = rates(hits, alarms, n_runs)
    return least - math.exp(EPSILON) * most


# --- C4: one record makes a block of others change sides ------------------------------------------


def test_flip_is_claimed_to_be_hidden():
    # Eq. 8 is the delta of a Gaussian mechanism with mu = sqrt(C D) / (l sigma).
    mu = 1.0 / (LEAST * noise_sigma(cluster_size=LEAST, **CLAIM))
    assert gaussian_delta(epsilon=EPSILON, mu=mu) == pytest.approx(DELTA, rel=1e-3)


def flip_delta(least=LEAST):
    """Delta at EPSILON of the flip at least: exact law of the sum of the two noisy means."""
    laws = []
    how = {"n_clusters": 2, "min_size": least, "max_iterations": 50, "n_starts": 10}
    for moved in (0.2, 0.0):
        rows = line_table(moved, least)[:, None]
        labels, _ = constrained_gmm(rows, **how, rng=np.random.default_rng(0))
        sigmas = [noise_sigma(cluster_size=int(size), **CLAIM) for size in np.bincount(labels)]
        laws.append((cluster_means(rows, labels, 2).sum(), math.hypot(*sigmas)))
    thresholds = np.linspace(0, 12, 12_001)
    above, above_moved = (norm.sf(thresholds, *law) for law in laws)
    return float(np.max(above - math.exp(EPSILON) * above_moved))


def test_flip_exceeds_the_claim():
    assert flip_delta() == pytest.approx(0.62, abs=0.005)


@pytest.mark.integration
def test_flip_is_caught_by_running_it():
    n_runs = 300
    hits, alarms = (
        sum(points.sum() > 1.0 for points in outputs_of(line_table(moved), n_runs, seed))
        for seed, moved in enumerate((0.2, 0.0))
    )
    assert measured_delta(hits, alarms, n_runs) > 10_000 * DELTA


# --- C7: the noise shows the size of the cluster --------------------------------------------------

WIDE = 784


def wide_output(n_rows, rng):
    """Lines 13 to 19 for one cluster of equal rows: its mean is the same for every size."""
    rows = np.full((n_rows, WIDE), 0.5)
    sizes = np.array([n_rows])
    return anonymize(rows, rows[:1], sizes, n_classes=1, parameters=PARAMETERS, rng=rng)[0]


def wide_law(n_rows, width=WIDE):
    """Standard deviation that the shipped code gives each coordinate."""
    sigma = noise_sigma(**(CLAIM | {"n_features": width}), cluster_size=n_rows)
    mu = math.sqrt(width) / (n_rows * sigma)
    assert gaussian_delta(epsilon=EPSILON, mu=mu) == pytest.approx(DELTA, rel=1e-3)
    return sigma


def best_radius(wide, narrow, width=WIDE):
    """Squared distance at which the likelihood ratio of the two sizes is e^EPSILON."""
    return (EPSILON + width * math.log(wide / narrow)) / (0.5 * (1 / narrow**2 - 1 / wide**2))


def size_delta(width=WIDE, least=LEAST):
    """Exact delta at EPSILON of one cluster more or less by one row."""
    wide, narrow = (wide_law(size, width) for size in (least, least + 1))
    radius = best_radius(wide, narrow, width)
    return chi2.sf(radius / wide**2, width) - math.e * chi2.sf(radius / narrow**2, width)


def test_size_exceeds_the_claim():
    assert size_delta() == pytest.approx(0.49, abs=0.005)


@pytest.mark.integration
def test_size_is_caught_by_running_it():
    n_runs, rng = 300, np.random.default_rng(2)
    radius = best_radius(wide_law(LEAST), wide_law(LEAST + 1))
    hits, alarms = (
        sum(((wide_output(n_rows, rng) - 0.5) ** 2).sum() > radius for _ in range(n_runs))
        for n_rows in (LEAST, LEAST + 1)
    )
    assert measured_delta(hits, alarms, n_runs) > 10_000 * DELTA


# --- C3: the number of synthetic rows is an exact count -------------------------------------------


@pytest.mark.integration
def test_count_is_caught_by_running_it():
    # Two clusters of LEAST rows, or one record fewer and one cluster.
    n_runs = 40
    table = np.tile([0.0, 0.3, 0.7, 1.0], LEAST // 2)
    full, fewer = (
        [len(points) for points in outputs_of(rows, n_runs, seed)]
        for seed, rows in enumerate((table, table[:-1]))
    )
    assert set(full) == {2}
    assert set(fewer) == {1}
    # An event of probability one on the one and zero on the other: delta is one at any epsilon.
    assert measured_delta(n_runs, 0, n_runs) > 10_000 * DELTA


# --- the proven forms on the same pairs: of tables, and of images of one pixel --------------------

DOMAIN = domain_with(11, numeric=[0])
METHODS = {
    "tables": TableClustMix(DOMAIN, Effort(starts=1, steps=5, fit_rows=200)),
    "images": ImageClustMix(replace(DOMAIN, image=(1, 1, 1), patients=400), points=50),
}
MU = gdp_mu(epsilon=EPSILON, delta=DELTA)

PAIRS = {
    "flip": tuple(np.rint(10 * line_table(moved)).astype(int) for moved in (0.2, 0.0)),
    "size": (np.full(LEAST + 1, 5), np.full(LEAST, 5)),
    "count": tuple(np.tile([0, 3, 7, 10], LEAST // 2)[:n] for n in (2 * LEAST, 2 * LEAST - 1)),
}
"""Tables in tenths. A flip replaces a record, the others remove one."""


def rows_of(tenths):
    return rows_with(tenths[:, None], np.zeros(len(tenths)))


@pytest.mark.parametrize("form", METHODS)
@pytest.mark.parametrize("pair", PAIRS)
def test_proven_form_keeps_its_claim_on_the_same_pair(form, pair):
    # The exact loss of a whole transcript: no attack finds more.
    first, second = map(rows_of, PAIRS[pair])
    draws, released = transcript_of(METHODS[form], first, mu=MU, seed=3)
    loss = Fraction(0)
    for noisy, contribution, public in draws:
        tables = [first, second]
        if contribution is residuals:
            how = {"layout": ImageLayout.of(METHODS[form].domain)}
            how["whitening"] = whitening_of(released)
            tables = [with_features(rows, **how) for rows in tables]
        one, other = (contribution(rows, **public) for rows in tables)
        squared = sum(value * value for value in (one - other).ravel().tolist())
        loss += Fraction(squared) / (Fraction(noisy.event.noise_stddev) ** 2 - 16)
    mu = math.sqrt(loss)
    # A replaced record is one that is removed and one that is added.
    claim = 2 * MU if len(first) == len(second) else MU
    epsilon = gaussian_epsilon(delta=DELTA, mu=claim)
    assert 0 < mu <= claim
    assert gaussian_delta(epsilon=epsilon, mu=mu) <= DELTA
