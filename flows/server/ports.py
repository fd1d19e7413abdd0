"""Ports of the loopback interface: which are free, and what answers at them."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import suppress

from flows.server.processes import ServerError

HOST = "127.0.0.1"
DEFAULT_PAGE_PORT = 4200

_ANSWER_TIMEOUT_SECONDS = 10.0


def free_port() -> int:
    """Return a port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def page_port(wanted: int | None) -> int:
    """Return the port of the orchestrator's page.

    Parameters
    ----------
    wanted
        Port that was asked for; None for `DEFAULT_PAGE_PORT` or, where that is taken, a free one.

    Raises
    ------
    ServerError
        If the port that was asked for is taken or cannot be used.
    """
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


def accepts_calls(port: int) -> bool:
    """Return whether something takes connections at a port; raises `OSError` where nothing does."""
    with socket.create_connection((HOST, port), timeout=_ANSWER_TIMEOUT_SECONDS):
        return True


def ask(
    port: int,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    question: object = None,
) -> tuple[int, bytes]:
    """Ask a web server for a path.

    Parameters
    ----------
    port
        Port on the loopback interface.
    path
        What to ask for.
    headers
        Headers of the request.
    question
        Posted as JSON, unless it is None.

    Returns
    -------
    status : int
        Status of the answer; 0 where something else than a web server answers.
    content : bytes
        The answer.

    Raises
    ------
    OSError
        If nobody answers.
    """
    caller = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_TIMEOUT_SECONDS)
    sent = dict(headers or {})
    try:
        if question is None:
            caller.request("GET", path, headers=sent)
        else:
            sent["Content-Type"] = "application/json"
            caller.request("POST", path, json.dumps(question), sent)
        answer = caller.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException:
        return 0, b""
    finally:
        caller.close()
