"""An address on the loopback interface that keeps what is posted to it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WebhookReceiver:
    """What has been posted so far.

    Attributes
    ----------
    url : str
        Where to post; its path is a token, as webhooks have.
    bodies : list of str
        Bodies in their order of arrival.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hooks/CANARY-webhook-token"
        self.bodies: list[str] = []

    def messages(self) -> list[Any]:
        """Return the bodies, read as JSON where they are."""
        return [_read(body) for body in list(self.bodies)]

    def wait_for(
        self, wanted: Callable[[str], bool], *, timeout_seconds: float = 60.0
    ) -> list[str]:
        """Wait for a body that is wanted; return all such bodies."""
        end = time.monotonic() + timeout_seconds
        while not (found := [body for body in list(self.bodies) if wanted(body)]):
            assert time.monotonic() < end, f"not among the posted: {self.bodies}"
            time.sleep(0.1)
        return found


def _read(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


@contextmanager
def listening() -> Iterator[WebhookReceiver]:
    """Listen at a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            receiver.bodies.append(self.rfile.read(size).decode("utf-8", "replace"))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = WebhookReceiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join(10)
