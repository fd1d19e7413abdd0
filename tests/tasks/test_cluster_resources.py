import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from dask_programs import PAGES_HERE, running, using
from shard_functions import worker_name, worker_number

from tasks.execution import dask_executor
from tasks.execution.cluster import connect
from tasks.execution.dask_executor import DaskExecutor

pytestmark = pytest.mark.integration  # eleven workers, each a process that imports everything

GPU = ("--resources", "GPU=1", "--nthreads", "2")
CPU = ("--resources", "CPU=2", "--nthreads", "2")


@contextmanager
def cluster_of(folder, certificates, *workers):
    named = [(*PAGES_HERE, *options, "--name", f"worker-{n}") for n, options in enumerate(workers)]
    with (
        running(folder, certificates=certificates, workers=named) as address,
        using(certificates),
        connect(address) as client,
    ):
        client.wait_for_workers(len(workers), timeout=60)
        yield client


def process_of(client, name):
    processes = client.run(lambda dask_worker: (dask_worker.name, os.getpid())).values()
    return psutil.Process(dict(processes)[name])


def where_sums_run(client):
    shards = [Path(f"{number}.npy") for number in range(24)]
    counts = DaskExecutor(client, "r-1").sum(worker_number, shards, {})
    assert counts.sum() == len(shards)
    return np.flatnonzero(counts).tolist()


def where_items_run(client, folder, *, gpu, seconds=0.1):
    items = [(seconds, os.fspath(folder))] * 12
    return Counter(DaskExecutor(client, "r-2").map(worker_name, items, gpu=gpu))


def test_items_and_sums_run_on_the_workers_for_them_alone(certificates, tmp_path):
    workers = (GPU, GPU, CPU, CPU, ())
    with cluster_of(tmp_path, certificates, *workers) as client:
        # An item that begins while another one runs on the same worker fails; see `worker_name`.
        ran = where_items_run(client, tmp_path, gpu=True)
        assert where_sums_run(client) == [2, 3]
    assert set(ran) == {"worker-0", "worker-1"}
    assert ran.total() == 12


def test_sums_keep_off_gpu_workers_where_no_worker_is_marked_for_them(certificates, tmp_path):
    with cluster_of(tmp_path, certificates, GPU, (), ()) as client:
        assert where_sums_run(client) == [1, 2]
        others = where_items_run(client, tmp_path, gpu=False, seconds=0.01)
        assert set(others) <= {"worker-1", "worker-2"}
        assert set(where_items_run(client, tmp_path, gpu=True, seconds=0.01)) == {"worker-0"}


def test_gpu_work_waits_for_a_gpu_worker_that_was_lost(certificates, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_executor, "WORKER_WAIT_SECONDS", 30.0)
    with cluster_of(tmp_path, certificates, GPU, ()) as client:
        executor = DaskExecutor(client, "r-3")
        items = [(0.1, os.fspath(tmp_path))] * 4
        assert set(executor.map(worker_name, items, gpu=True)) == {"worker-0"}
        gpu_worker = process_of(client, "worker-0")
        nanny = gpu_worker.parent()
        gpu_worker.kill()  # its nanny starts another one
        assert set(executor.map(worker_name, items, gpu=True)) == {"worker-0"}
        # Nobody brings this one back: what is left does the work, in the end.
        monkeypatch.setattr(dask_executor, "WORKER_WAIT_SECONDS", 2.0)
        gpu_worker = process_of(client, "worker-0")
        nanny.suspend()
        try:
            gpu_worker.kill()
            assert set(executor.map(worker_name, items, gpu=True)) == {"worker-1"}
        finally:
            nanny.resume()
