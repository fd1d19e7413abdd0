"""A cluster over several hosts: certificates of an authority of its own, and checked settings.

Scheduler and workers are the programs that an operator starts, in processes of their own.
"""

import asyncio
import re
import stat

import distributed
import pytest
from cryptography import x509
from dask_programs import PAGES_HERE, running, using

from privacy.errors import ConfigurationError
from tasks.execution.cluster import MAX_DAYS, ROLES, connect, make_certificates

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(certificates, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with running(folder, certificates=certificates, workers=[PAGES_HERE] * 2) as address:
        yield address


def test_keys_are_for_their_owner_and_the_authority_key_is_nowhere(certificates):
    folders = {path.name: path for path in certificates.iterdir()}
    assert set(folders) == set(ROLES)
    for folder in (certificates, *folders.values()):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for folder in folders.values():
        files = sorted(path.name for path in folder.iterdir())
        assert files == ["ca.pem", "cert.pem", "dask.yaml", "key.pem"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    # One key for each role, and none that fits the authority's certificate.
    contents = [path.read_bytes() for path in certificates.rglob("*") if path.is_file()]
    keys = [content for content in contents if b"PRIVATE" in content]
    assert len(set(keys)) == len(keys) == len(ROLES)


def test_certificates_are_short_lived_and_say_their_use(certificates):
    uses = {}
    for role in ROLES:
        authority, leaf = (
            x509.load_pem_x509_certificate((certificates / role / name).read_bytes())
            for name in ("ca.pem", "cert.pem")
        )
        leaf.verify_directly_issued_by(authority)
        assert (leaf.not_valid_after_utc - leaf.not_valid_before_utc).days == 30
        extension = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
        assert extension.critical
        uses[role] = sorted(use._name for use in extension.value)
        basic = leaf.extensions.get_extension_for_class(x509.BasicConstraints).value
        assert not basic.ca
    assert uses == {
        "scheduler": ["clientAuth", "serverAuth"],
        "worker": ["clientAuth", "serverAuth"],
        "client": ["clientAuth"],
    }


def test_existing_folder_is_never_touched(certificates, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for folder in (certificates, tmp_path / "link"):
        with pytest.raises(ConfigurationError, match="CERTIFICATES_EXIST: expected a new folder"):
            make_certificates(folder)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("days", [0, -1, MAX_DAYS + 1])
def test_long_validity_is_refused(tmp_path, days):
    message = f"CERTIFICATE_DAYS: expected certificates valid for 1 to 366 days, found {days};"
    with pytest.raises(ConfigurationError, match=message):
        make_certificates(tmp_path / "set", days=days)
    assert not (tmp_path / "set").exists()


def test_certificate_of_another_authority_is_refused(cluster, tmp_path):
    of_another_authority = tmp_path / "set"
    make_certificates(of_another_authority)
    with using(of_another_authority):
        with (
            pytest.raises(ConfigurationError, match="SCHEDULER_UNREACHABLE: expected a Dask sched"),
            connect(cluster, timeout_seconds=3),
        ):
            pass
        security = distributed.Security().get_connection_args("client")
    with pytest.raises(OSError, match="TLS certificate does not match"):
        asyncio.run(distributed.comm.connect(cluster, timeout=3, **security))


def test_client_certificate_cannot_pass_for_a_scheduler(certificates, tmp_path):
    """Hold a listener with the client's certificate: other members of the cluster refuse it."""
    with using(certificates):
        listen = distributed.Security().get_listen_args("client")
    with using(certificates, "worker"):
        connection = distributed.Security().get_connection_args("worker")

    async def meet():
        async def never(comm):
            raise AssertionError("let in")

        async with distributed.comm.listen("tls://127.0.0.1:0", never, **listen) as listener:
            await distributed.comm.connect(listener.contact_address, timeout=3, **connection)

    with pytest.raises(OSError, match=r"TLS certificate does not match|Timed out"):
        asyncio.run(meet())


EVERYBODY = ("--dashboard-address", "0.0.0.0:0")
SAFE_MEMORY = {
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False",
}
UNSAFE = {
    "spills by default": (
        {},
        r"set distributed.worker.memory.spill to false .found 0.7.; "
        r"set distributed.worker.memory.target to false .found 0.6.",
    ),
    "worker dashboard for everybody": (
        {"workers": (EVERYBODY,), **SAFE_MEMORY},
        r"set --dashboard-address of the workers to 127.0.0.1:0 .found 0.0.0.0:\d+.",
    ),
    "scheduler dashboard for everybody": (
        {"scheduler": EVERYBODY, **SAFE_MEMORY},
        r"set --dashboard-address of the scheduler to 127.0.0.1:0 .found 0.0.0.0:\d+.",
    ),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_cluster_is_refused_by_the_setting(tmp_path, name):
    options, message = UNSAFE[name]
    with (
        running(tmp_path, certificates=None, **options) as address,
        pytest.raises(ConfigurationError) as caught,
        connect(address),
    ):
        pass
    assert re.fullmatch(
        "CLUSTER_SETTINGS: expected a cluster that writes nothing to a disk and listens on "
        f"loopback or with certificates, found one that does not: {message}; "
        "start it again with these settings",
        str(caught.value),
    )
