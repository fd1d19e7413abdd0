"""Prefect's server with a page that calls nobody else.

``python -m flows.server.orchestrator_page`` is ``prefect server start`` with one addition. The
second version of Prefect's page asks a company for its settings each time that it is loaded,
whatever the server's analytics setting says; and a text that a run leaves behind may name a picture
elsewhere. A content security policy makes the browser refuse both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_POLICY = "; ".join(
    (
        "default-src 'self'",
        # The page of Prefect holds scripts and styles in its document, and compiles its forms.
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "worker-src 'self' blob:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
"""What a browser may load on the page: what the server itself sends."""

_HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode("ascii")),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


class OwnContentOnly:
    """Adds the headers that keep a browser from calling anybody but the server.

    Parameters
    ----------
    app
        The application whose answers get them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        await self._app(scope, receive, send_with_headers)


def serve() -> None:
    """Run the server as Prefect's settings say, until the process is ended."""
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    uvicorn.run(
        OwnContentOnly(create_app(final=True)),
        host=settings.api.host,
        port=settings.api.port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
        server_header=False,
    )


if __name__ == "__main__":
    serve()
