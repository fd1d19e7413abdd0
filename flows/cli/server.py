"""What ``clustmix server start`` and ``clustmix server stop`` do; each returns its exit code."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from flows.cli import terminal
from storage.settings import Settings, load_settings

if TYPE_CHECKING:
    from flows.server.record import ServerRecord


def start(options: argparse.Namespace) -> int:
    """Start every part, and say where each answers."""
    from flows.server.parts import start_server

    settings = load_settings()
    record, started = start_server(settings, port=options.port, n_workers=options.workers, log=_log)
    if options.json:
        terminal.print_json(_as_json(settings, record, started))
    else:
        _show(settings, record, started)
    return 0


def stop(options: argparse.Namespace) -> int:
    """End every process that start has started."""
    from flows.server.parts import stop_server

    stopped = stop_server(load_settings())
    if options.json:
        terminal.print_json({"stopped": list(stopped)})
    elif stopped:
        terminal.line(f"stopped: {', '.join(stopped)}")
    else:
        terminal.line("no part of the server was running")
    return 0


def _log(text: str) -> None:
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()


def _as_json(settings: Settings, record: ServerRecord, started: bool) -> dict[str, object]:
    from flows.server.environment import PASSWORD_FILE

    return {
        "started": started,
        "page": record.address("orchestrator"),
        "password_file": str(settings.server_home / PASSWORD_FILE),
        "landing": settings.landing,
        "releases": record.address("pages") or settings.releases_url,
        "parts": [
            {"name": part.name, "pid": part.pid, "address": part.address, "log": str(part.log)}
            for part in record.parts
        ],
    }


def _show(settings: Settings, record: ServerRecord, started: bool) -> None:
    from flows.server.environment import PASSWORD_FILE

    terminal.line("the server runs" if started else "the server runs already")
    for part in record.parts:
        terminal.line(f"  {part.name:<16}{part.pid:>8}  {part.address}".rstrip())
    # Each in one line, however long, to be copied.
    terminal.line(f"Page:       {record.address('orchestrator')}")
    terminal.line(f"Password:   {settings.server_home / PASSWORD_FILE} (all of its one line)")
    terminal.line(f"Releases:   {record.address('pages') or settings.releases_url}")
    terminal.line(f"Logs:       {settings.server_home}")
    terminal.line(f"Next:       put a table into {settings.landing}, then")
    terminal.line(f"            clustmix ready {settings.landing}/TABLE --dataset NAME")
    terminal.line("            clustmix status shows what goes on, clustmix server stop ends it")
