"""An address on the loopback interface that keeps what is posted to it."""

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class WebhookReceiver:
    """Where to post, with a token as webhooks have, and the bodies that came so far."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/hooks/CANARY-webhook-token"
        self.bodies = []

    def wait_for(self, wanted, *, timeout_seconds=60.0):
        """Wait for a body that is wanted; return all such bodies."""
        end = time.monotonic() + timeout_seconds
        while not (found := [body for body in list(self.bodies) if wanted(body)]):
            assert time.monotonic() < end, f"not among the posted: {self.bodies}"
            time.sleep(0.1)
        return found


@contextmanager
def listening():
    """Listen at a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            size = int(self.headers.get("Content-Length", 0))
            receiver.bodies.append(self.rfile.read(size).decode("utf-8", "replace"))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
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
