"""The Dask cluster that a run computes on: its own worker processes, or a running scheduler.

One over several hosts has a certificate authority of its own. Dask encrypts by mutual TLS and does
not compare host names, so whoever holds a certificate that the cluster accepts may run code on it.
The authority is therefore the whole lock: it signs one certificate for each role, and its key is
thrown away without touching a disk. Not even its maker can add a certificate later: make a new set.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import dask
import distributed
import psutil
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from distributed.core import Status
from distributed.security import Security
from tornado.ioloop import IOLoop, PeriodicCallback

from privacy.errors import refusals
from storage.files.documents import listed
from storage.files.private import ensure_private_directory, fsync_directory, write_durably
from storage.files.refs import is_loopback
from storage.files.workspace import forbid_core_dumps

refusal = refusals(__package__)

_LOOK_MILLISECONDS = 1_000

CLUSTER_SETTINGS = listed("tasks.execution", "cluster.toml")
"""Dask settings of every process of a cluster that computes on private rows."""

Unsafe = tuple[str, str, str]
"""A setting, what it was found to be, and what it has to be."""


@contextmanager
def local_cluster(n_workers: int, scratch_directory: Path) -> Iterator[distributed.Client]:
    """Start worker processes of one thread each on this machine; stop them at the end of the block.

    The directory for locks and sockets, of mode 0700, is created if missing; dead workers restart.

    Privacy
    -------
    Loopback only, and with certificates made for this cluster: without them, every user of the
    machine could submit code to it. No dashboard, no spilling to disk, no logs.
    """
    ensure_private_directory(scratch_directory)
    # silence_logs reaches the library's own handler, not that of an orchestrator that took over.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with (
        dask.config.set(CLUSTER_SETTINGS),
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
        _keeping_workers(cluster, n_workers),
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def _keeping_workers(cluster: distributed.LocalCluster, n_workers: int) -> Iterator[None]:
    """Replace nannies that ended: one does if the worker that it starts dies before it is ready."""

    def replace_ended() -> None:
        ended = [
            name
            for name, nanny in cluster.workers.items()
            if nanny.status in (Status.closed, Status.failed)
        ]
        for name in ended:
            del cluster.workers[name]
        if ended:
            cluster.scale(n_workers)

    loop, look = cast(IOLoop, cluster.loop), PeriodicCallback(replace_ended, _LOOK_MILLISECONDS)
    loop.add_callback(look.start)
    try:
        yield
    finally:
        loop.add_callback(look.stop)


@contextmanager
def connect(address: str, *, timeout_seconds: float = 30.0) -> Iterator[distributed.Client]:
    """Connect to a running scheduler whose processes keep private sums to themselves.

    The address is ``tls://host:port``, with certificates of Dask's settings
    (``DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT``, ``..._KEY``, ``..._CA_FILE``), or ``tcp://`` on
    a loopback address. It is a ConfigurationError if private sums would cross a network in clear,
    nobody answers in time, or cluster processes may write sums to disk or show them to strangers.

    Privacy
    -------
    Scheduler and workers are asked before anything is sent to them, and core dumps of the workers
    are turned off, as by every item of `tasks.execution.dask_executor`. A worker that joins later
    is not asked: only who holds a certificate of the cluster's own authority can start one, see
    `make_certificates`, and the replacement of a dead worker has its settings.
    """
    parts = urlsplit(address)
    if parts.scheme != "tls" and not (parts.scheme == "tcp" and is_loopback(parts.hostname or "")):
        raise refusal("INSECURE_SCHEDULER", address=address)
    security = Security()
    if parts.scheme == "tls" and not security.get_connection_args("client")["ssl_context"]:
        raise refusal("SCHEDULER_CERTIFICATE", address=address)
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
        raise refusal("SCHEDULER_UNREACHABLE", address=address)
    with client:
        _refuse_unsafe(client, timeout_seconds)
        yield client


def unsafe_scheduler(dask_scheduler: distributed.Scheduler) -> list[Unsafe]:
    """Return the settings of a scheduler that no private sum may meet; runs on the scheduler."""
    found = _exposed(dask_scheduler, "the scheduler")
    if dask_scheduler.jupyter:
        found.append(("--jupyter of the scheduler", "on", "off"))
    return found


def unsafe_worker(dask_worker: distributed.Worker) -> list[Unsafe]:
    """As `unsafe_scheduler`, on a worker, whose core dumps are off from here on."""
    forbid_core_dumps()
    found = _exposed(dask_worker, "the workers")
    memory = dask_worker.memory_manager
    for name in ("target", "spill"):
        fraction = getattr(memory, f"memory_{name}_fraction")
        if memory.memory_limit and fraction:
            found.append((f"distributed.worker.memory.{name}", str(fraction), "false"))
    return found


def _exposed(server: distributed.node.ServerNode, whose: str) -> list[Unsafe]:
    """Return what this process listens on beyond loopback and without certificates."""
    found: list[Unsafe] = []
    for listener in server.listeners:
        address = urlsplit(listener.listen_address)
        if address.scheme != "tls" and not is_loopback(address.hostname):
            wanted = "true, with certificates"
            found.append((f"distributed.comm.require-encryption of {whose}", "false", wanted))
    # Every port of the process, whatever opened it: a dashboard, a preload script, a plugin.
    called = {urlsplit(listener.listen_address).port for listener in server.listeners}
    for connection in psutil.Process().net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN:
            continue
        host, port = connection.laddr
        if not is_loopback(host) and port not in called:
            found.append((f"--dashboard-address of {whose}", f"{host}:{port}", "127.0.0.1:0"))
    return found


def _refuse_unsafe(client: distributed.Client, timeout_seconds: float) -> None:
    found: set[Unsafe] = set()
    try:
        client.wait_for_workers(1, timeout=timeout_seconds)
    except TimeoutError:
        raise refusal("CLUSTER_EMPTY", timeout_seconds=timeout_seconds) from None
    failed = ""
    try:
        found.update(client.run_on_scheduler(unsafe_scheduler))
        for unsafe in client.run(unsafe_worker).values():
            found.update(unsafe)
    except Exception as error:
        failed = type(error).__name__
    if failed:
        raise refusal("CLUSTER_SETTINGS unknown", failed=failed)
    if found:
        wrong = "; ".join(
            f"set {name} to {wanted} (found {value})" for name, value, wanted in sorted(found)
        )
        raise refusal("CLUSTER_SETTINGS", wrong=wrong)


ROLES = ("scheduler", "worker", "client")
MAX_DAYS = 366

# Clocks of hosts differ.
_BACKDATED = timedelta(minutes=5)


def make_certificates(folder: Path, *, days: int = 30) -> None:
    """Make an authority and one certificate for each role, with the Dask settings to use them.

    Copy the folder of a role to the same path on the hosts of that role, and start
    ``dask scheduler``, ``dask worker`` or ``clustmix`` there with ``DASK_CONFIG`` set to its
    ``dask.yaml``. The folders ``scheduler``, ``worker`` and ``client`` have mode 0700; each holds
    ``ca.pem``, ``cert.pem``, ``key.pem`` and ``dask.yaml``, of mode 0600. It is a
    ConfigurationError if the folder exists, cannot be made, or `days` is not in 1 to `MAX_DAYS`.
    ECDSA on P-256 with SHA-256 (FIPS 186-5), X.509 version 3 with the extensions of RFC 5280.
    """
    if not 1 <= days <= MAX_DAYS:
        raise refusal("CERTIFICATE_DAYS", most=MAX_DAYS, days=days)
    if os.path.lexists(folder):
        raise refusal("CERTIFICATES_EXIST", folder=folder)
    folder = ensure_private_directory(folder.expanduser().absolute())
    # Of random name, so that two authorities are never taken for one another.
    issuer = _name(f"clustmix-authority-{os.urandom(4).hex()}")
    signer = ec.generate_private_key(ec.SECP256R1())
    authority = _signed(issuer, signer, issuer, signer, days=days, uses=())
    for role in ROLES:
        home, key = ensure_private_directory(folder / role), ec.generate_private_key(ec.SECP256R1())
        # Nobody calls a client, so its certificate cannot pass for a scheduler.
        server = () if role == "client" else (ExtendedKeyUsageOID.SERVER_AUTH,)
        uses = (*server, ExtendedKeyUsageOID.CLIENT_AUTH)
        certificate = _signed(_name(f"clustmix-{role}"), key, issuer, signer, days=days, uses=uses)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_durably(home / "key.pem", pem)
        write_durably(home / "cert.pem", certificate.public_bytes(Encoding.PEM))
        write_durably(home / "ca.pem", authority.public_bytes(Encoding.PEM))
        write_durably(home / "dask.yaml", yaml.safe_dump(_settings(role, home)).encode())
        fsync_directory(home)


def _settings(role: str, home: Path) -> dict[str, Any]:
    """Return the Dask settings of one role, nested as a file holds them."""
    tls = {"cert": os.fspath(home / "cert.pem"), "key": os.fspath(home / "key.pem")}
    dotted: dict[str, Any] = {
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": os.fspath(home / "ca.pem"),
        f"distributed.comm.tls.{role}": tls,
    }
    nested: dict[str, Any] = {}
    dask.config.set(dotted | ({} if role == "client" else CLUSTER_SETTINGS), config=nested)
    return nested


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    *,
    days: int,
    uses: tuple[x509.ObjectIdentifier, ...],
) -> x509.Certificate:
    """Return a certificate for these uses, that of an authority if there are none."""
    usage = dict.fromkeys(
        "content_commitment key_encipherment data_encipherment key_agreement crl_sign "
        "encipher_only decipher_only".split(),
        False,
    )
    begin = datetime.now(UTC) - _BACKDATED
    builder = x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(),
        begin, begin + _BACKDATED + timedelta(days=days),
    )  # fmt: skip
    builder = builder.add_extension(x509.BasicConstraints(not uses, None if uses else 0), True)
    builder = builder.add_extension(
        x509.KeyUsage(digital_signature=bool(uses), key_cert_sign=not uses, **usage), True
    )
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False
    ).add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False)
    if uses:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), True)
    return builder.sign(signer, SHA256())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
