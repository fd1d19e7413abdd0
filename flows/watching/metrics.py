"""Metrics of ``clustmix status`` for Prometheus; no port is opened unless an address is set."""

import base64
import hmac
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from flows.local_server import METRICS_PASSWORD_FILE, kept_secret
from flows.watching.status import Status
from privacy.errors import ClustMixError, refusals
from storage.arrivals.landing import LandingFolder
from storage.files.private import ensure_private_directory
from storage.files.refs import is_loopback

refusal = refusals(__package__)

_TIMEOUT_SECONDS = 10.0


class Readings(Collector):
    """The state of an installation at the moment of a request.

    Privacy
    -------
    Budgets by dataset, states of parts, and counts of waiting releases: no number of rows or
    patients. Times and states depend on the rows, so the numbers are internal.
    """

    def __init__(self, read: Callable[[], Status], landing: str) -> None:
        self._read = read
        self._landing = landing

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read ledger and stores."""
        status = self._read()
        answers = {"ledger": True, "arrivals": True} | status.up
        oldest = [arrival.at for arrival in status.arrivals]
        answers["landing"] = False
        with suppress(ClustMixError):
            lies = LandingFolder(self._landing).oldest()
            oldest += [] if lies is None else [lies]
            answers["landing"] = True
        age = max(((datetime.now(UTC) - one).total_seconds() for one in oldest), default=0.0)
        shares = {one.dataset: one.percent_left / 100 for one in status.datasets}
        releases = {one.dataset: float(one.releases_left) for one in status.datasets}
        for name, meaning, label, values in (
            ("up", "Whether a part works, or a source answers.", "source", answers),
            ("budget_left_ratio", "Share of the scarcest cap that is left.", "dataset", shares),
            ("releases_left", "Releases that the budget allows.", "dataset", releases),
        ):
            gauge = GaugeMetricFamily(f"clustmix_{name}", meaning, labels=[label])
            for key, value in values.items():
                gauge.add_metric([key], float(value))
            yield gauge
        for name, meaning, number in (
            ("reservations_open", "Reservations without an outcome.", len(status.reserved)),
            ("approvals_waiting", "Releases that wait for an officer.", len(status.waiting)),
            ("arrival_oldest_seconds", "Age of the oldest table not released; 0: none.", age),
        ):
            yield GaugeMetricFamily(f"clustmix_{name}", meaning, value=number)


@contextmanager
def answering(
    address: str | None, readings: Collector, *, password_folder: Path, tls: Path | None
) -> Iterator[None]:
    """Answer Prometheus with these readings at an address until the block ends, if there is one.

    The page asks for the password in the private folder, and speaks TLS by the PEM file `tls`. It
    is a ConfigurationError if the address is not of the loopback interface and there is no TLS
    (``METRICS_OPEN``), or if it cannot be listened at (``METRICS_ADDRESS``).
    """
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    context = None if tls is None else _tls(tls)
    if context is None and not is_loopback(host):
        raise refusal("METRICS_OPEN")
    registry = CollectorRegistry()
    registry.register(readings)
    secret = kept_secret(ensure_private_directory(password_folder), METRICS_PASSWORD_FILE)
    app = _for_operator(make_wsgi_app(registry), secret)
    server = None
    with suppress(OSError, OverflowError):
        server = make_server(host, int(port), app, ThreadingWSGIServer, _Handler)
    if server is None:
        raise refusal("METRICS_ADDRESS")
    with server:
        if context is not None:
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


class _Handler(WSGIRequestHandler):
    timeout = _TIMEOUT_SECONDS  # of one that says nothing

    def log_message(self, *_: object) -> None:
        """Write no line for a request."""


def _for_operator(app: Callable[..., Any], secret: str) -> Callable[..., Any]:
    wanted = b"Basic " + base64.b64encode(secret.encode())

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        asked = environ.get("HTTP_AUTHORIZATION", "").encode("utf-8", "replace")
        if hmac.compare_digest(asked, wanted):
            return app(environ, start)
        start("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="clustmix"')])
        return [b""]

    return answer


def _tls(pem: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with suppress(OSError):  # ssl.SSLError is one
        context.load_cert_chain(pem)
        return context
    raise refusal("METRICS_TLS")
