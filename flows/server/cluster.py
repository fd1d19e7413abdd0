"""The Dask cluster of a local server: its programs, their certificates, and a check of them."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from flows.server.ports import HOST, port_of
from flows.server.processes import Program
from storage.files.private import ensure_private_directory

CPU_WORKERS = "cpu-workers"
SCHEDULER = "scheduler"

_CERTIFICATE_DAYS = 366
_CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def client_config(folder: Path) -> Path:
    """Return the Dask settings of a client of the cluster, for ``DASK_CONFIG``."""
    return folder / "certificates" / "client" / "dask.yaml"


def cluster_parts(
    folder: Path, address: str, common: Mapping[str, str], *, n_workers: int, gpus: list[str]
) -> list[Program]:
    """Make new certificates and return the parts of a cluster that uses them, by common variables.

    CPU workers, of one process and one thread, offer the resource ``CPU``, each GPU worker ``GPU``:
    work that names one of them runs nowhere else. The scheduler has a ``tls://`` address.
    """
    from tasks.execution.cluster_certificates import make_certificates

    certificates = folder / "certificates"
    # Those of an earlier start: its processes have ended.
    shutil.rmtree(certificates, ignore_errors=True)
    make_certificates(certificates, days=_CERTIFICATE_DAYS)
    scratch = str(ensure_private_directory(folder / "dask"))
    local = ("--host", HOST, "--dashboard-address", f"{HOST}:0")

    def part(name: str, role: str, *words: str, **variables: str) -> Program:
        config = {"DASK_CONFIG": str(certificates / role / "dask.yaml")}
        return Program(
            name=name,
            command=(sys.executable, "-m", "dask", role, *local, *words),
            environment={**common, **config, **variables},
            address=address if name == SCHEDULER else "",
        )

    def worker(name: str, *words: str, **variables: str) -> Program:
        alone = ("--nthreads", "1", "--memory-limit", "0", "--local-directory", scratch)
        return part(name, "worker", address, *alone, *words, **variables)

    cpu = ("--nworkers", str(n_workers), "--resources", "CPU=1")
    return [
        part(SCHEDULER, "scheduler", "--port", str(port_of(address)), "--no-show"),
        worker(CPU_WORKERS, *cpu, JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES=""),
        *(
            worker(f"gpu-worker-{number}", "--resources", "GPU=1", CUDA_VISIBLE_DEVICES=gpu)
            for number, gpu in enumerate(gpus)
        ),
    ]


def find_gpus(log: Callable[[str], None]) -> list[str]:
    """Return the usable GPUs as ``CUDA_VISIBLE_DEVICES`` names them; log why one is not."""
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
        log("no GPU worker: a GPU is here, but jax has no CUDA plugin")
        return []
    return gpus
