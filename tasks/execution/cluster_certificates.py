"""A private certificate authority for one Dask cluster over several hosts.

Dask encrypts by mutual TLS and does not compare host names, so whoever holds a certificate that the
cluster accepts may run code on it. An authority of the cluster's own is therefore the whole lock:
it signs one certificate for each role and its key is thrown away without touching a disk. Nobody,
its maker included, can add another certificate later; make a new set instead.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

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

_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
# Scheduler and workers call each other; a client is never called, so that its certificate cannot
# pass for a scheduler.
_USES = {"scheduler": (_SERVER, _CLIENT), "worker": (_SERVER, _CLIENT), "client": (_CLIENT,)}
# Clocks of hosts differ.
_BACKDATED = timedelta(minutes=5)


def make_certificates(folder: Path, *, days: int = 30) -> None:
    """Make an authority and one certificate for each role, with the Dask settings to use them.

    Copy the folder of a role to the same path on the hosts of that role, and start
    ``dask scheduler``, ``dask worker`` or ``clustmix`` there with ``DASK_CONFIG`` set to its
    ``dask.yaml``. The folders ``scheduler``, ``worker`` and ``client`` have mode 0700; each holds
    ``ca.pem``, ``cert.pem``, ``key.pem`` and ``dask.yaml``, of mode 0600. The certificates last for
    1 to `MAX_DAYS` days. It is a ConfigurationError if the folder exists or cannot be made.
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
    folder = folder.expanduser().absolute()
    ensure_private_directory(folder)
    begin = datetime.now(UTC) - _BACKDATED
    validity = (begin, begin + _BACKDATED + timedelta(days=days))
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _authority(authority_key, validity)
    for role in ROLES:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(role, key, authority, authority_key, validity)
        home = ensure_private_directory(folder / role)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_durably(home / "key.pem", pem)
        write_durably(home / "cert.pem", certificate.public_bytes(Encoding.PEM))
        write_durably(home / "ca.pem", authority.public_bytes(Encoding.PEM))
        write_durably(home / "dask.yaml", yaml.safe_dump(_settings(role, home)).encode())
        fsync_directory(home)


def _settings(role: str, home: Path) -> dict[str, object]:
    """Return the Dask settings of one role."""
    settings: dict[str, object] = {
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": os.fspath(home / "ca.pem"),
        f"distributed.comm.tls.{role}.cert": os.fspath(home / "cert.pem"),
        f"distributed.comm.tls.{role}.key": os.fspath(home / "key.pem"),
    }
    if role != "client":
        settings |= CLUSTER_SETTINGS
    # A file holds mappings, not dotted names; one name may be the beginning of no other.
    nested: dict[str, object] = {}
    for name, value in settings.items():
        *above, last = name.split(".")
        place = nested
        for part in above:
            place = place.setdefault(part, {})  # type: ignore[assignment]
        place[last] = dict(value) if isinstance(value, dict) else value
    return nested


def _authority(
    key: ec.EllipticCurvePrivateKey, validity: tuple[datetime, datetime]
) -> x509.Certificate:
    # Of random name, so that two authorities are never taken for one another.
    name = _name(f"clustmix-authority-{os.urandom(4).hex()}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        _builder(name, name, key.public_key(), validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, SHA256())
    )


def _certificate(
    role: str,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    validity: tuple[datetime, datetime],
) -> x509.Certificate:
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    name = f"clustmix-{role}"
    return (
        _builder(_name(name), authority.subject, key.public_key(), validity)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_USES[role]), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, SHA256())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    validity: tuple[datetime, datetime],
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity[0])
        .not_valid_after(validity[1])
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
