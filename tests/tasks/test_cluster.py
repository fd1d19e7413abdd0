import asyncio
import os
import signal
from unittest import mock

import distributed
import numpy as np
import psutil
import pytest
import shard_functions
from waiting import kill_spawned, until

from flows.local_server import web_status
from privacy.errors import ConfigurationError
from tasks.execution import cluster as cluster_module
from tasks.execution import dask_executor
from tasks.execution.cluster import connect, local_cluster
from tasks.execution.dask_executor import DaskExecutor
from tasks.execution.runtime import PipelineError

pytestmark = pytest.mark.integration


def listening():
    this = psutil.Process()
    return {
        tuple(connection.laddr)
        for process in (this, *this.children(recursive=True))
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.fixture(scope="module")
def listening_before():
    # An orchestrator that an earlier test started stays for the whole session.
    return listening()


@pytest.fixture(scope="module")
def cluster(listening_before, tmp_path_factory):
    with local_cluster(2, tmp_path_factory.mktemp("cluster") / "scratch") as client:
        yield client


def test_a_stranger_on_this_machine_cannot_use_the_cluster(cluster):
    address = cluster.scheduler.address
    assert address.startswith("tls://127.0.0.1:")
    another = distributed.security.Security.temporary().get_connection_args("client")
    with pytest.raises(OSError, match="TLS certificate does not match"):
        asyncio.run(distributed.comm.connect(address, timeout=5, **another))
    with pytest.raises(distributed.comm.CommClosedError):
        asyncio.run(distributed.comm.connect(address.replace("tls", "tcp"), timeout=5))


def test_cluster_listens_on_loopback_and_tells_nothing_over_http(listening_before, cluster):
    opened = listening() - listening_before
    assert {host for host, _ in opened} == {"127.0.0.1"}
    pages = "/info/main/workers.html"
    answers = [web_status(f"http://127.0.0.1:{port}{pages}") for _, port in opened]
    # One HTTP server beside the scheduler and each of two workers, without a single page.
    assert answers.count(404) == 3
    assert set(answers) == {404, 0}  # others speak TLS


def test_a_lost_worker_ends_the_run_without_a_trace_of_the_item(tmp_path, monkeypatch):
    monkeypatch.setattr(dask_executor, "TRIES", 2)
    with (
        local_cluster(1, tmp_path / "scratch") as client,
        pytest.raises(PipelineError, match=r"^map:WorkerLost: expected every worker to") as caught,
    ):
        DaskExecutor(client, "r-5").map(shard_functions.kill_worker, [1])
    assert caught.value.__context__ is None


def test_the_run_ends_where_no_worker_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(dask_executor, "WORKER_WAIT_SECONDS", 1.0)
    with in_process() as running, connect(running.scheduler_address) as client:
        executor = DaskExecutor(client, "r-7")
        running.scale(0)
        running.sync(running._correct_state)
        with pytest.raises(PipelineError, match=r"^map:WorkerLost: .* one .NoWorker.; look"):
            executor.map(shard_functions.square, [3])


# distributed drops its end of a connection to a worker that is killed while it opens.
@pytest.mark.filterwarnings("ignore:.*unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*<ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("n_workers", [1, 2])
def test_what_a_killed_worker_was_at_is_computed_again(tmp_path, n_workers):
    shards = [tmp_path / f"{number}.npy" for number in range(5)]
    for number, shard in enumerate(shards):
        np.save(shard, np.arange(4) * 10**number)
    factor = np.array([1, -2, 3, 0])
    with local_cluster(n_workers, tmp_path / "scratch") as client:
        executor = DaskExecutor(client, "r-8")
        # In the middle of a sum, twice.
        total = executor.sum(shard_functions.weighted_after_death, shards, {"factor": factor})
        assert total.tolist() == (np.arange(4) * 11_111 * factor).tolist()
        assert len(list(tmp_path.glob("*.died"))) == 2
        # Between sums, all of them.
        for pid in client.run(os.getpid).values():
            os.kill(pid, signal.SIGKILL)
        total = executor.sum(shard_functions.weighted_shard, shards, {"factor": factor})
        assert total.tolist() == (np.arange(4) * 11_111 * factor).tolist()
        # In the middle of a map.
        marker = os.fspath(tmp_path / "map")
        squares = executor.map(
            shard_functions.square_after_death, [(n, marker) for n in range(4)], gpu=True
        )
        assert squares == [0, 1, 4, 9]
        # A worker that was started anew writes no core either.
        assert set(executor.map(shard_functions.core_limits, range(4))) <= {(1, 1), (0, 0)}
        # Nothing is left of the tries, of those that failed either; the scheduler takes its time.
        until(
            lambda: not client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
        )
    assert (tmp_path / "map").exists()


def test_worker_that_dies_while_it_starts_is_started_again(tmp_path):
    others = set(psutil.Process().children(recursive=True))
    with local_cluster(1, tmp_path / "scratch") as client:
        killed = set()

        def four_are_killed():
            killed.update(kill_spawned(others | killed))
            return len(killed) >= 4

        until(four_are_killed, every=0.02)
        assert DaskExecutor(client, "r-9").map(shard_functions.square, [5]) == [25]


def in_process():
    return distributed.LocalCluster(
        n_workers=1,
        processes=False,
        protocol="tcp",
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
    )


def test_connect_refuses_a_scheduler_with_a_jupyter_server():
    message = "set --jupyter of the scheduler to off .found on.; start it again"
    with (
        in_process() as running,
        mock.patch.object(running.scheduler, "jupyter", True),
        pytest.raises(ConfigurationError, match=message),
        connect(running.scheduler_address),
    ):
        pass


def test_connect_refuses_a_cluster_that_does_not_tell_its_settings(monkeypatch):
    monkeypatch.setattr(cluster_module, "unsafe_worker", lambda dask_worker: 1 // 0)
    message = (
        "CLUSTER_SETTINGS: expected a scheduler and workers that answer for their settings, found "
        "ZeroDivisionError; start them with this version of ClustMix installed"
    )
    with (
        in_process() as running,
        pytest.raises(ConfigurationError, match=message) as caught,
        connect(running.scheduler_address),
    ):
        pass
    assert caught.value.__context__ is None


IN_CLEAR = "INSECURE_SCHEDULER: expected tls://host:port"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tcp://10.0.0.1:8786", IN_CLEAR),
        ("tcp://scheduler:8786", IN_CLEAR),
        ("scheduler", IN_CLEAR),
        ("tls://scheduler:8786", "SCHEDULER_CERTIFICATE: expected a client cert"),
    ],
)
def test_connect_refuses_to_send_sums_in_clear_or_without_a_certificate(address, message):
    with pytest.raises(ConfigurationError, match=message), connect(address):
        pass
