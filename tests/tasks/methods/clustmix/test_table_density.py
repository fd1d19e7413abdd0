"""Rule, estimates, mixture and sampler: post-processing that is checked by what it must give."""

from dataclasses import replace

import numpy as np
import pytest
from measuring import domain_with
from scipy.optimize import minimize
from scipy.special import softmax

from tasks.measurement.centred import blocks_to_simplex, without_means
from tasks.methods.clustmix.records.table_layout import Layout
from tasks.methods.clustmix.tables import estimates, table_draws
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables import table_sampler as sampler
from tasks.methods.clustmix.tables.mixture import _Fit
from tasks.methods.clustmix.tables.one_ways import _Columns, smooth_shares
from tasks.methods.clustmix.tables.table_sampler import Mixture

LAYOUT = Layout.of(domain_with(4, 3, 2, numeric=[0], missing=[0]))
JOINED = np.array([0, 0, 1, 1, 0, 1, 1, 0, 1])


def layout_of(n_columns, n_codes):
    return Layout.of(domain_with(*(n_codes,) * n_columns, numeric=range(n_columns)))


def mixture_of(layout, n_components, seed):
    rng = np.random.default_rng(seed)
    blocks = [rng.dirichlet(np.full(k, 0.4), n_components) for k in layout.n_codes]
    return Mixture(weights=rng.dirichlet(np.ones(n_components)), components=np.hstack(blocks))


def exact_targets(layout, mixture, groups=None):
    groups = np.concatenate([np.arange(k) for k in layout.n_codes]) if groups is None else groups
    sizes = tuple(int(groups[layout.block(j)].max()) + 1 for j in range(layout.n_columns))
    used = ~np.eye(layout.n_columns, dtype=bool)
    choice = rule.PairChoice(groups=groups, n_groups=sizes, used=used, one_way=1.0, norm=1.0)
    shares = mixture.weights @ mixture.components
    counts = estimates.Counts(
        by_label=np.tile(shares * 500, (2, 1)),
        stddev=1.0,
        one_way_stddev=1.0,
        patients=1000.0,
        labels=np.array([0.5, 0.5]),
        shares=shares,
    )
    column = np.repeat(np.arange(layout.n_columns), sizes)
    row = np.repeat(np.cumsum(sizes) - sizes, layout.n_codes) + groups
    joined = np.zeros((len(mixture.weights), sum(sizes)))
    np.add.at(joined.T, row, mixture.components.T)
    centre = (1.0 / np.asarray(sizes))[column]
    table = (joined - centre).T @ (mixture.weights[:, None] * (joined - centre))
    cells = np.triu(used, 1)[np.ix_(column, column)]
    true = joined.T @ (mixture.weights[:, None] * joined)
    values = np.concatenate([np.zeros(layout.width), table[cells] * 1000.0, np.zeros(5)])
    drawn = estimates.DrawnPairs(choice=choice, values=values, unit_stddev=1.0, patients=1000.0)
    return (estimates.targets_of(layout, counts, [drawn], drowned=1.0), true, cells)


@pytest.mark.parametrize("groups", [None, JOINED])
def test_tables_of_pairs_are_put_together_from_centred_ones(groups):
    targets, true, cells = exact_targets(LAYOUT, mixture_of(LAYOUT, 3, 1), groups)
    [pairs] = targets.pairs
    np.testing.assert_allclose(pairs.tables[cells], true[cells], atol=1e-12)
    np.testing.assert_allclose(pairs.tables, pairs.tables.T)
    assert (pairs.weights[cells] > 0).all()


def test_gradient_of_the_mixture_is_that_of_its_loss():
    targets, other = (
        exact_targets(LAYOUT, mixture_of(LAYOUT, 3, 2), groups)[0] for groups in (JOINED, None)
    )
    targets = replace(targets, pairs=targets.pairs + other.pairs)
    fit, rng = _Fit(LAYOUT, targets, 3.0), np.random.default_rng(3)
    scores, logits = rng.standard_normal(4), rng.standard_normal((4, LAYOUT.width + 2))
    shares = np.append(targets.shares, [0.5, 0.5])

    def loss(scores, logits):
        weights, parts = fit.distribution(scores, logits)
        codes, labels = parts[:, :-2], parts[:, -2:]
        by_label = labels.T @ (weights[:, None] * codes)
        mean = weights @ parts
        value = 0.0
        for pairs in targets.pairs:
            joined = codes @ pairs.joins.T
            table = joined.T @ (weights[:, None] * joined)
            value += 0.25 * (pairs.weights * (table - pairs.tables) ** 2).sum()
        value += 0.5 * targets.label_weight * ((by_label - targets.by_label) ** 2).sum()
        value += 0.5 * targets.share_weight * ((mean - shares) ** 2).sum()
        return value + 3.0 * (weights[:, None] * parts * np.log(parts / mean)).sum()

    by_score, by_logit = fit.gradients(scores.astype(np.float32), logits.astype(np.float32))
    scale, step = float(abs(by_logit).max()), 1e-6
    for index in np.ndindex(*logits.shape):
        moved = np.zeros_like(logits)
        moved[index] = step
        slope = (loss(scores, logits + moved) - loss(scores, logits - moved)) / (2 * step)
        assert float(by_logit[index]) == pytest.approx(slope, abs=2e-3 * scale)
    for index in range(4):
        moved = np.eye(4)[index] * step
        slope = (loss(scores + moved, logits) - loss(scores - moved, logits)) / (2 * step)
        assert float(by_score[index]) == pytest.approx(slope, abs=2e-3 * float(abs(by_score).max()))


def test_one_ways_are_the_mode_of_their_posterior_and_nothing_else_where_patients_are_many():
    rng, many = np.random.default_rng(7), np.full(3, 1e-5)
    shares = mixture_of(LAYOUT, 1, 8).components[0]
    noisy = shares + without_means(rng.normal(0, 1e-5, 9), LAYOUT.offsets)
    found = smooth_shares(LAYOUT, noisy, stddev=many)
    np.testing.assert_allclose(found, blocks_to_simplex(noisy, LAYOUT.offsets), atol=5e-5)
    # A general optimiser finds the same mode of one column at its first prior variance.
    layout, noise = layout_of(1, 6), np.array([0.1])
    noisy = np.array([0.5, 0.3, 0.2, -0.1, 0.2, -0.1])
    column = _Columns(layout, [0], noisy=noisy, stddev=noise, start=np.zeros(6))
    column.improve()
    precision = np.linalg.inv(layout.prior_covariance(0)) / 2.0

    def loss(logits):
        return ((noisy - softmax(logits)) ** 2).sum() / noise[0] ** 2 + logits @ precision @ logits

    expected = softmax(minimize(loss, np.zeros(6)).x)
    np.testing.assert_allclose(softmax(column.logits[0]), expected, atol=5e-4)


def test_shares_add_up_and_pair_tables_have_less_where_they_drown():
    layouts = (layout_of(14, 12), layout_of(14, 12), layout_of(101, 2), layout_of(1, 12))
    rich, poor, wide, alone = (
        rule.shares_of(layout, patients=patients, mu=0.2757)
        for layout, patients in zip(layouts, (24_000, 100, 24_000, 100), strict=True)
    )
    for shares in (rich, poor, wide, alone):
        rounds = shares.rounds * shares.residuals + shares.kernel
        assert shares.label_counts + shares.pair_tables + rounds == pytest.approx(1.0)
    assert (rich.rounds, poor.rounds, wide.rounds) == (2, 2, 4)
    assert rich.drowned == 0.0
    assert 0.9 < poor.drowned < 1.0
    assert rich.label_counts < 0.30
    assert 0.85 < poor.label_counts < 0.90
    assert (alone.pair_tables, alone.kernel) == (0.0, 0.0)


def test_a_part_is_measured_as_a_release_of_all_parts_at_their_noise_without_kernel_features():
    layout, given = layout_of(14, 12), {"patients": 2_000}
    part, whole = (
        rule.shares_of(layout, mu=mu, parts=parts, **given) for mu, parts in ((0.25, 4), (0.5, 1))
    )
    assert (part.kernel, part.label_counts, part.one_ways) == (
        0.0,
        whole.label_counts,
        whole.one_ways,
    )
    both = whole.rounds * whole.residuals + whole.kernel
    assert part.rounds * part.residuals == pytest.approx(both)
    few, many = (rule.most_codes(layout, mu=0.25, parts=parts, **given) for parts in (1, 4))
    assert few < many == rule.most_codes(layout, mu=0.5, **given)
    plan = table_draws.plan_of(layout, mu=0.25, parts=4, **given)
    assert len(plan.statistics) == len(table_draws.plan_of(layout, mu=0.5, **given).statistics) - 1


def test_quotas_are_whole_numbers_right_in_the_mean():
    rng, shares = np.random.default_rng(6), np.array([0.5, 0.3, 0.15, 0.05])
    drawn = np.array([sampler.quotas(shares, 7, rng) for _ in range(4_000)])
    assert (drawn.sum(axis=1) == 7).all()
    assert (np.abs(drawn - 7 * shares) < 1.0).all()
    np.testing.assert_allclose(drawn.mean(axis=0), 7 * shares, atol=0.04)


def test_labels_are_drawn_by_their_probabilities_with_hardly_any_error():
    rng = np.random.default_rng(9)
    p = rng.dirichlet(np.ones(4), 400)
    drawn = np.array([sampler.systematic_labels(p, rng) for _ in range(3_000)])
    for label in range(4):
        counts = (drawn == label).sum(axis=1)
        assert np.abs(counts - p[:, label].sum()).max() < 12  # independent draws: about 35
        np.testing.assert_allclose((drawn == label).mean(axis=0), p[:, label], atol=0.05)


def test_a_conditioned_mixture_is_the_mixture_of_the_records_that_are_asked_for():
    mixture, allowed = mixture_of(LAYOUT, 5, 3), {0: [0, 1, 0, 1], 2: [1, 0]}
    masks = {column: np.array(mask, dtype=bool) for column, mask in allowed.items()}

    def density(of):
        blocks = (of.components[:, LAYOUT.block(j)] for j in range(3))
        return np.einsum("k,ka,kb,kc->abc", of.weights, *blocks)

    # By enumeration of every record.
    expected = density(mixture)
    expected[~masks[0]] = 0.0
    expected[:, :, ~masks[2]] = 0.0
    found = density(sampler.conditioned(mixture, LAYOUT, masks))
    np.testing.assert_allclose(found, expected / expected.sum(), atol=1e-9)
    codes = sampler.sample_codes(
        sampler.conditioned(mixture, LAYOUT, masks),
        LAYOUT, n_rows=2_000, rng=np.random.default_rng(1),
    )  # fmt: skip
    assert masks[0][codes[:, 0]].all()
    assert masks[2][codes[:, 2]].all()
