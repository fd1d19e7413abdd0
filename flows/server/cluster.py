"""The Dask cluster of a local server: its programs, their certificates, and a check of them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.server.ports import HOST, port_of
from storage.files.private import ensure_private_directory

CPU_WORKERS = "cpu-workers"
SCHEDULER = "scheduler"

_CERTIFICATE_DAYS = 366
_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPart:
    """A program of the cluster.

    Parameters
    ----------
    name
        Name of the part.
    arguments
        Module of this interpreter and its arguments.
    environment
        Variables beside the common ones.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def client_config(folder: Path) -> Path:
    """Return the Dask settings of a client of the cluster, for ``DASK_CONFIG``.

    Parameters
    ----------
    folder
        Folder of the server.
    """
    return folder / "certificates" / "client" / "dask.yaml"


def cluster_parts(
    folder: Path, address: str, *, n_workers: int, gpus: list[str]
) -> list[ClusterPart]:
    """Make new certificates and return the programs of a cluster that uses them.

    CPU workers offer the resource ``CPU``, GPU workers ``GPU``: work that names one of them runs
    nowhere else.

    Parameters
    ----------
    folder
        Folder of the server.
    address
        ``tls://`` address of the scheduler.
    n_workers
        Number of CPU workers, of one process and one thread each.
    gpus
        A GPU for each GPU worker, as ``CUDA_VISIBLE_DEVICES`` names it.
    """
    from tasks.execution.cluster_certificates import make_certificates

    certificates = folder / "certificates"
    # Those of an earlier start: its processes have ended.
    shutil.rmtree(certificates, ignore_errors=True)
    make_certificates(certificates, days=_CERTIFICATE_DAYS)
    scratch = ensure_private_directory(folder / "dask")

    def config(role: str) -> dict[str, str]:
        return {"DASK_CONFIG": str(certificates / role / "dask.yaml")}

    scheduler = (
        "dask", "scheduler", "--host", HOST, "--port", str(port_of(address)), "--no-show",
        "--dashboard-address", f"{HOST}:0",
    )  # fmt: skip
    worker = (
        "dask", "worker", address, "--host", HOST, "--nthreads", "1", "--memory-limit", "0",
        "--dashboard-address", f"{HOST}:0", "--local-directory", str(scratch),
    )  # fmt: skip
    return [
        ClusterPart(name=SCHEDULER, arguments=scheduler, environment=config("scheduler")),
        ClusterPart(
            name=CPU_WORKERS,
            arguments=(*worker, "--nworkers", str(n_workers), "--resources", "CPU=1"),
            environment={**config("worker"), "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        ),
        *(
            ClusterPart(
                name=f"gpu-worker-{number}",
                arguments=(*worker, "--resources", "GPU=1"),
                environment={**config("worker"), "CUDA_VISIBLE_DEVICES": gpu},
            )
            for number, gpu in enumerate(gpus)
        ),
    ]


def wait_for_workers(
    folder: Path, address: str, n_workers: int, wait: Callable[[Callable[[], bool]], None]
) -> None:
    """Connect as a release does, which refuses an unsafe cluster, and wait for all workers.

    Parameters
    ----------
    folder
        Folder of the server.
    address
        Address of the scheduler, which takes calls.
    n_workers
        Number of workers, on CPUs and GPUs.
    wait
        Waits until the function that it is given returns True.

    Raises
    ------
    ConfigurationError
        As `tasks.execution.cluster.connect`.
    """
    import dask

    from tasks.execution.cluster import connect

    settings = dask.config.collect_yaml([os.fspath(client_config(folder))])
    merged = dask.config.merge(dask.config.global_config, *settings)
    with dask.config.set(merged), connect(address) as client:
        wait(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) >= n_workers)


def find_gpus(tell: Callable[[str], None]) -> list[str]:
    """Return the GPUs that workers can compute on, as ``CUDA_VISIBLE_DEVICES`` names them.

    Parameters
    ----------
    tell
        Is told why a GPU that is here is not used.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(  # noqa: S603 -- a program of the driver
            [program, "--query-gpu=uuid", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    gpus = done.stdout.decode("ascii", "replace").split() if done.returncode == 0 else []
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus and chosen is not None:
        gpus = [gpu for part in chosen.split(",") if (gpu := part.strip()) not in ("", "-1")]
    if gpus and not any(importlib.util.find_spec(plugin) for plugin in _CUDA_PLUGINS):
        tell("no GPU worker: a GPU is here, but jax has no CUDA plugin")
        return []
    return gpus
