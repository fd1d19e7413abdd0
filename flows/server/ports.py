"""Ports of the loopback interface: which are free, and what answers at them."""

import socket
import uuid
from contextlib import suppress
from datetime import datetime

import httpx

from flows.server.record import ServerError

HOST = "127.0.0.1"
DEFAULT_PAGE_PORT = 4200

_ANSWER_SECONDS = 10.0


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def page_port(wanted: int | None) -> int:
    """Return the page's port: that wanted (else ServerError), `DEFAULT_PAGE_PORT` or a free one."""
    port = DEFAULT_PAGE_PORT if wanted is None else wanted
    with socket.socket() as probe:
        # As servers do: a connection that has just ended does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError, OverflowError):
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    if wanted is None:
        return free_port()
    raise ServerError(
        "SERVER_PORT_TAKEN",
        f"expected port {wanted} of {HOST} to be free, found that it cannot be used; choose "
        "another one, or none to be given one",
    )


def port_of(address: str) -> int:
    """Return the port of an address that ends with one."""
    return int(address.rpartition(":")[2])


def accepts_calls(address: str) -> bool:
    """Return whether something takes connections at an address of this machine."""
    with suppress(OSError), socket.create_connection((HOST, port_of(address)), _ANSWER_SECONDS):
        return True
    return False


def web_status(address: str) -> int:
    """Return the status of the answer of a web server; 0 where none answers."""
    with suppress(httpx.HTTPError):
        # No proxy of the environment: this is the loopback interface.
        return httpx.get(address, timeout=_ANSWER_SECONDS, trust_env=False).status_code
    return 0


def has_worker(page: str, password: str, pool: str, *, since: float) -> bool:
    """Return whether a worker of a pool has called, and not only one of an earlier start.

    The page is asked without Prefect's client: to import that takes longer than most parts need to
    start. The password is ``name:password``, and `since` in seconds since 1970.
    """
    client = uuid.uuid4().hex
    with (
        suppress(httpx.HTTPError),
        httpx.Client(
            base_url=f"{page}/api",
            auth=httpx.BasicAuth(*password.split(":", 1)),
            headers={"Prefect-Csrf-Client": client},
            timeout=_ANSWER_SECONDS,
            trust_env=False,
        ) as caller,
    ):
        token = caller.get("/csrf-token", params={"client": client}).raise_for_status().json()
        caller.headers["Prefect-Csrf-Token"] = token["token"]
        found = caller.post(f"/work_pools/{pool}/workers/filter", json={}).raise_for_status()
        last = (datetime.fromisoformat(one["last_heartbeat_time"]) for one in found.json())
        return any(moment.timestamp() >= since for moment in last)
    return False
