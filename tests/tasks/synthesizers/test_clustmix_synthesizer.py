"""The whole proven method on made-up tables, and the leaks of the published one."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from measuring import NotingExecutor

from privacy.errors import IntegrityError
from privacy.randomness import SeededNoise
from tasks.measurement.curator import Curator, in_memory
from tasks.measurement.encoded import EncodedRows, EncodingDomain
from tasks.measurement.synthesizer import measure
from tasks.synthesizers.clustmix.config import ClustMixConfig
from tasks.synthesizers.clustmix.earlier.synthesizer import SlicedClustMix
from tasks.synthesizers.naive_bayes import NaiveBayes

DOMAIN = EncodingDomain(
    column_names=("age", "ward", "sex", "lab", "unit"),
    n_codes=(5, 3, 2, 5, 3),
    has_missing=(False, False, False, True, False),
    numeric=(True, False, False, True, False),
    label_levels=("stayed", "returned"),
)
CONFIG = ClustMixConfig(
    random_features=24, support_per_label=6, kip_steps=30, clustering_rounds=2, lambdas=(0.01,)
)
BIG_MU = 200.0


def log_odds_of(codes):
    """Main effects and an interaction of sex with ward that naive Bayes cannot see."""
    interaction = np.where((codes[:, 2] == 1) == (codes[:, 1] == 0), 1.6, -1.6)
    return -0.6 + 0.7 * (codes[:, 0] - 2.0) + interaction


def made_up_rows(n, seed):
    rng = np.random.default_rng(seed)
    age = rng.choice(5, n, p=[0.1, 0.2, 0.4, 0.2, 0.1])
    # The lab follows age: a dependence between columns.
    lab = np.where(rng.random(n) < 0.75, age, rng.integers(0, 5, n))
    codes = np.column_stack(
        [
            age,
            rng.choice(3, n, p=[0.5, 0.3, 0.2]),
            rng.integers(0, 2, n),
            lab,
            rng.choice(3, n, p=[0.8, 0.15, 0.05]),
        ]
    ).astype(np.uint16)
    label = rng.random(n) < 1 / (1 + np.exp(-log_odds_of(codes)))
    return EncodedRows(
        codes=codes,
        label=label.astype(np.uint16),
        weight=np.ones(n),
        fold=rng.integers(0, 5, n).astype(np.uint8),
    )


def curator_of(method, shards, *, mu, seed, seal=None):
    return Curator(
        plan=method.plan(mu=mu),
        shards=in_memory(shards),
        noise_source=SeededNoise(seed),
        seal=seal,
    )


@pytest.fixture(scope="module")
def rows():
    return made_up_rows(6_000, 0)


@pytest.fixture(scope="module")
def measured(rows):
    method = SlicedClustMix(DOMAIN, CONFIG)
    curator = curator_of(method, [rows], mu=BIG_MU, seed=1)
    return method, curator, measure(method, curator, mu=BIG_MU)


@pytest.fixture(scope="module")
def sampled(measured):
    method, _, released = measured
    return method.sample(released, n_rows=20_000, rng=np.random.default_rng(2))


def test_every_planned_statistic_is_drawn_once_and_nothing_else(measured):
    method, curator, _ = measured
    assert curator.event == method.plan(mu=BIG_MU).event


def test_stages_are_those_of_the_algorithm(measured):
    method, _, _ = measured
    assert [stage.name for stage in method.stages(mu=1.0)] == [
        "partition", "constrained-gmm", "kip", "noise-calibration", "mixing",
    ]  # fmt: skip


def test_sampled_marginals_are_near_the_truth(sampled, rows):
    codes, labels = sampled
    assert (codes.shape, codes.dtype, labels.shape) == ((20_000, 5), np.uint16, (20_000,))
    for column, width in enumerate(DOMAIN.n_codes):
        real = np.bincount(rows.codes[:, column], minlength=width) / len(rows)
        made = np.bincount(codes[:, column], minlength=width) / len(codes)
        assert 0.5 * np.abs(real - made).sum() < 0.03
    assert abs(labels.mean() - rows.label.mean()) < 0.02


def test_dependence_between_columns_survives(sampled, rows):
    codes, _ = sampled
    real = np.corrcoef(rows.codes[:, 0], rows.codes[:, 3])[0, 1]
    made = np.corrcoef(codes[:, 0], codes[:, 3])[0, 1]
    assert real > 0.6
    assert made > 0.5 * real


def area_under_curve(score, label):
    order = np.argsort(np.argsort(score))
    positive = label == 1
    pairs = positive.sum() * (~positive).sum()
    return (order[positive].sum() - positive.sum() * (positive.sum() - 1) / 2) / pairs


def test_labels_follow_the_features_better_than_chance_and_than_naive_bayes(sampled, rows):
    codes, labels = sampled
    method = NaiveBayes(DOMAIN)
    curator = curator_of(method, [rows], mu=BIG_MU, seed=1)
    released = measure(method, curator, mu=BIG_MU)
    plain_codes, plain_labels = method.sample(released, n_rows=20_000, rng=np.random.default_rng(2))
    fresh = made_up_rows(20_000, 9)
    best = area_under_curve(log_odds_of(fresh.codes), fresh.label)
    ours = area_under_curve(log_odds_of(codes), labels)
    plain = area_under_curve(log_odds_of(plain_codes), plain_labels)
    assert best > 0.8
    assert ours > 0.7
    assert ours > plain + 0.02


def test_same_noise_and_same_generator_give_identical_codes_for_any_sharding(
    measured, sampled, rows
):
    method, _, _ = measured
    parts = [
        EncodedRows(
            codes=np.asfortranarray(rows.codes[member]),
            label=rows.label[member],
            weight=rows.weight[member],
            fold=rows.fold[member],
        )
        for member in np.array_split(np.random.default_rng(0).permutation(len(rows)), 7)
    ]
    again = measure(method, curator_of(method, parts, mu=BIG_MU, seed=1), mu=BIG_MU)
    codes, labels = method.sample(again, n_rows=20_000, rng=np.random.default_rng(2))
    np.testing.assert_array_equal(codes, sampled[0])
    np.testing.assert_array_equal(labels, sampled[1])


def test_another_noise_gives_another_table(measured, sampled, rows):
    method, _, _ = measured
    other = measure(method, curator_of(method, [rows], mu=BIG_MU, seed=2), mu=BIG_MU)
    codes, _ = method.sample(other, n_rows=20_000, rng=np.random.default_rng(2))
    assert (codes != sampled[0]).any()


def test_a_plan_of_another_budget_is_found_before_mixing(rows):
    method = SlicedClustMix(DOMAIN, CONFIG.model_copy(update={"kip_steps": 1}))
    curator = curator_of(method, [rows], mu=BIG_MU, seed=1)
    with pytest.raises(IntegrityError, match="expected exactly the planned draws so far"):
        measure(method, curator, mu=BIG_MU / 2)
    drawn = [event.statistic for event in curator.event.events]
    assert "cell_histograms" not in drawn


@pytest.mark.parametrize("n_patients", [0, 1, 3])
def test_a_tiny_table_under_real_noise_gives_a_table_of_the_same_shape(n_patients, measured):
    # No exception may depend on the rows: at one epsilon all that is left is noise.
    method, _, usual = measured
    curator = curator_of(method, [made_up_rows(n_patients, 0)], mu=0.2, seed=3)
    released = measure(method, curator, mu=0.2)
    shapes = {name: array.shape for name, array in released.items() if name != "loadings"}
    assert shapes == {name: array.shape for name, array in usual.items() if name != "loadings"}
    codes, labels = method.sample(released, n_rows=50, rng=np.random.default_rng(0))
    assert (codes < np.array(DOMAIN.n_codes)).all()
    assert set(labels.tolist()) <= {0, 1}


# Neighbours on which the printed algorithm fails. A one-column domain of eleven points 0.0, 0.1,
# ..., 1.0, one label in use, as in the counterexamples.
LINE = EncodingDomain(
    column_names=("x",),
    n_codes=(11,),
    has_missing=(False,),
    numeric=(True,),
    label_levels=("no", "yes"),
)
LINE_METHOD = SlicedClustMix(
    LINE,
    ClustMixConfig(
        slices=1, clusters_per_slice=2, clustering_rounds=1, min_cluster_size=4, kip_steps=1,
        support_per_label=2, random_features=4,
    ),
)  # fmt: skip


def on_the_line(tenths):
    n = len(tenths)
    return EncodedRows(
        codes=np.array(tenths, dtype=np.uint16)[:, None],
        label=np.zeros(n, dtype=np.uint16),
        weight=np.ones(n),
        fold=np.ones(n, dtype=np.uint8),
    )


def draws_of(rows, *, mu=1.0, seed=4):
    """All noisy statistics by name, the events, and the public arrays that they were drawn with."""
    drawn, executor = {}, NotingExecutor()
    curator = Curator(
        plan=LINE_METHOD.plan(mu=mu),
        shards=in_memory([rows]),
        executor=executor,
        noise_source=SeededNoise(seed),
        seal=lambda name, noisy: drawn.update({name: noisy}),
    )
    measure(LINE_METHOD, curator, mu=mu)
    return drawn, executor.asked, curator.event


def best_two_clusters(tenths, least):
    """Two-means with sizes of at least ``least``, by brute force over cuts of the sorted line."""

    def spread(values):
        mean = sum(values, Fraction(0)) / len(values)
        return sum((value - mean) ** 2 for value in values)

    values = [Fraction(value) for value in sorted(tenths)]
    cuts = range(least, len(values) - least + 1)
    return min(cuts, key=lambda cut: spread(values[:cut]) + spread(values[cut:]))


LEAST = 4
MOVED = (
    [0] * (LEAST - 1) + [2] + [5] * (LEAST - 1) + [9] + [10] * (LEAST - 1),
    [0] * (LEAST - 1) + [0] + [5] * (LEAST - 1) + [9] + [10] * (LEAST - 1),
)
FEWER = ([0, 5, 5, 10] * LEAST, ([0, 5, 5, 10] * LEAST)[:-1])


def test_one_record_flips_the_published_clusters_of_many_others():
    # The counterexample is one: the records at 0.5 change side although another record moved.
    sides = [[value > 4 for value in sorted(table)] for table in MOVED]
    assert sides[0] == sides[1]
    first, second = (best_two_clusters(table, LEAST) for table in MOVED)
    assert (first, second) == (2 * LEAST - 1, LEAST)


@pytest.mark.parametrize(("one", "other"), [MOVED, FEWER], ids=["moved", "fewer"])
def test_neighbours_have_the_same_names_shapes_scales_and_events(one, other):
    # The published method shows the count by its number of rows (one row per cluster), and the
    # cluster size by the variance of its noise.
    (first, _, first_event), (second, _, second_event) = (
        draws_of(on_the_line(table)) for table in (one, other)
    )
    assert list(first) == list(second)
    assert first_event == second_event == LINE_METHOD.plan(mu=1.0).event
    for name in first:
        assert first[name].values.shape == second[name].values.shape
        assert first[name].event.noise_stddev == second[name].event.noise_stddev


@pytest.mark.parametrize(("one", "other"), [MOVED, FEWER], ids=["moved", "fewer"])
def test_neighbours_differ_by_at_most_the_sensitivity_at_every_draw(one, other):
    # Replacing a record is one removal and one addition: twice the sensitivity.
    allowed = 2 if len(one) == len(other) else 1
    rows, neighbour = on_the_line(one), on_the_line(other)
    drawn, arguments, event = draws_of(rows)
    for (contribution, public), planned, noisy in zip(
        arguments, event.events, drawn.values(), strict=True
    ):
        # Given what was released before, the same noise on the neighbour.
        mine, theirs = contribution(rows, **public), contribution(neighbour, **public)
        moved = sum(value * value for value in (mine - theirs).ravel().tolist())
        assert 0 < moved <= (allowed * Fraction(planned.l2_sensitivity)) ** 2
        assert noisy.event == planned


@pytest.mark.parametrize(("one", "other"), [MOVED, FEWER], ids=["moved", "fewer"])
def test_noise_is_independent_of_the_rows(one, other):
    noises = []
    for table in (one, other):
        rows = on_the_line(table)
        drawn, arguments, _ = draws_of(rows)
        noises.append(
            [
                noisy.values - contribution(rows, **public)
                for noisy, (contribution, public) in zip(drawn.values(), arguments, strict=True)
            ]
        )
    for mine, theirs in zip(*noises, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_memberships_of_other_records_do_not_flip():
    # Given the released centres of one run, all records but the moved one stay where they were.
    _, arguments, _ = draws_of(on_the_line(MOVED[0]))
    cells = [public["cells"] for _, public in arguments if "cells" in public]
    assert len(cells) == 2
    for one, (mine, theirs) in itertools.product(
        cells, [(on_the_line(MOVED[0]), on_the_line(MOVED[1]))]
    ):
        moved = one.assign(mine.codes, mine.label) != one.assign(theirs.codes, theirs.label)
        assert set(np.flatnonzero(moved).tolist()) <= {LEAST - 1}
