"""An address on the loopback interface that keeps what is posted to it."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from waiting import until


class WebhookReceiver:
    """Where to post, with a token as webhooks have, and the bodies that came so far."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/hooks/CANARY-webhook-token"
        self.bodies = []

    def wait_for(self, wanted, *, timeout_seconds=60.0):
        return until(
            lambda: [body for body in list(self.bodies) if wanted(body)],
            what=lambda: f"not among the posted: {self.bodies}",
            seconds=timeout_seconds,
            every=0.1,
        )


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
