"""The two pages of a local server, neither of which lets a browser load anything from elsewhere.

`orchestrator_page` is ``prefect server start`` with a content security policy. At each load the
second version of Prefect's page requests settings from a company, despite the analytics setting of
the server, and a text of a run may name a picture elsewhere. A browser then refuses both.

`release_pages` shows a release store: published files, and lists of them by dataset and release.
Both are applications for ``uvicorn --factory``.
"""

from __future__ import annotations

import os
import stat
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from flows.local_server import HOST
from storage.settings import load_settings

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_POLICY = (
    "default-src 'self'; "
    # The page of Prefect holds scripts and styles in its document, and compiles its forms.
    "script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "worker-src 'self' blob:; connect-src 'self'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
"""Content policy of the orchestrator's page: a browser loads from the server itself only."""

# A report is one file with its drawings and style in it: nothing else is loaded or run.
_REPORT_POLICY = (
    "default-src 'none'; img-src data: 'self'; style-src 'unsafe-inline' 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def own_content_only(app: ASGIApp, policy: str = CONTENT_POLICY, **more: str) -> ASGIApp:
    """Return an application with headers that keep a browser from calling anybody but us."""
    values = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        **more,
    }
    headers = [(k.encode("ascii"), v.encode("ascii")) for k, v in values.items()]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        await app(scope, receive, send_with_headers)

    return answer


REPORT_FILE = "report.html"  # as of `tasks.reporting.report`, which loads more than a page needs
_LIST = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{font: 1rem/1.6 system-ui, sans-serif; margin: 2rem auto; max-width: 45rem}}</style>
<h1>{title}</h1><ul>{entries}</ul></html>
"""


class PublishedFiles(StaticFiles):
    """The files of a release store and their lists: no link, and no name that begins with a dot."""

    async def check_config(self) -> None:
        """Accept a store that the first release has yet to make."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Return a file, or nothing where a part of the path is hidden or a link."""
        place = Path(str(self.directory))
        for part in path.split(os.sep) if path != "." else ():
            place /= part
            if not _is_shown(place) or "\0" in part:
                return "", None
        return super().lookup_path(path)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or the list of a folder, newest releases first."""
        folder, found = self.lookup_path(path)
        is_folder = path == "." if found is None else stat.S_ISDIR(found.st_mode)
        if not is_folder or scope["method"] not in ("GET", "HEAD"):
            return await super().get_response(path, scope)
        if not scope["path"].endswith("/"):
            return RedirectResponse(f"{quote(Path(path).name)}/")
        shown = sorted(filter(_is_shown, Path(folder).iterdir()), reverse=True) if found else []
        title = "Releases" if path == "." else path
        entries = "".join(map(_entry, shown)) or "none yet"
        return HTMLResponse(_LIST.format(title=escape(title), entries=entries))


def _is_shown(place: Path) -> bool:
    return not place.name.startswith(".") and not place.is_symlink()


def _entry(place: Path) -> str:
    """Return a line of a list: a file, or a folder, with its report where it has one."""
    name, mark = quote(place.name), "/" * place.is_dir()
    report = f' (<a href="{name}/{REPORT_FILE}">report</a>)'
    has_report = mark and _is_shown(place / REPORT_FILE) and (place / REPORT_FILE).is_file()
    return f'<li><a href="{name}{mark}">{escape(place.name)}</a>{report if has_report else ""}</li>'


def release_pages(directory: Path | None = None) -> ASGIApp:
    """Return the application that shows a release store; by default that of the settings."""
    store = PublishedFiles(directory=directory or load_settings().releases, check_dir=False)
    # Against DNS rebinding: a page of another host name must not read the answers.
    known = TrustedHostMiddleware(
        Starlette(routes=[Mount("/", app=store)]), allowed_hosts=[HOST, "localhost"]
    )
    # No cache, so that a removed release disappears at once.
    return own_content_only(known, _REPORT_POLICY, **{"cache-control": "no-store"})


def orchestrator_page() -> ASGIApp:
    """Return Prefect's server, as its settings say."""
    from prefect.server.api.server import create_app

    return own_content_only(create_app(final=True))
