from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.measurement.record_rules import LABEL, Bins, Box, RecordRules, Relation
from tasks.methods.clustmix.records.table_layout import Layout
from tasks.methods.clustmix.tables import table_sampler as sampler
from tasks.methods.clustmix.tables.table_sampler import Mixture


@st.composite
def bins(draw, step):
    """Up to three bins of consecutive numbers on a grid of this step, between -6 and 6."""
    ends = sorted(draw(st.sets(st.integers(-6 // step, 6 // step + 1), min_size=2, max_size=4)))
    first = np.array(ends[:-1], dtype=np.int64)
    return Bins(first * step, (np.array(ends[1:], dtype=np.int64) - 1) * step, step)


ORDERS = st.builds(
    Relation,
    parts=st.integers(0, 3).map(lambda column: (column,)),
    total=st.integers(0, 3),
    least=st.integers(0, 1),
    most=st.none(),
).filter(lambda relation: relation.parts[0] != relation.total)
SUMS = st.lists(
    st.builds(Relation, parts=st.just((0, 1)), total=st.just(2), least=st.just(0), most=st.just(0)),
    min_size=1,
    max_size=1,
)


@st.composite
def rules(draw):
    """Orders in any circles, of columns of several grids or counted from others, 3 from 0 and 2
    from 3; or a sum, with an order that hangs on."""
    relations = draw(st.lists(ORDERS, min_size=1, max_size=4) | SUMS)
    if relations[0].most == 0 and draw(st.booleans()):
        relations.append(Relation(parts=(2,), total=3, least=draw(st.integers(0, 1)), most=None))
    steps = [1] * 4 if relations[0].most == 0 else draw(st.tuples(*[st.sampled_from([1, 2])] * 4))
    n_counted = draw(st.integers(0, 2)) if relations[0].most is None else 0
    steps = [1] * 4 if n_counted else steps
    for parts, total in [((0,), 3), ((3,), 2)][:n_counted][::-1]:
        relations.insert(0, Relation(parts=parts, total=total, least=0, most=0, counted=True))
    of_columns = {column: draw(bins(step)) for column, step in enumerate(steps)}
    n_codes = tuple(
        len(one.first) + (0 if column in (0, 3)[:n_counted] else draw(st.integers(0, 1)))
        for column, one in of_columns.items()
    )
    boxes = draw(
        st.lists(
            st.dictionaries(
                st.integers(LABEL, 3), st.lists(st.booleans(), min_size=4, max_size=4), min_size=1
            ),
            max_size=3,
        )
    )
    return RecordRules(
        n_codes=n_codes,
        n_labels=2,
        boxes=tuple(
            Box({c: np.array(mask[: (*n_codes, 2)[c]], dtype=bool) for c, mask in box.items()})
            for box in boxes
        ),
        relations=tuple(relations),
        bins=of_columns,
    )


def is_related(rules, numbers):
    """Whether numbers, None where missing, keep every relation."""
    for relation in rules.relations:
        if relation.counted:
            continue
        found = [numbers[column] for column in relation.columns]
        if None in found:
            continue
        left = found[-1] - sum(found[:-1])
        if left < relation.least or (relation.most is not None and left > relation.most):
            return False
    return True


def is_kept(rules, codes, label):
    """Whether a record keeps the rules, by looking at all numbers inside its bins."""
    record = {LABEL: label, **dict(enumerate(codes))}
    if any(all(mask[record[c]] for c, mask in box.masks.items()) for box in rules.boxes):
        return False
    inside = [
        range(one.first[code], one.last[code] + 1, one.step) if code < len(one.first) else [None]
        for code, one in zip(codes, rules.bins.values(), strict=True)
    ]
    return any(is_related(rules, absolute(rules, [*numbers])) for numbers in product(*inside))


def absolute(rules, numbers):
    """Return the numbers with what each is counted from."""
    for one in rules.relations:
        if one.counted and numbers[one.total] is not None:
            numbers[one.total] += numbers[one.parts[0]]
    return numbers


@settings(deadline=None, max_examples=60)
@given(rules())
def test_codes_are_broken_if_no_numbers_inside_their_bins_keep_the_rules(rules):
    records = np.array([*product(*map(range, rules.n_codes))], dtype=np.uint16)
    kept = np.array([[is_kept(rules, r, c) for c in range(2)] for r in records.tolist()])
    np.testing.assert_array_equal(rules.labels_allowed(records), kept)
    for label in range(2):
        found = rules.broken(records, np.full(len(records), label, dtype=np.uint16))
        np.testing.assert_array_equal(found, ~kept[:, label])
    # Records are products of the combinations of columns that rules connect.
    inside = np.ones(len(records), dtype=bool)
    for group in rules.combinations:
        listed = {tuple(one) for one in group.codes.tolist()}
        inside &= [tuple(record) in listed for record in records[:, group.columns].tolist()]
        for first, second in product(group.columns, (*group.columns, LABEL)):
            found = rules.together(first, second)
            if rules.all_listed and kept.any() and second != LABEL:
                there = np.zeros_like(found)
                there[records[inside][:, first], records[inside][:, second]] = True
                assert not (there & ~found).any()
    if rules.all_listed:
        np.testing.assert_array_equal(inside, kept.any(axis=1))


@settings(deadline=None, max_examples=60)
@given(rules(), st.integers(0, 2**32))
def test_numbers_keep_the_relations_inside_their_bins(rules, seed):
    records = np.array([*product(*map(range, rules.n_codes))] * 3, dtype=np.uint16)
    drawn = rules.numbers(records, np.random.default_rng(seed))
    alone = RecordRules(rules.n_codes, 2, (), rules.relations, rules.bins)
    broken = alone.broken(records, np.zeros(len(records), dtype=np.uint16))
    for place, record in enumerate(records.tolist()):
        numbers = {}
        base = {one.total: one.parts[0] for one in rules.relations if one.counted}
        for column, own in drawn.items():
            one, code = rules.bins[column], record[column]
            numbers[column] = own[place] * one.step if code < len(one.first) else None
            if numbers[column] is not None:
                zero = drawn[base[column]][place] if column in base else 0
                assert one.first[code] <= numbers[column] - zero <= one.last[code]
        assert is_related(rules, numbers) != broken[place]


def test_numbers_of_one_bin_are_uniform_on_what_keeps_an_order():
    one = Bins(np.array([0]), np.array([2]), 1)
    order = Relation(parts=(0,), total=1, least=0, most=None)
    rules = RecordRules((1, 1), 2, (), (order,), {0: one, 1: one})
    drawn = rules.numbers(np.zeros((60_000, 2), dtype=np.uint16), np.random.default_rng(1))
    counts = np.bincount(3 * drawn[0] + drawn[1], minlength=9) / 60_000
    np.testing.assert_allclose(counts[[0, 1, 2, 4, 5, 8]], 1 / 6, atol=0.01)


def test_a_mixture_is_conditioned_exactly_and_raking_brings_back_its_one_ways():
    layout = Layout(
        n_codes=(3, 3), numeric=(False, False), has_missing=(False, False), n_labels=2, n_visits=0
    )
    rng = np.random.default_rng(3)
    components = np.concatenate([rng.dirichlet(np.ones(3), 4) for _ in range(2)], axis=1)
    mixture = Mixture(weights=rng.dirichlet(np.ones(4)), components=components)
    box = Box({0: np.array([True, False, False]), 1: np.array([False, True, True])})
    rules = RecordRules((3, 3), 2, (box,), (), {})

    def table(of):
        return np.einsum("k,ka,kb->ab", of.weights, of.components[:, :3], of.components[:, 3:])

    def sampled(of):
        codes = sampler.sample_kept(of, layout, rules, n_rows=200_000, rng=rng)
        return np.bincount(3 * codes[:, 0] + codes[:, 1], minlength=9).reshape(3, 3) / len(codes)

    allowed = ~np.outer(box.masks[0], box.masks[1])
    exact = table(mixture) * allowed
    np.testing.assert_allclose(sampled(mixture), exact / exact.sum(), atol=0.004)
    # One-ways that a table with those zeros has: theirs are met, and the odds ratios are kept.
    wanted = rng.dirichlet(np.ones(9)).reshape(3, 3) * allowed
    wanted /= wanted.sum()
    shares = np.concatenate([wanted.sum(axis=1), wanted.sum(axis=0)])
    moved = sampler.raked(mixture, layout, rules=rules, shares=shares, rng=rng)
    found = sampled(moved)
    np.testing.assert_allclose(found.sum(axis=1), shares[:3], atol=0.006)
    np.testing.assert_allclose(found.sum(axis=0), shares[3:], atol=0.006)
    whole = table(mixture)
    ratio = found[1, 1] * found[2, 2] / found[1, 2] / found[2, 1]
    assert abs(np.log(ratio * whole[1, 2] * whole[2, 1] / whole[1, 1] / whole[2, 2])) < 0.15


@pytest.mark.parametrize("seed", range(4))
def test_raking_is_near_to_shares_that_no_table_with_the_rules_has(seed):
    # The last column is never below the first, but its noisy shares say that it is, more often.
    k, rng = 6, np.random.default_rng(seed)
    declared = {"numeric": (False, False), "has_missing": (False, True)}
    layout = Layout(n_codes=(k, k + 1), **declared, n_labels=2, n_visits=0)
    below = [Box({0: np.arange(k) > j, 1: np.arange(k + 1) == j}) for j in range(k - 1)]
    rules = RecordRules((k, k + 1), 2, tuple(below), (), {})
    first, last = (rng.dirichlet(np.full(k, 0.3), 16) for _ in range(2))
    components = np.hstack([first, last / 4.0, np.full((16, 1), 0.75)])
    mixture = Mixture(weights=np.full(16, 1 / 16), components=components)

    def sampled(of):
        codes = sampler.sample_kept(of, layout, rules, n_rows=100_000, rng=rng)
        return np.bincount((codes + layout.offsets[:-1]).ravel(), minlength=layout.width) / 100_000

    shares = sampled(mixture)
    shares[[0, k]] = 0.001, 0.02
    shares = np.concatenate([part / part.sum() for part in np.split(shares, [k])])
    moved = sampler.raked(mixture, layout, rules=rules, shares=shares, rng=rng)
    # No table that keeps the rules is nearer than .036.
    assert np.abs(sampled(mixture) - shares).sum() > 0.25
    assert np.abs(sampled(moved) - shares).sum() < 0.055


def test_a_mixture_none_of_whose_records_keep_the_rules_gives_none():
    layout = Layout(n_codes=(2,), numeric=(False,), has_missing=(False,), n_labels=2, n_visits=0)
    mixture = Mixture(weights=np.ones(2) / 2, components=np.array([[1.0, 0.0], [1.0, 0.0]]))
    rules = RecordRules((2,), 2, (Box({0: np.array([True, False])}),), (), {})
    rng = np.random.default_rng(0)
    assert len(sampler.sample_kept(mixture, layout, rules, n_rows=9, rng=rng)) == 0
