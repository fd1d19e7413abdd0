"""Servers on the loopback interface; one keeps what is posted to it."""

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
def serving(answer):
    """Call a function with the handler of each request, at a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        do_GET = do_POST = answer

        def log_message(self, *_):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(10)


@contextmanager
def listening():
    def keep(request):
        size = int(request.headers.get("Content-Length", 0))
        receiver.bodies.append(request.rfile.read(size).decode("utf-8", "replace"))
        request.send_response(204)
        request.end_headers()

    with serving(keep) as port:
        receiver = WebhookReceiver(port)
        yield receiver
