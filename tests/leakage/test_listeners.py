"""While a release runs, with workers and an orchestrator of its own, nobody outside can call it."""

import ipaddress
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import made_up_release as made
import psutil
import pytest

pytestmark = pytest.mark.integration


def open_sockets(process):
    """Return addresses at which the process can be reached."""
    try:
        found = process.net_connections(kind="inet")
    except psutil.Error:
        return set()
    return {
        tuple(one.laddr)
        for one in found
        if one.status == psutil.CONN_LISTEN or (one.type == socket.SOCK_DGRAM and not one.raddr)
    }


def protocol_of(host, port):
    """Begin a TLS handshake without a certificate, as a stranger would."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=2) as connection,
            context.wrap_socket(connection),
        ):
            return "tls"
    except ssl.SSLError as error:
        return "plain" if "WRONG_VERSION_NUMBER" in str(error) else "tls"
    except OSError:
        return "gone"


N_TLS = 5
"""Scheduler, two nannies, two workers."""


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    folder, site = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("site")
    path = made.write_site(site, method=made.SMALL_CLUSTMIX)
    # The run stands still until every listener was asked, also on a busy machine.
    asked = folder / "asked"
    command = (
        "import made_up_release as made; made.command_at("
        f"'constrained-gmm', {str(path)!r}, lambda: made.wait_for({str(asked)!r}))"
    )
    # Commands by address of each socket that listens or, for datagrams, is bound; and by port what
    # answered a handshake: "tls" or "plain".
    seen = SimpleNamespace(addresses={}, speaks={})
    with (folder / "stderr").open("wb") as stderr:
        process = psutil.Popen(
            [sys.executable, "-c", command],
            cwd=folder,
            env=made.process_environment(folder, dask_workers=2),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        while process.poll() is None:
            for one in made.family_of(process):
                with suppress(psutil.Error):
                    command = " ".join(one.cmdline())
                    for address in open_sockets(one):
                        seen.addresses.setdefault(address, set()).add(command)
            for host, port in list(seen.addresses):
                if seen.speaks.get(port, "gone") == "gone":
                    seen.speaks[port] = protocol_of(host, port)
            if list(seen.speaks.values()).count("tls") >= N_TLS:
                asked.touch()
            time.sleep(0.05)
    seen.exit_code = process.returncode
    seen.stderr = (folder / "stderr").read_text()
    return seen


def test_the_run_succeeds_and_was_seen_whole(observed):
    assert observed.exit_code == 0, observed.stderr
    commands = set().union(*observed.addresses.values())
    assert any("command_at" in command for command in commands)  # scheduler, nannies
    assert any("flows.orchestrator" in command for command in commands)
    assert any("multiprocessing" in command for command in commands)  # workers
    # Scheduler and two workers of one port for calls and one without pages each, two nannies, and
    # the orchestrator.
    assert len(observed.addresses) >= 9


def test_every_listener_is_on_loopback(observed):
    others = {
        address: commands
        for address, commands in observed.addresses.items()
        if not ipaddress.ip_address(address[0]).is_loopback
    }
    assert others == {}


def test_what_takes_code_or_sums_speaks_tls(observed):
    """Without TLS: the orchestrator, which sees no private value, and ports without pages."""
    protocols = list(observed.speaks.values())
    assert protocols.count("tls") >= N_TLS
    # Orchestrator, and beside scheduler and each worker a server without a route.
    assert protocols.count("plain") <= 4


def test_an_open_listener_would_be_seen():
    with socket.socket() as listener, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        listener.bind(("0.0.0.0", 0))  # noqa: S104 -- what the tests above look for
        listener.listen()
        datagrams.bind(("0.0.0.0", 0))  # noqa: S104
        wanted = {listener.getsockname(), datagrams.getsockname()}
        assert wanted <= open_sockets(psutil.Process())
    assert not any(ipaddress.ip_address(host).is_loopback for host, _ in wanted)
