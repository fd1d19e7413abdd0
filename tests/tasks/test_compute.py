import numpy as np
import pytest
import shard_functions
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from waiting import until

from flows.installation import HELD_BYTES, Workplace
from flows.local_server import free_port
from privacy.errors import ConfigurationError, InputError, IntegrityError
from tasks.execution.dask_executor import DaskExecutor
from tasks.execution.executor import sum_exactly
from tasks.execution.runtime import PRIVATE_LOG_NAME, PipelineError, private_log_directory

INT64 = np.iinfo(np.int64)


@pytest.fixture
def shards(tmp_path):
    rng = np.random.default_rng(5)
    paths = [tmp_path / f"{number}.npy" for number in range(5)]
    for path in paths:
        np.save(path, rng.integers(-(10**9), 10**9, size=4))
    return paths


def test_sum_of_one_array_is_the_sum_over_all_shards(executor, shards):
    factor = np.array([1, -2, 3, 0])
    expected = [sum(int(np.load(p)[i]) * int(factor[i]) for p in shards) for i in range(4)]
    total = executor.sum(shard_functions.weighted_shard, shards, {"factor": factor})
    assert total.dtype == np.int64
    assert total.tolist() == expected


@pytest.mark.parametrize("by_size", [True, False])
def test_a_small_table_needs_no_scheduler_that_answers(tmp_path, by_size):
    workplace = Workplace(
        workspaces=tmp_path / "private",
        diagnostics=tmp_path,
        dask_address=f"tcp://127.0.0.1:{free_port()}",
        n_workers=2,
        by_size=by_size,
    )
    with workplace.workspace("r-1") as space:
        with workplace.executor(space, table_bytes=HELD_BYTES) as executor:
            assert executor.map(shard_functions.square, [3]) == [9]
        large = workplace.executor(space, table_bytes=HELD_BYTES + 1)
        with pytest.raises(ConfigurationError, match="SCHEDULER_UNREACHABLE"), large:
            pass


def test_map_keeps_the_order(executor):
    assert executor.map(shard_functions.square, range(9)) == [item * item for item in range(9)]
    assert executor.map(shard_functions.square, [3], gpu=True) == [9]  # where there is no GPU


def test_a_failure_keeps_its_class_when_public(executor):
    with pytest.raises(InputError) as caught:
        executor.map(shard_functions.refused_item, range(5))
    assert str(caught.value) == "COLUMN_TYPE: column 2 has the wrong type"
    assert caught.value.__context__ is None


def test_a_private_failure_leaves_its_type_and_a_restricted_log(executor, shards, tmp_path):
    with (
        private_log_directory(tmp_path / "private"),
        pytest.raises(PipelineError, match=r"^canary_in_second_shard:ValueError: ") as caught,
    ):
        executor.sum(shard_functions.canary_in_second_shard, shards, {})
    assert shard_functions.CANARY not in str(caught.value)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    log = tmp_path / "private" / PRIVATE_LOG_NAME
    assert shard_functions.CANARY in log.read_text(encoding="utf-8")
    assert log.stat().st_mode & 0o777 == 0o600


@settings(max_examples=200, deadline=None)
@given(arrays.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 3))), st.randoms())
def test_sum_is_exact_or_refused_and_independent_of_the_order(terms, random):
    exact = [sum(int(term[i]) for term in terms) for i in range(terms.shape[1])]
    prefixes = np.cumsum(terms.astype(object), axis=0)
    if all(INT64.min <= value <= INT64.max for value in prefixes.ravel()):
        assert sum_exactly(terms).tolist() == exact
    else:
        with pytest.raises(IntegrityError, match="SUM_OVERFLOW: a sum left the range"):
            sum_exactly(terms)
    shuffled = list(terms // 8)  # cannot overflow in any order, rounded down as they are
    expected = sum_exactly(shuffled)
    random.shuffle(shuffled)
    np.testing.assert_array_equal(sum_exactly(shuffled), expected)


@pytest.mark.parametrize(
    "terms",
    [
        [np.zeros(2)],
        [3],
        [{"a": np.zeros(1, np.int64)}],
        [np.zeros(2, np.int64), np.zeros(3, np.int64)],
        # numpy would broadcast it
        [np.zeros((2, 2), np.int64), np.zeros(2, np.int64)],
    ],
)
def test_terms_of_another_form_are_refused(terms):
    with pytest.raises(IntegrityError, match=r"^SUM_TERM: expected int64 arrays of one shape"):
        sum_exactly(terms)


def test_keys_are_counted_and_nothing_stays_on_the_cluster(cluster, shards, monkeypatch):
    keys = []
    submit = cluster.submit

    def recording_submit(*args, **kwargs):
        keys.append(kwargs["key"])
        return submit(*args, **kwargs)

    monkeypatch.setattr(cluster, "submit", recording_submit)
    executor = DaskExecutor(cluster, "r-2")
    executor.sum(shard_functions.weighted_shard, shards[:2], {"factor": np.arange(4)})
    executor.map(shard_functions.square, [7])
    assert keys == ["clustmix-sum-r-2-0", "clustmix-sum-r-2-1", "clustmix-map-r-2-2"]
    # The client forgets a future in its own time.
    until(lambda: not cluster.futures)
