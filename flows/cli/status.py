"""What the command ``clustmix status`` does; it returns its exit code."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from flows.cli import terminal
from flows.server.parts import join_server
from storage.settings import load_settings
from tasks.execution.runtime import safe_environment

if TYPE_CHECKING:
    from flows.operations.status import Status

_NAME = 18
_STATE = 11
_TIME = 16


def status(options: argparse.Namespace) -> int:
    """Show what the page of the orchestrator shows, and what the ledger and the stores know."""
    join_server(load_settings())
    os.environ.update(safe_environment())
    # After the environment that names the server, which it reads once.
    from flows.operations.status import look

    found = look(load_settings())
    if options.json:
        terminal.print_json(found.as_json())
    else:
        show(found)
    return 0


def show(found: Status) -> None:
    """Show a status in lines of at most 80 characters; times are those of this machine."""
    parts = [_part(part.name, part.text, good=part.answers) for part in found.parts]
    _section("Parts", parts)
    if found.is_served:
        title = "Last runs"
        happened = [
            _happened(run.at, run.flow, run.state, run.name, run.reason) for run in found.runs
        ]
    else:
        title = "Last entries of the ledger"
        happened = [
            _happened(e.since, "", e.state, f"{e.dataset}/{e.release_id}", e.reason)
            for e in found.entries
        ]
    _section(title, happened)
    waiting = [f"{entry.release_id}  {entry.dataset}" for entry in found.waiting]
    decide = "clustmix approve RELEASE --key FILE --reason TEXT, or reject"
    _section("Waiting for an officer", waiting, then=decide)
    arrivals = [
        f"{_time(a.accepted_at)}  {a.arrival_id}  {a.state:<9} {_shortened(a.dataset, 28)}"
        for a in found.arrivals
    ]
    _section("Arrivals that are not released yet", arrivals)
    if found.refused_arrivals:
        refused = [f"{_time(each.at)}  {each.reason}" for each in found.refused_arrivals]
        _section("Refused arrivals", refused)
    _section("Datasets", [_dataset(*row) for row in _datasets(found)])
    runs = [f"{_time(run.at)}  {run.deployment}" for run in found.next_runs]
    _section("Next scheduled runs", runs)


def _section(title: str, lines: Iterable[str], *, then: str | None = None) -> None:
    terminal.line(title)
    lines = list(lines)
    for text in lines or ["none"]:
        terminal.line(textwrap.indent(text, "  "))
    if lines and then is not None:
        terminal.line(f"  {then}")


def _part(name: str, text: str, *, good: bool) -> str:
    return textwrap.fill(
        text,
        terminal.WIDTH - 2,
        initial_indent=f"{'ok' if good else 'FAIL':<5} {name:<{_NAME}} ",
        subsequent_indent=" " * (_NAME + 7),
        break_on_hyphens=False,
    )


def _happened(at: datetime | None, flow: str, state: str, name: str, reason: str) -> str:
    """Return a run in one line; the reason for its end, where there is one, in another."""
    flow = f"{flow:<8}" if flow else ""
    line = f"{_time(at)}  {flow}{state[:_STATE]:<{_STATE}} "
    line += _shortened(name, terminal.WIDTH - 2 - len(line))
    return f"{line}\n{'':<{_TIME + 2}}{reason}" if reason else line


def _datasets(found: Status) -> list[tuple[str, str, str, str]]:
    if not found.datasets:
        return []
    return [
        ("dataset", "left", "releases left", "last release"),
        *(
            (d.dataset, f"{d.percent_left} %", f"{d.releases_left}", d.last_release or "none yet")
            for d in found.datasets
        ),
    ]


def _dataset(name: str, left: str, releases: str, last: str) -> str:
    return f"{_shortened(name, 34):<34}{left:>6}{releases:>15}  {last}"


def _shortened(name: str, width: int) -> str:
    """Return a name that fits: what tells releases apart is at its end."""
    return name if len(name) <= width else f"...{name[3 - width :]}"


def _time(at: datetime | None) -> str:
    return " " * _TIME if at is None else f"{at.astimezone():%Y-%m-%d %H:%M}"
