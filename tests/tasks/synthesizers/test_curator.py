import numpy as np
import pytest
from measuring import NoNoise

from privacy.errors import IntegrityError
from privacy.randomness import OperatingSystemNoise, SeededNoise
from tasks.measurement.curator import Curator, in_memory
from tasks.measurement.plan import StatisticRequest, plan_measurement

SCALE = 2**20


def label_counts(rows, *, factor=1):
    return np.bincount(rows.label, minlength=2).astype(np.int64) * SCALE * factor


@pytest.fixture
def plan():
    return plan_measurement(
        [
            StatisticRequest(
                name=name, shape=(2,), l2_sensitivity=float(SCALE), scale=SCALE, share=share
            )
            for name, share in (("first", 1.0), ("second", 3.0))
        ],
        mu=1.0,
    )


@pytest.fixture
def shards(small):
    return in_memory([small.rows(small.patients(5, seed)) for seed in (0, 1)])


def test_returns_the_exact_sum_plus_planned_noise_in_its_own_units(plan, shards, small):
    noise = NoNoise()
    curator = Curator(plan=plan, shards=shards, noise_source=noise)
    labels = np.concatenate([small.rows(small.patients(5, seed)).label for seed in (0, 1)])
    counts = curator.release("first", label_counts, factor=2)
    np.testing.assert_array_equal(counts, 2 * np.bincount(labels, minlength=2))
    assert counts.dtype == np.float64
    assert noise.draws == [((2,), plan["first"].noise_stddev)]


def test_events_are_those_of_the_draws_that_happened_in_order(plan, shards):
    curator = Curator(plan=plan, shards=shards, noise_source=NoNoise())
    assert curator.event.events == ()
    curator.release("first", label_counts)
    assert curator.event.events == plan.event.events[:1]
    curator.release("second", label_counts)
    assert curator.event == plan.event


def test_refuses_a_second_draw_and_an_unplanned_one_before_touching_the_rows(plan, shards):
    noise, touched = NoNoise(), []

    def contribution(rows):
        touched.append(len(rows))
        return label_counts(rows)

    curator = Curator(plan=plan, shards=shards, noise_source=noise)
    curator.release("first", contribution)
    touched.clear()
    with pytest.raises(ValueError, match="expected statistic 'first' to be drawn once"):
        curator.release("first", contribution)
    with pytest.raises(KeyError, match="expected a planned statistic, found 'third'"):
        curator.release("third", contribution)
    assert touched == []
    assert len(noise.draws) == 1


def test_refuses_another_shape_without_a_draw(plan, shards):
    noise = NoNoise()
    curator = Curator(plan=plan, shards=shards, noise_source=noise)
    with pytest.raises(ValueError, match=r"expected shape \(2,\) for 'first', found \(3,\)"):
        curator.release("first", lambda rows: np.zeros(3, dtype=np.int64))
    assert noise.draws == []
    assert curator.event.events == ()


def test_refuses_a_statistic_that_is_not_on_the_grid(plan, shards):
    noise = NoNoise()
    curator = Curator(plan=plan, shards=shards, noise_source=noise)
    with pytest.raises(IntegrityError, match="expected int64 arrays"):
        curator.release("first", lambda rows: np.array([0.5, 0.25]))
    assert noise.draws == []


def test_seals_the_noisy_values_before_it_returns_them(plan, shards):
    sealed = {}
    curator = Curator(
        plan=plan,
        shards=shards,
        noise_source=SeededNoise(0),
        seal=lambda name, statistic: sealed.update({name: statistic}),
    )
    returned = curator.release("second", label_counts)
    np.testing.assert_array_equal(sealed["second"].values / SCALE, returned)
    assert sealed["second"].event == plan["second"].event


def test_a_seal_that_fails_returns_nothing_and_the_draw_still_counts(plan, shards):
    noise = NoNoise()

    def seal(name, statistic):
        raise OSError("disk full")

    curator = Curator(plan=plan, shards=shards, noise_source=noise, seal=seal)
    with pytest.raises(OSError, match="disk full"):
        curator.release("first", label_counts)
    # The noise was drawn: averaging a second draw with what may lie on the disk would halve it.
    with pytest.raises(ValueError, match="drawn once, found a second draw"):
        curator.release("first", label_counts)
    assert len(noise.draws) == 1
    assert curator.event.events == plan.event.events[:1]


def test_taint_is_that_of_the_noise(plan, shards):
    assert Curator(plan=plan, shards=shards, noise_source=SeededNoise(0)).tainted
    assert not Curator(plan=plan, shards=shards, noise_source=OperatingSystemNoise()).tainted
