import numpy as np
import pytest
from measuring import NoNoise

from benchmarks.in_process import SeededNoise
from privacy.errors import IntegrityError
from privacy.randomness import OperatingSystemNoise
from tasks.measurement.curator import Curator
from tasks.measurement.measurement_plan import SumRequest, plan_measurement

SCALE = 2**20


def label_counts(rows, *, factor=1):
    return np.bincount(rows.label, minlength=2).astype(np.int64) * SCALE * factor


def plan_of(**shares):
    """Statistics of these shares; a series has six draws."""
    return plan_measurement(
        [
            SumRequest(
                name=name,
                shape=(2,),
                scale=SCALE,
                share=share,
                n_draws=6 if name == "series" else 1,
            )
            for name, share in shares.items()
        ],
        mu=1.0,
    )


@pytest.fixture(scope="module")
def plan():
    return plan_of(first=1.0, second=3.0)


@pytest.fixture(scope="module")
def shards(small):
    return [small.rows(small.patients(40, seed)) for seed in (0, 1)]


def test_returns_the_exact_sum_plus_planned_noise_and_notes_the_draw(plan, shards):
    noise = NoNoise()
    curator = Curator(plan=plan, shards=shards, noise_source=noise)
    assert curator.event.events == ()
    labels = np.concatenate([shard.load().label for shard in shards])
    counts = curator.release("first", label_counts, factor=2)
    assert curator.event.events == plan.event.events[:1]
    np.testing.assert_array_equal(counts, 2 * np.bincount(labels, minlength=2))
    assert counts.dtype == np.float64
    assert noise.draws == [((2,), plan["first"].noise_stddev)]
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
    with pytest.raises(ValueError, match="expected at most 1 draws of 'first', as planned"):
        curator.release("first", contribution)
    with pytest.raises(KeyError, match="expected a planned statistic, found 'third'"):
        curator.release("third", contribution)
    assert touched == []
    assert len(noise.draws) == 1


def test_refuses_another_shape_and_what_is_not_on_the_grid_without_a_draw(plan, shards):
    noise = NoNoise()
    curator = Curator(plan=plan, shards=shards, noise_source=noise)
    with pytest.raises(ValueError, match=r"expected shape \(2,\) for 'first', found \(3,\)"):
        curator.release("first", lambda rows: np.zeros(3, dtype=np.int64))
    with pytest.raises(IntegrityError, match="expected int64 arrays"):
        curator.release("first", lambda rows: np.array([0.5, 0.25]))
    assert noise.draws == []
    assert curator.event.events == ()


def test_seals_the_noisy_values_before_it_returns_them(plan, shards):
    sealed, noise = {}, SeededNoise(0)
    curator = Curator(plan=plan, shards=shards, noise_source=noise, seal=sealed.__setitem__)
    returned = curator.release("second", label_counts)
    np.testing.assert_array_equal(sealed["second"].values / SCALE, returned)
    assert sealed["second"].event == plan["second"].event_of(1)


def test_a_seal_that_fails_returns_nothing_and_the_draw_still_counts(plan, shards):
    noise = NoNoise()

    def seal(name, statistic):
        raise OSError("disk full")

    curator = Curator(plan=plan, shards=shards, noise_source=noise, seal=seal)
    with pytest.raises(OSError, match="disk full"):
        curator.release("first", label_counts)
    # The noise was drawn: averaging a second draw with what may lie on the disk would halve it.
    with pytest.raises(ValueError, match="expected at most 1 draws of"):
        curator.release("first", label_counts)
    assert len(noise.draws) == 1
    assert curator.event.events == plan.event.events[:1]


def test_taint_is_that_of_the_noise(plan, shards):
    assert Curator(plan=plan, shards=shards, noise_source=SeededNoise(0)).tainted
    assert not Curator(plan=plan, shards=shards, noise_source=OperatingSystemNoise()).tainted


def test_a_series_has_the_planned_draws_and_no_more(shards):
    plan, noise, sealed = plan_of(first=1.0, series=1.0), SeededNoise(1), {}
    curator = Curator(plan=plan, shards=shards, noise_source=noise, seal=sealed.__setitem__)
    curator.release("first", label_counts)
    drawn = [curator.release("series", label_counts, factor=n) for n in range(3)]
    assert curator.event.events[1] == plan["series"].event_of(3)
    drawn += [curator.release("series", label_counts) for _ in range(3)]
    assert curator.event == plan.event
    assert len({array.tobytes() for array in drawn}) == 6
    assert list(sealed) == ["first", *(f"series_{number:06d}" for number in range(6))]
    with pytest.raises(ValueError, match="expected at most 6 draws of 'series', as planned"):
        curator.release("series", label_counts)


def test_all_draws_of_a_series_cost_its_share():
    plan = plan_of(first=1.0, series=3.0)
    series = plan["series"]
    assert series.mu == pytest.approx(np.sqrt(3.0) / 2.0)
    assert series.unit_noise_stddev == pytest.approx(np.sqrt(6.0) / series.mu, rel=1e-6)
