"""Read-only pages of the release store, for the links of the orchestrator to a report.

Loopback only, without lists of folders, and nothing but the files that a release has published:
no name that begins with a dot and no link is followed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Scope

HOST = "127.0.0.1"

_HEADERS = {
    # A report is one file with its drawings and style in it: nothing else is loaded or run.
    "Content-Security-Policy": (
        "default-src 'none'; img-src data: 'self'; style-src 'unsafe-inline' 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A revoked release is gone from the next look on.
    "Cache-Control": "no-store",
}


class PublishedFiles(StaticFiles):
    """The files of a release store by their paths, as anybody may read them.

    Parameters
    ----------
    directory
        The release store, which the first release makes.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory=directory, html=False, check_dir=False)
        self._root = directory

    async def check_config(self) -> None:
        """Accept a store that the first release has yet to make."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Return a file, or nothing where a part of the path is hidden or a link."""
        place = self._root
        for part in path.split(os.sep):
            place /= part
            if part.startswith(".") or "\0" in part or place.is_symlink():
                return "", None
        return super().lookup_path(path)

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """Return the answer with headers that keep a page to itself."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_HEADERS)
        return response


def release_pages(directory: Path) -> Starlette:
    """Return the web application that shows a release store.

    Parameters
    ----------
    directory
        The release store.
    """
    return Starlette(
        routes=[Mount("/", app=PublishedFiles(directory))],
        # A name that somebody made point here must not let a strange page read the answers.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])],
    )


def serve(directory: Path, port: int) -> None:
    """Show a release store on the loopback interface until the process is ended."""
    import uvicorn

    uvicorn.run(
        release_pages(directory), host=HOST, port=port, log_level="warning", server_header=False
    )


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
