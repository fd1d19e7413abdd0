"""A private certificate authority for one Dask cluster over several hosts.

Dask encrypts by mutual TLS and does not compare host names, so whoever holds a certificate that the
cluster accepts may run code on it. An authority of the cluster's own is therefore the whole lock:
it signs one certificate for each role, and its key is thrown away without touching a disk. Nobody,
its maker included, can add another certificate later; make a new set instead.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dask
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from privacy.errors import ConfigurationError
from storage.files.private import ensure_private_directory, fsync_directory, write_durably
from tasks.execution.cluster import CLUSTER_SETTINGS

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
        raise ConfigurationError(
            "CERTIFICATE_DAYS",
            f"expected certificates valid for 1 to {MAX_DAYS} days, found {days}; choose a shorter "
            "time and make new ones when it ends",
        )
    if os.path.lexists(folder):
        raise ConfigurationError(
            "CERTIFICATES_EXIST",
            f"expected a new folder, found that {folder} exists; certificates are never replaced: "
            "choose another folder",
        )
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
