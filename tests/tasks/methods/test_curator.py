"""The curator: plain draws, series of draws on secret samples, and private choices."""

import numpy as np
import pytest
from measuring import NoNoise
from scipy import stats

from privacy.accountants.approximate_gaussian import ApproximateGaussianAccountant
from privacy.errors import IntegrityError
from privacy.events import ExponentialMechanismEvent
from privacy.parameters import Adjacency
from privacy.randomness import OperatingSystemNoise, SeededNoise
from tasks.execution.executor import InProcessExecutor
from tasks.measurement.curator import Curator, in_memory
from tasks.measurement.plan import SelectionRequest, StatisticRequest, plan_measurement

SCALE = 2**20


def label_counts(rows, *, factor=1):
    return np.bincount(rows.label, minlength=2).astype(np.int64) * SCALE * factor


def sampled_counts(rows, *, coins):
    """Weighted number of the sampled patients of each label; each row is cut to the grid."""
    grid = np.trunc(rows.weight * SCALE)
    counts = [
        np.bincount(rows.label[index], weights=grid[index], minlength=2)
        for index in coins.rows(rows)
    ]
    return np.array(counts).astype(np.int64)


def plan_of(**shares):
    """Statistics of these shares; a series is one of six draws."""
    series = {"sampling_probability": 0.25, "n_draws": 6}
    return plan_measurement(
        [
            StatisticRequest(
                name=name,
                shape=(2,),
                l2_sensitivity=float(SCALE),
                scale=SCALE,
                share=share,
                **(series if name == "series" else {}),
            )
            for name, share in shares.items()
        ],
        mu=1.0,
    )


@pytest.fixture(scope="module")
def plan():
    return plan_of(first=1.0, second=3.0)


@pytest.fixture(scope="module")
def sampled():
    return plan_of(first=1.0, series=1.0)


@pytest.fixture(scope="module")
def shards(small):
    return in_memory([small.rows(small.patients(40, seed)) for seed in (0, 1)])


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
    with pytest.raises(ValueError, match="expected statistic 'first' to be drawn once"):
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


def test_every_draw_has_its_own_sample_and_all_are_the_plan(sampled, shards):
    curator = Curator(plan=sampled, shards=shards, noise_source=NoNoise())
    curator.release("first", label_counts)
    first = curator.release_sample("series", sampled_counts, 2)
    assert first.shape == (2, 2)
    assert curator.event.events[1] == sampled["series"].event_of(2)
    rest = curator.release_sample("series", sampled_counts, 4)
    assert curator.event == sampled.event
    draws = np.concatenate([first, rest]).sum(axis=1)
    assert len(set(draws.round(3))) > 1
    # 80 patients, a quarter of them in each draw, six draws: within 5 standard deviations.
    assert abs(draws.mean() - 20.0) < 5 * np.sqrt(80 * 0.25 * 0.75 / 6)


def test_shards_have_coins_of_their_own(sampled, small):
    # The same rows twice: with the same coins both shards would be sampled alike.
    rows = small.rows(small.patients(60, 3))
    seen = []

    def note(rows, *, coins):
        seen.append(coins.included(60))
        return sampled_counts(rows, coins=coins)

    curator = Curator(plan=sampled, shards=in_memory([rows, rows]), noise_source=NoNoise())
    curator.release_sample("series", note, 6)
    assert (seen[0] != seen[1]).any()


def test_a_run_draws_the_planned_number_and_no_more(sampled, shards):
    curator = Curator(plan=sampled, shards=shards, noise_source=NoNoise())
    curator.release_sample("series", sampled_counts, 5)
    for n_draws, text in ((2, "found 2 after 5"), (0, "found 0 after 5")):
        with pytest.raises(
            ValueError, match=rf"^expected at most the 6 planned draws of 'series', {text}$"
        ):
            curator.release_sample("series", sampled_counts, n_draws)
    with pytest.raises(ValueError, match=r"^expected at most the 1 planned draws of 'first'"):
        curator.release_sample("first", sampled_counts, 1)
    with pytest.raises(
        ValueError, match=r"^expected a statistic without samples, found the series 'series'$"
    ):
        curator.release("series", label_counts)
    with pytest.raises(ValueError, match=r"^expected shape \(1, 2\) for 'series', found \(2,\)$"):
        curator.release_sample("series", lambda rows, coins: label_counts(rows), 1)


def test_noise_of_a_series_is_the_planned_one(sampled, small):
    nobody = in_memory([small.rows([])])
    n, values = 400, []
    for seed in range(n // 6 + 1):
        curator = Curator(plan=sampled, shards=nobody, noise_source=SeededNoise(seed))
        values.append(curator.release_sample("series", sampled_counts, 6).ravel())
    noise = np.concatenate(values) / sampled["series"].unit_noise_stddev
    # Two-sided at 1e-6: 804 values; a factor of 1.25 is found with probability above 0.99.
    lower, upper = stats.chi2.ppf([5e-7, 1 - 5e-7], len(noise))
    assert lower < (noise**2).sum() < upper


def test_choice_takes_the_candidate_that_is_far_off():
    plan = plan_measurement(
        [SelectionRequest(name="worst", n_candidates=2, score_sensitivity=SCALE, share=1.0)], mu=1.0
    )
    event = plan.selection("worst").event
    assert isinstance(event, ExponentialMechanismEvent)
    accountant = ApproximateGaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(plan.event)
    assert 0.999 < accountant.mu <= 1.0

    class Far(InProcessExecutor):
        def sum(self, function, shards, public):
            return np.array([1000, 10]) * SCALE

    centre = np.array([1000, 200]) * SCALE
    curator = Curator(plan=plan, shards=(), executor=Far(), noise_source=SeededNoise(3))
    assert curator.select("worst", label_counts, centre=centre) == 1
    assert curator.event == plan.event
    with pytest.raises(
        ValueError, match=r"^expected the choice 'worst' to be made once, found a second one$"
    ):
        curator.select("worst", label_counts, centre=centre)
    other = Curator(plan=plan, shards=(), executor=Far(), noise_source=SeededNoise(3))
    with pytest.raises(ValueError, match=r"^expected 2 candidates for 'worst'$"):
        other.select("worst", label_counts, centre=centre[:1])
    with pytest.raises(KeyError, match="expected a planned statistic, found the choice 'worst'"):
        other.release("worst", label_counts)
    with pytest.raises(KeyError, match="expected a planned choice, found the statistic 'first'"):
        plan_of(first=1.0).selection("first")
