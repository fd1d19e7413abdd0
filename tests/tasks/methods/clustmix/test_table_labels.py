from dataclasses import replace

import numpy as np
import pytest
from measuring import domain_with, released_of, rows_with
from scipy.special import log_softmax, softmax
from scipy.stats import multivariate_normal

from benchmarks.in_process import SeededNoise
from privacy.randomness import OperatingSystemNoise
from tasks.methods.clustmix.records import label_model as labels
from tasks.methods.clustmix.records.label_features import loudness_of, white_features
from tasks.methods.clustmix.records.table_layout import Layout
from tasks.methods.clustmix.table_clustmix import Effort, TableClustMix, _intercepts
from tasks.methods.clustmix.tables import rounds
from tasks.methods.clustmix.tables import table_draws as draws

LAYOUT = Layout.of(domain_with(6, 3, 1, numeric=[0], missing=[0], labels=("a", "b", "c")))
SHARES = np.array([0.1, 0.2, 0.3, 0.2, 0.1, 0.1, 0.5, 0.3, 0.2, 1.0])


def test_features_are_white_under_the_released_shares():
    features = white_features(LAYOUT, SHARES, floor=0.0)
    assert [table.shape for table in features.tables] == [(6, 5), (3, 2), (1, 0)]
    for table, share in zip(features.tables, np.split(SHARES, [6, 9]), strict=True):
        np.testing.assert_allclose(share @ table, 0.0, atol=1e-9)
        moment = table.T @ (share[:, None] * table)
        np.testing.assert_allclose(moment, np.eye(table.shape[1]), atol=1e-9)
    # The first directions tell the missing code from the others, and low bins from high ones.
    steps = np.diff(features.tables[0][:5, :2], axis=0)
    assert ((steps > 0).all(axis=0) | (steps < 0).all(axis=0)).any()
    assert features.column.tolist() == [0] * 5 + [1] * 2
    codes = np.array([[2, 1, 0], [5, 2, 0]])
    design = features.design(codes)
    expected = [1.0, *features.tables[0][2], *features.tables[1][1]]
    np.testing.assert_allclose(design[0], expected, rtol=1e-6)
    counts = np.zeros((10, 1))
    np.add.at(counts[:, 0], np.array([0, 6, 9]) + codes, 1.0)
    summed = features.of_counts(counts)[:, 0]
    np.testing.assert_allclose(summed, design[:, 1:].sum(axis=0), rtol=1e-5)
    some = features.only(np.array([True, False, False, False, True, False, True]))
    assert [table.shape for table in some.tables] == [(6, 2), (3, 1), (1, 0)]


def test_no_other_loudness_leaves_less_unknown():
    rng = np.random.default_rng(1)
    variances, information = rng.gamma(1.0, 1.0, 12), 30.0
    best = loudness_of(variances, information=information)

    def left(squares):
        return (1.0 / (1.0 / variances + squares * information)).sum()

    assert (best**2).sum() == pytest.approx(1.0)
    others = rng.dirichlet(np.full(12, 0.5), 500)
    assert all(left(best**2) <= left(squares) + 1e-12 for squares in others)
    # Where nothing can be learned, all goes to what is known least; where all can, to everything.
    assert np.flatnonzero(loudness_of(variances, information=1e-9)).tolist() == [variances.argmax()]
    np.testing.assert_allclose(loudness_of(variances, information=1e12), 12**-0.5, rtol=1e-6)


def posterior_of(design, sums, column, shares, last=0.0, **settings):
    means, prior = np.zeros_like(sums.values), np.ones(len(column))
    settings.setdefault("reach", np.ones(len(shares) - 1))
    means[0], means[-1] = np.log(shares) @ labels.contrasts(len(shares)), last
    return labels.Posterior(
        design=design, sums=(sums,), prior=prior, column=column, means=means, **settings
    )


@pytest.mark.parametrize("n_labels", [2, 4])
def test_exact_sums_lead_back_to_the_model_that_they_came_from(n_labels):
    rng, n = np.random.default_rng(n_labels), 4_000
    design = np.column_stack([np.ones(n), rng.standard_normal((n, 5))]).astype(np.float32)
    basis = labels.contrasts(n_labels)
    true = rng.normal(0.0, 0.6, (6, n_labels - 1))
    p = softmax(design @ true @ basis.T, axis=1)
    shares = p.mean(axis=0)
    norms = 2.0 * rng.random(n)
    weights = draws.residual_weights(shares[None]) / np.maximum(1.0, norms)
    patients, loudness = 50_000.0, np.array([0.1, 1.0, 0.5, 1.0, 0.3, 1.0])
    column = np.array([0, 0, 1, 2, 2])
    start = labels.start_model(shares, np.ones(5), column, scale=1.0, reach=np.ones(n_labels - 1))
    left = design.T @ (weights[:, None] * (p - shares))
    sums = labels.Sums(
        values=loudness[:, None] * left @ basis * (patients / n),
        loudness=np.diag(loudness),
        noise=np.eye(6),
        drawn_at=labels.probabilities(design, start.coefficients),
        weights=weights * np.ones(n),
        patients=patients,
    )
    np.testing.assert_allclose(labels.probabilities(design, start.coefficients)[0], shares)
    posterior = posterior_of(design, sums, column, shares, reference=0.5)
    found, _ = labels.fit(posterior, start, steps=40)
    np.testing.assert_allclose(found.coefficients, true, atol=0.06)
    # What is heard is known better than before.
    assert (found.variances[1:] < 0.1 * start.variances[1:]).all()


def test_the_order_in_which_labels_are_declared_says_nothing():
    # The first label is so rare that the noise hides what its patients have in common.
    rng, n, order = np.random.default_rng(7), 4_000, np.array([3, 1, 0, 2])
    shares = np.array([0.01, 0.3, 0.4, 0.29])
    layout = Layout.of(domain_with(4, 4, 4, labels=("a", "b", "c", "d")))
    counts = n * shares[:, None] * rng.dirichlet(np.full(4, 2.0), (4, 3)).reshape(4, 12)
    counts += rng.normal(0.0, 10.0, (4, 12))
    features = white_features(layout, np.full(12, 0.25), floor=0.0)
    mixture = rng.integers(0, 4, (2_000, 3)).astype(np.uint16)
    noisy, found = rng.normal(0.0, 20.0, (10, 4)), []
    for labels_as in (np.arange(4), order):
        released = {
            "label_shares": shares[labels_as],
            "patients": np.array(n),
            "counts_by_label": counts[labels_as],
            "counts_stddev": np.array(10.0),
        }
        told = rounds.Rounds(layout, features, released, mixture, scale=1.0)
        told.learn(noisy[:, labels_as], told.loudness(stddev=20.0), stddev=20.0)
        found.append(np.concatenate([told.intercepts[None], told.scores]))
    np.testing.assert_allclose(found[0][:, order], found[1], atol=1e-6)


def test_the_rarity_of_a_record_says_nothing_of_the_label_in_a_wide_table():
    for d, effect in ((100, True), (101, False)):
        layout = Layout.of(domain_with(*[3] * d, labels=("a", "b")))
        counts = np.tile([[60.0, 20.0, 10.0], [3.0, 3.0, 4.0]], d)
        released = {"label_shares": np.array([0.9, 0.1]), "patients": np.array(100.0),
                    "counts_by_label": counts, "counts_stddev": np.array(10.0)}  # fmt: skip
        features = white_features(layout, counts.sum(axis=0) / 100.0, floor=0.0)
        mixture = np.random.default_rng(5).integers(0, 3, (500, d)).astype(np.uint16)
        model = rounds.Rounds(layout, features, released, mixture, scale=0.17)._model
        assert (np.abs(model.coefficients[-1]) > 1e-3).all() == effect


INTERACTIONS = {"levels": (12, 17), "numbers": (0, 2), "both": (1, 16)}
N_INTERACTING, MIDDLE = 4_000, np.array([4] * 10 + [1] * 10)


@pytest.mark.parametrize("kind", INTERACTIONS)
def test_a_label_that_hangs_on_two_columns_together_is_released(kind):
    # Ten columns of eight bins and ten of two levels. The rule that made the labels is right in .9
    # of the rows, a coin in .5. In eight releases of each kind it was right in .826, .716 and .767
    # of the released ones at least; without products in .505 at most, in five.
    rng, (first, second) = np.random.default_rng(3), INTERACTIONS[kind]
    bins = rng.integers(8, size=(N_INTERACTING, 10))
    codes = np.column_stack([bins, rng.integers(2, size=(N_INTERACTING, 10))])
    high, wrong = codes >= MIDDLE, rng.random(N_INTERACTING) < 0.1
    rows = rows_with(codes, high[:, first] ^ high[:, second] ^ wrong)
    domain = domain_with(*[8] * 10, *[2] * 10, numeric=range(10), patients=N_INTERACTING)
    method = TableClustMix(domain)
    released = released_of(method, rows, OperatingSystemNoise(), mu=0.9)
    made, drawn = method.sample(released, n_rows=20_000, rng=rng)
    high = made >= MIDDLE
    assert ((high[:, first] ^ high[:, second]) == drawn).mean() > 0.62


def test_a_contrast_has_the_part_of_its_prior_that_its_likelihood_carries():
    rng, parts = np.random.default_rng(9), 0.25 ** np.arange(7.0)
    root = rng.normal(size=(2, 3, 3))
    information, pulled = root @ root.transpose(0, 2, 1), 2.0 * rng.normal(size=(3, 2))
    means, variances = rng.normal(size=(3, 2)), rng.gamma(3.0, 1.0, (3, 2))
    column, rest = np.array([0, 1]), {"means": means, "variances": variances}
    found = labels.carried_parts(information, pulled, column, **rest)
    for c in range(2):
        # By the definition: the density of the precision-weighted mean under each part, of one
        # column alone, and of none.
        likely = []
        for part in (*((part, part) for part in parts), (1.0, 1e-12), (1e-12, 1.0), (1e-12, 1e-12)):
            prior = np.diag(variances[:, c] * [1.0, *part])
            centre = means[:, c] * [1.0, *np.sqrt(part)]
            spread = information[c] + information[c] @ prior @ information[c]
            likely.append(multivariate_normal(information[c] @ centre, spread).pdf(pulled[:, c]))
        *likely, one, other, none = likely
        any_effects = likely[0] / 2.0 + (one + other) / 4.0
        whole = any_effects / (any_effects + 20.0 * none)
        likely = np.array(likely) * parts**-0.25
        expected = whole + (1.0 - whole) * np.dot(likely, parts) / np.sum(likely)
        assert found[c] == pytest.approx(expected, rel=1e-5)


N_NOTHING = 4_000


@pytest.mark.parametrize("labels_of", [(0.9, 0.1), (0.6, 0.3, 0.094, 0.004, 0.002)])
@pytest.mark.parametrize("mu", [0.05, 0.2])
def test_of_labels_that_hang_on_nothing_a_model_is_hardly_worse_than_their_shares(labels_of, mu):
    # Mean over draws of the expected excess in log-loss over the released shares, which is a
    # divergence: 0 for a model of shares alone, below 0.001 for effects that no learner would see
    # in rows. Without shrinkage it is .007 to .06.
    shares, excess = np.array(labels_of), []
    domain = domain_with(*(12, 8, 6, 5, 3, 2, 10, 4), labels=tuple("abcde")[: len(shares)])
    method = TableClustMix(
        replace(domain, patients=N_NOTHING), Effort(starts=1, steps=20, fit_rows=2_000)
    )
    for seed in range(4):
        rng = np.random.default_rng(seed)
        codes = np.column_stack([rng.choice(k, N_NOTHING, p=rng.dirichlet(np.ones(k)))
                                 for k in domain.n_codes])  # fmt: skip
        rows = rows_with(codes, rng.choice(len(shares), N_NOTHING, p=shares))
        released = released_of(method, rows, SeededNoise(seed), mu=mu)
        scores, own = method.scores(released, rows.codes), released["row_label_shares"]
        logs = log_softmax(scores + _intercepts(scores, own), axis=1)
        excess.append(float(own @ (np.log(own) - logs.mean(axis=0))))
    assert 0.001 < np.mean(excess) < 0.004
