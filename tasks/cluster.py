"""The Dask cluster that a run computes on: its own worker processes, or a running scheduler."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import dask
import distributed
from distributed.security import Security

from privacy.errors import ConfigurationError
from storage.settings import ensure_private_directory

# One thread each, since the workers together fill the cores; no share of the GPU taken ahead.
_WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "DO_NOT_TRACK": "1",
}

_DASK_SETTINGS = {
    # Private arrays stay in memory: no spilling, whatever the memory.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.nanny.pre-spawn-environ": _WORKER_ENVIRONMENT,
    # A lost worker ends the run: what it worked on is not tried on the next one.
    "distributed.scheduler.allowed-failures": 0,
    # Scheduler and workers open an HTTP port even without a dashboard, and it asks for no
    # certificate: without routes it has nothing to tell.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # Nothing about the run is kept.
    "distributed.diagnostics.nvml": False,
    "distributed.admin.log-length": 0,
    "distributed.admin.low-level-log-length": 0,
}


@contextmanager
def local_cluster(n_workers: int, scratch_directory: Path) -> Iterator[distributed.Client]:
    """Start worker processes on this machine and stop them at the end of the block.

    Parameters
    ----------
    n_workers
        Number of processes, of one thread each.
    scratch_directory
        Directory of mode 0700 for the workers' locks and sockets; created if missing.

    Yields
    ------
    distributed.Client
        Client of the cluster.

    Privacy
    -------
    Loopback only, and with certificates made for this cluster: without them, every user of the
    machine could submit code to it. No dashboard, no spilling to disk, no logs.
    """
    ensure_private_directory(scratch_directory)
    # silence_logs reaches the library's own handler, not that of an orchestrator that took over.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with (
        dask.config.set(_DASK_SETTINGS),
        distributed.LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            protocol="tls",
            security=Security.temporary(),
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            memory_limit=0,
            local_directory=os.fspath(scratch_directory),
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def connect(address: str, *, timeout_seconds: float = 30.0) -> Iterator[distributed.Client]:
    """Connect to a running scheduler.

    Parameters
    ----------
    address
        ``tls://host:port``, with the certificates named by Dask's own settings
        (``DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT``, ``..._KEY``, ``..._CA_FILE``), or
        ``tcp://`` on a loopback address.
    timeout_seconds
        How long to wait for the scheduler.

    Yields
    ------
    distributed.Client
        Connected client.

    Raises
    ------
    ConfigurationError
        If the address would send private sums over a network in clear, or nobody answers.
    """
    parts = urlsplit(address)
    if parts.scheme != "tls" and not (parts.scheme == "tcp" and _is_loopback(parts.hostname)):
        raise ConfigurationError(
            "INSECURE_SCHEDULER",
            f"expected tls://host:port, or tcp:// on a loopback address, found {address}: sums of "
            "private rows travel on this connection; give the scheduler and workers certificates",
        )
    security = Security()
    if parts.scheme == "tls" and not security.get_connection_args("client")["ssl_context"]:
        raise ConfigurationError(
            "SCHEDULER_CERTIFICATE",
            f"expected a client certificate for {address}, found none; set "
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT, ..._KEY and ..._CA_FILE",
        )
    client = None
    # A plain connection first: a client that fails to start leaves a thread behind.
    with (
        suppress(OSError, ValueError),
        socket.create_connection((parts.hostname, parts.port), timeout_seconds),
    ):
        client = distributed.Client(
            address, timeout=timeout_seconds, security=security, set_as_default=False
        )
    if client is None:
        raise ConfigurationError(
            "SCHEDULER_UNREACHABLE",
            f"expected a Dask scheduler at {address}, found none that answers; start it, or unset "
            "CLUSTMIX_DASK_ADDRESS to compute on this machine",
        )
    with client:
        yield client


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return False
