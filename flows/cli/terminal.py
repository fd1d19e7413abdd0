"""What the command line shows: progress by stage, tables, and one-line failures.

Progress goes to standard error, answers to standard output. All of it is public.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from flows.stages import text_of
from privacy.errors import ClustMixError
from privacy.parameters import Adjacency

if TYPE_CHECKING:
    from flows.operations.doctor import Finding
    from flows.publication import ReleaseOutcome
    from flows.site.site_file import SiteFile
    from privacy.ledger import Balance, LedgerEntry

WIDTH = 80

_INDENT = 12

_ADJACENCY_TEXTS = {
    Adjacency.ADD_REMOVE: "add or remove one patient",
    Adjacency.REPLACE_ONE: "replace one patient",
}


def line(text: str) -> None:
    """Write one paragraph to standard output."""
    sys.stdout.write(text + "\n")


def print_json(answer: object) -> None:
    """Write an answer for a program to standard output."""
    sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")


def paragraph(title: str, text: str) -> None:
    """Write a text beside its title, wrapped; no path is broken."""
    wrapped = textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"{title + ':':<{_INDENT}}",
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    line(wrapped)


def failure(error: ClustMixError, *, as_json: bool) -> None:
    """Write a failure: one line for people, and an object for programs."""
    if as_json:
        print_json({"error": error.code, "message": error.message, "exit_code": error.exit_code})
    sys.stderr.write(f"{_erase()}clustmix: {error.code}: {error.message}\n")


def _erase() -> str:
    """Clear the line on a terminal, where the stage that runs may stand in it."""
    return "\r\x1b[K" if sys.stderr.isatty() else ""


class Progress:
    """Shows the stages of a run as they end, with their seconds."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self.stage_seconds: dict[str, float] = {}

    def __call__(self, name: str, seconds: float | None) -> None:
        """Take note of a stage that starts (None) or ends."""
        text = text_of(name)
        if seconds is None:
            self.waiting(f"{name:<19}  {text:<46}     ")
            return
        self.stage_seconds[name] = round(self.stage_seconds.get(name, 0.0) + seconds, 3)
        self._write(f"  {name:<19}  {text:<46} {seconds:6.1f} s")

    def waiting(self, text: str) -> None:
        """Say on a terminal what goes on; the next line takes its place."""
        if sys.stderr.isatty():
            self._write(f"  {text} ...", end="\r")

    def note(self, text: str) -> None:
        """Write a remark between stages."""
        self._write(textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="  "))

    def title(self, site: SiteFile) -> None:
        """Announce the release."""
        privacy = site.privacy
        self._write(site.title)
        self.note(
            f"epsilon {privacy.epsilon:g}, delta {privacy.delta:g} "
            f"({_ADJACENCY_TEXTS[privacy.adjacency]}); "
            f"{site.rows:,} synthetic rows by method {site.method.kind}"
        )

    def _write(self, text: str, end: str = "\n") -> None:
        if not self._quiet:
            sys.stderr.write(_erase() + text + end)
            sys.stderr.flush()


def outcome(done: ReleaseOutcome) -> None:
    """Show the guarantee, the remaining budget and the bundle."""
    left = f"left {done.remaining_rho}: {done.releases_left} more release"
    left += f"{'' if done.releases_left == 1 else 's'} like this one"
    paragraph("Guarantee", done.guarantee)
    if done.reused:
        paragraph("Budget", f"nothing charged, measured and paid for before; {left}")
    else:
        paragraph("Budget", f"charged rho {done.charged_rho}, {left}")
    # Each in one line, however long, to be copied.
    if done.state == "published":
        line(f"{'Bundle:':<{_INDENT}}{done.bundle}")
        line(f"{'Check it:':<{_INDENT}}clustmix verify {done.bundle}")
    else:
        line(f"{'Waits:':<{_INDENT}}for an officer, who finds it in {done.bundle}")
        line(f"{'Then:':<{_INDENT}}clustmix approve {done.release_id} --key FILE --reason TEXT")


def ledger(entries: Iterable[LedgerEntry], balances: Mapping[str, Balance]) -> None:
    """Show the entries of each cohort and what is left of its cap."""
    entries = tuple(entries)
    if not entries:
        line("no entries")
    for cohort, balance in balances.items():
        line(cohort)
        if balance.cap_rho is not None:
            line(f"  lifetime cap  rho {balance.cap_rho:f}")
        line(f"  spent         rho {balance.spent_rho:f}")
        line(f"  left          rho {balance.remaining_rho:f}")
        line(f"  {'release':<21}{'state':<11}{'epsilon':>8}{'delta':>9}{'rho':>16}")
        for entry in entries:
            if entry.cohort == cohort:
                # An adjustment is no release and has no epsilon of its own.
                stated = math.isfinite(entry.epsilon)
                epsilon = f"{entry.epsilon:g}" if stated else "-"
                delta = f"{entry.delta:g}" if stated else "-"
                line(
                    f"  {entry.release_id or '-':<21}{entry.state.value:<11}{epsilon:>8}"
                    f"{delta:>9}{entry.rho:>16f}"
                )


def ledger_as_json(
    entries: Iterable[LedgerEntry], balances: Mapping[str, Balance]
) -> dict[str, Any]:
    """Return the ledger for a program; amounts stay exact decimals, as text."""
    return {
        "balances": {
            cohort: {
                "spent_rho": f"{balance.spent_rho:f}",
                "cap_rho": None if balance.cap_rho is None else f"{balance.cap_rho:f}",
                "remaining_rho": f"{balance.remaining_rho:f}",
            }
            for cohort, balance in balances.items()
        },
        "entries": [ledger_row(entry) for entry in entries],
    }


def ledger_row(entry: LedgerEntry) -> dict[str, Any]:
    """Return a row of the ledger for a program."""
    return {
        name: value if value is None or isinstance(value, bool | int) else _plain(value)
        for name, value in asdict(entry).items()
    }


def _plain(value: object) -> Any:
    """Return a value of a row as JSON: amounts as exact decimals in text."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float):
        return value if math.isfinite(value) else None  # JSON has no infinity
    if isinstance(value, Mapping):
        return {key: inner if inner is None else _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, int) else str(value)


def findings(found: Iterable[Finding]) -> None:
    """Show what the doctor found."""
    for finding in found:
        line(f"  {'ok  ' if finding.good else 'FAIL'} {finding.name:<20} {finding.text}")
