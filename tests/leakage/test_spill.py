"""Private arrays stay in memory: no spill file, no core dump, no scratch that outlives a run."""

import os
import signal
import stat
import subprocess
import sys

import dask
import distributed
import made_up_release as made
import psutil
import pytest
from shard_functions import CANARY, N_BYTES, private_array

from storage.files.workspace import PrivateWorkspace, purge_abandoned
from tasks.execution.cluster import local_cluster
from tests.processes import python

pytestmark = pytest.mark.integration

N_ARRAYS = 12


def hold(client):
    """Let the workers make and keep all arrays at once."""
    arrays = [client.submit(private_array, n, pure=False) for n in range(N_ARRAYS)]
    lengths = client.gather([client.submit(len, array, pure=False) for array in arrays])
    assert lengths == [N_BYTES + len(CANARY)] * N_ARRAYS
    return arrays


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def open_to_others(folder):
    """Return what others could enter or read, were the folder's parents open."""
    return [path for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & 0o077]


def test_usual_worker_spills_what_this_search_finds(tmp_path):
    with (
        # As usual, but for the share of memory at which it would wait for this process to shrink.
        dask.config.set({"distributed.worker.memory.pause": False}),
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            memory_limit="40MB",
            dashboard_address="127.0.0.1:0",
            local_directory=os.fspath(tmp_path),
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        arrays = hold(client)
        assert made.found_in_tree(tmp_path, [CANARY.encode()])
        client.cancel(arrays)


@pytest.mark.parametrize("variables", [{}, {"MEMORY__TARGET": "0.0001", "MEMORY__SPILL": "0.0002"}])
def test_own_workers_write_no_private_byte(tmp_path, monkeypatch, variables):
    """Whatever the environment asks for, and with less memory than a usual worker would want."""
    for name, value in variables.items():
        monkeypatch.setenv(f"DASK_DISTRIBUTED__WORKER__{name}", value)
    monkeypatch.setenv("TMPDIR", os.fspath(tmp_path))
    with PrivateWorkspace.create(tmp_path / "private", "r-1") as workspace:
        scratch = workspace.path("dask")
        asked = dask.config.merge(dask.config.global_config, dask.config.collect_env())
        with dask.config.set(asked), local_cluster(2, scratch) as client:
            arrays = hold(client)
            assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
            assert open_to_others(scratch) == []
            assert made.found_in_tree(tmp_path, [CANARY.encode()]) == []
            # What is there at all: locks of the workers.
            assert {path.suffix for path in files_below(scratch)} <= {".dirlock", ".lock"}
            del arrays
        assert {path.stat().st_size for path in files_below(scratch)} <= {0}
    assert list((tmp_path / "private").iterdir()) == [tmp_path / "private" / ".lock"]
    assert made.found_in_tree(tmp_path, [CANARY.encode()]) == []


RUN_AND_WAIT = """
import sys, time
from pathlib import Path
from storage.files.workspace import PrivateWorkspace
from tasks.execution.cluster import local_cluster

if __name__ == "__main__":
    workspace = PrivateWorkspace.create(Path(sys.argv[1]), "r-1")
    with local_cluster(1, workspace.path("dask")) as client:
        print("ready", flush=True)
        time.sleep(600)
"""


def test_scratch_of_a_killed_run_is_wiped_by_the_next_one(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(RUN_AND_WAIT)
    root = tmp_path / "private"
    process = psutil.Popen(
        [sys.executable, script, root], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    family = process.children(recursive=True)
    assert len(family) >= 1
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    scratch = root / "r-1" / "dask"
    assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
    assert open_to_others(scratch) == []
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    purge_abandoned(root)
    assert list(root.iterdir()) == [root / ".lock"]


CRASH = """
import os, resource, subprocess, sys
from pathlib import Path
from storage.files.workspace import PrivateWorkspace

hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
PrivateWorkspace.create(Path("private"), "r-1")
program = "import resource; print(*resource.getrlimit(resource.RLIMIT_CORE))"
subprocess.run([sys.executable, "-c", program], check=True)
os.abort()
"""


def test_crash_of_a_process_with_private_rows_leaves_no_core(tmp_path):
    (tmp_path / "private").mkdir(mode=0o700)
    process = python("-c", CRASH, cwd=tmp_path, timeout=60)
    assert process.returncode == -signal.SIGABRT, process.stderr
    # One byte: what the Linux kernel reads as "not even to a crash reporter".
    assert process.stdout.strip() in {"1 1", "0 0"}
    assert list(tmp_path.glob("core*")) == []
