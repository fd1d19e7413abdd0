"""Strong pairs: found where a released table shows one, and nothing else moves."""

import numpy as np
import pytest
from measuring import domain_with
from scipy.stats import multivariate_normal

from tasks.methods.clustmix.records.table_layout import Layout
from tasks.methods.clustmix.tables import strong_pairs as strong
from tasks.methods.clustmix.tables import table_sampler as sampler
from tasks.methods.clustmix.tables.estimates import _PairTargets
from tasks.methods.clustmix.tables.table_sampler import Mixture, pair_shares

LAYOUT = Layout.of(domain_with(5, 4, 3, 6, 6, numeric=[3, 4]))
STDDEV = 0.002


def product_mixture(layout, n_components=3):
    rng = np.random.default_rng(4)
    blocks = [rng.dirichlet(np.full(k, 3.0), n_components) for k in layout.n_codes]
    return Mixture(weights=rng.dirichlet(np.ones(n_components)), components=np.hstack(blocks))


def tables_of(layout, mixture, true, *, stddev=STDDEV, joins=None, seed=5):
    """Noisy tables of all pairs: those of the mixture, but where a true one is given."""
    joins = np.eye(layout.width) if joins is None else joins
    tables, noise = np.zeros((layout.width,) * 2), np.random.default_rng(seed)
    for i in range(layout.n_columns):
        for j in range(i + 1, layout.n_columns):
            shares = true.get((i, j), pair_shares(mixture, layout, i, j))
            tables[layout.block(i), layout.block(j)] = shares
    tables = joins @ tables @ joins.T
    tables += stddev * noise.standard_normal(tables.shape)
    return _PairTargets(joins=joins, tables=tables, weights=np.full(tables.shape, stddev**-2))


def with_pairs(layout, mixture, measured, left_out=(), drowned=0.0):
    found = strong.strong_pairs(layout, mixture, measured, drowned=drowned, left_out=left_out)
    own = {"mixture_weights": mixture.weights, "mixture_components": mixture.components}
    return sampler.mixture_of({**own, **found}, layout)


def raked(table, mixture, i, j):
    return strong._raked(table, pair_shares(mixture, LAYOUT, i, j))


def distance(mixture, pair, table):
    return 0.5 * np.abs(pair_shares(mixture, LAYOUT, *pair) - table).sum()


@pytest.fixture(scope="module")
def diagonal():
    """A mixture of products, with a column that is nearly a function of another, and a third."""
    mixture = product_mixture(LAYOUT)
    true = {
        (0, 1): raked(np.eye(5, 4) + 0.02, mixture, 0, 1),
        (1, 2): raked(np.eye(4, 3) + 0.1, mixture, 1, 2),
    }
    return mixture, true, with_pairs(LAYOUT, mixture, tables_of(LAYOUT, mixture, true))


def test_strong_pairs_come_near_their_tables_and_nothing_else_moves(diagonal):
    mixture, true, found = diagonal
    assert {(b.parent, b.column) for b in found.branches} <= {(0, 1), (1, 0), (1, 2), (2, 1)}
    for pair, table in true.items():
        before, after = (distance(of, pair, table) for of in (mixture, found))
        assert after < 0.2 * before > 0.04
    for pair in [(0, 3), (1, 4), (2, 3), (3, 4)]:
        own, other = (pair_shares(of, LAYOUT, *pair) for of in (mixture, found))
        np.testing.assert_allclose(own, other, atol=1e-3)


def test_rows_conditions_and_shares_are_those_of_every_record_by_enumeration(diagonal):
    *_, found = diagonal

    def density(of):
        """Shares of all records, one component and one branch after the other."""
        shares = 0.0
        for k, weight in enumerate(of.weights):
            own = weight * np.ones(LAYOUT.n_codes)
            given = {branch.column: branch for branch in of.branches}
            for j in range(LAYOUT.n_columns):
                axes = [j] if j not in given else [given[j].parent, j]
                block = of.components[k, LAYOUT.block(j)]
                factor = given[j].shares[k] if j in given else block
                factor = factor.T if len(axes) > 1 and axes[0] > axes[1] else factor
                own = own * np.expand_dims(factor, [a for a in range(5) if a not in axes])
            shares = shares + own
        return shares

    every = density(found)
    for pair in [(0, 1), (0, 2), (1, 2), (0, 3), (3, 4)]:
        rest = tuple(a for a in range(5) if a not in pair)
        shares = pair_shares(found, LAYOUT, *pair)
        np.testing.assert_allclose(shares, every.sum(axis=rest), atol=1e-5)
    masks = {0: np.arange(5) < 2, 2: np.arange(3) != 1, 3: np.arange(6) > 2}
    asked = sampler.conditioned(found, LAYOUT, masks)
    kept = every * masks[0][:, None, None, None, None]
    kept = kept * masks[2][:, None, None] * masks[3][:, None]
    np.testing.assert_allclose(density(asked), kept / kept.sum(), atol=1e-9)
    codes = sampler.sample_codes(asked, LAYOUT, n_rows=60_000, rng=np.random.default_rng(1))
    counted = np.zeros(LAYOUT.n_codes)
    np.add.at(counted, tuple(codes.T), 1.0 / len(codes))
    drawn, said = (shares.sum(axis=(3, 4)) for shares in (counted, kept / kept.sum()))
    # Quotas leave less than a row in each component and code.
    np.testing.assert_allclose(drawn, said, atol=0.003)


def test_noise_alone_gives_about_one_pair_at_most():
    mixture = product_mixture(LAYOUT)
    drawn = [tables_of(LAYOUT, mixture, {}, stddev=0.02, seed=seed) for seed in range(60)]
    counts = [len(with_pairs(LAYOUT, mixture, one).branches) for one in drawn]
    assert np.mean(counts) < 1.0
    assert max(counts) <= 3
    assert not any(with_pairs(LAYOUT, mixture, one, drowned=0.9).branches for one in drawn)


def test_two_numbers_of_coarse_tables_are_coupled_in_fine_bins():
    mixture = product_mixture(LAYOUT)
    ends = [
        np.append(-9.0, strong.ndtri(np.cumsum(mixture.weights @ mixture.components[:, block])))
        for block in (LAYOUT.block(3), LAYOUT.block(4))
    ]
    normal = multivariate_normal([0, 0], [[1, 0.88], [0.88, 1]])
    below = normal.cdf(np.dstack(np.meshgrid(*[np.minimum(e, 9.0) for e in ends], indexing="ij")))
    true = {(3, 4): raked(np.diff(np.diff(below, axis=0), axis=1), mixture, 3, 4)}
    joins = np.eye(LAYOUT.width)
    joins = np.vstack([joins[:12], *(joins[a : a + 3].sum(axis=0) for a in (12, 15, 18, 21))])
    found = with_pairs(LAYOUT, mixture, tables_of(LAYOUT, mixture, true, joins=joins, stddev=0.03))
    assert distance(found, (3, 4), true[3, 4]) < 0.12
    assert distance(mixture, (3, 4), true[3, 4]) > 0.4


def test_columns_that_are_left_out_are_in_no_pair(diagonal):
    mixture, true, _ = diagonal
    assert not with_pairs(LAYOUT, mixture, tables_of(LAYOUT, mixture, true), [1]).branches


def test_leverage_is_the_derivative_of_raked_shares():
    shares = np.random.default_rng(7).dirichlet(np.ones(12)).reshape(3, 4)
    for cell in np.ndindex(3, 4):
        moved = shares.copy()
        moved[cell] *= 1.0 + 1e-6
        change = strong._raked(moved, shares)[cell] / shares[cell] - 1.0
        assert change == pytest.approx(1e-6 * (1.0 - strong._leverage(shares)[cell]), rel=1e-3)
