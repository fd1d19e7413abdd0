"""The factored distribution of MWEM against multiplicative weights on the whole universe."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.methods.mwem.config import MwemConfig
from tasks.methods.mwem.distribution import (
    FactoredDistribution,
    NoisyAnswer,
    iterates,
    matching_tilt,
    printed_tilt,
)
from tasks.methods.mwem.workload import draw_workload

N_CODES = (3, 2, 4, 2)
UNIVERSE = np.array(list(itertools.product(*(range(n) for n in N_CODES))))


def slow_iterates(history, passes, tilt, weights):
    """Multiplicative weights with one weight for each possible record."""
    weights = weights.copy()
    for n_known in range(1, len(history) + 1):
        for _ in range(passes):
            for measurement in history[:n_known]:
                matches = (UNIVERSE[:, list(measurement.columns)] == measurement.codes).all(axis=1)
                present = weights[matches].sum()
                weights[matches] *= np.exp(tilt(measurement.share, present))
                weights /= weights.sum()
        yield weights.copy()


def table_of(distribution):
    columns = range(len(N_CODES))
    return np.array([distribution.probability(columns, record) for record in UNIVERSE])


atoms = st.integers(0, 3).flatmap(
    lambda column: st.tuples(st.just(column), st.integers(0, N_CODES[column] - 1))
)
measurements = st.tuples(atoms, atoms, st.floats(-0.2, 1.2)).filter(
    lambda drawn: drawn[0][0] != drawn[1][0] or drawn[0] == drawn[1]
)


@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(measurements, min_size=1, max_size=5),
    passes=st.integers(1, 3),
    tilt=st.sampled_from([printed_tilt, matching_tilt]),
    uniform=st.booleans(),
)
def test_every_iterate_equals_weights_on_the_whole_universe(drawn, passes, tilt, uniform):
    history = [
        NoisyAnswer(
            columns=(left[0], right[0]),
            codes=(left[1], right[1]),
            # A target of exactly 0 or 1 leaves no weight, as is asserted elsewhere.
            share=share if tilt is printed_tilt else min(max(share, 0.01), 0.99),
        )
        for left, right, share in drawn
    ]
    rng = np.random.default_rng(0)
    marginals = [np.full(n, 1 / n) if uniform else rng.dirichlet(np.ones(n)) for n in N_CODES]
    start = FactoredDistribution(marginals)
    weights = np.prod([m[UNIVERSE[:, j]] for j, m in enumerate(marginals)], axis=0)
    expected = slow_iterates(history, passes, tilt, weights)
    fast = iterates(start, history, passes=passes, tilt=tilt)
    for distribution, slow in zip(fast, expected, strict=True):
        np.testing.assert_allclose(table_of(distribution), slow, atol=1e-10)
        for column, n in enumerate(N_CODES):
            shares = np.bincount(UNIVERSE[:, column], weights=slow, minlength=n)
            np.testing.assert_allclose(distribution.marginal(column), shares, atol=1e-10)


def test_answers_and_admissible_queries(small):
    workload = draw_workload(small.domain, MwemConfig())
    distribution = FactoredDistribution.uniform(workload.n_codes)
    distribution.tilt((0, 2), (1, 1), 0.8)
    distribution.tilt((1, 1), (1, 1), -0.4)
    slow = [
        distribution.probability(columns, codes)
        for columns, codes in zip(workload.columns, workload.codes, strict=True)
    ]
    np.testing.assert_allclose(distribution.answers(workload), slow, atol=1e-12)

    def pairs(max_cells):
        index = distribution.admissible(workload, max_cells=max_cells)
        return {tuple(columns) for columns in workload.columns[index].tolist()}

    single = {(0, 0), (1, 1), (2, 2), (3, 3)}
    # Columns 0 and 2 are one table of 12 cells; columns 1 and 3 have two codes each.
    assert pairs(1) == single | {(0, 2)}, "what is joined already needs no room"
    assert pairs(4) == single | {(0, 2), (1, 3)}
    assert pairs(23) == pairs(4)
    assert pairs(24) == single | {(0, 2), (1, 3), (0, 1), (0, 3), (1, 2), (2, 3)}
