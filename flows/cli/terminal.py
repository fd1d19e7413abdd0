"""Output of the command line: lines, texts by their titles, JSON, and one-line failures.

All of it is public. On a terminal it has colour, by rich, which is loaded where it draws.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, TextIO

from privacy.errors import ClustMixError

if TYPE_CHECKING:
    from rich.console import Console

Facts = Mapping[str, str | None]
"""Texts for people by their titles."""

WIDTH = 80

_INDENT = 12
_FOR_PROGRAM = ContextVar("for_program", default=False)

_STYLES = {
    "ok": "green",
    "FAIL": "bold red",
    **dict.fromkeys(("published", "Completed"), "green"),
    **dict.fromkeys(("sealed", "Running", "Scheduled"), "yellow"),
    **dict.fromkeys(("burned", "Failed", "Crashed"), "red"),
}
"""Colours of certain words in a table, on a terminal with colours."""


class Whole(str):
    """A text that stays in one line, however long, so that it can be copied."""

    __slots__ = ()


def console(stream: TextIO) -> Console:
    """Return rich's console for a stream: coloured on a terminal, and plain for everything else."""
    from rich.console import Console

    seen = stream.isatty()
    return Console(
        file=stream,
        force_terminal=seen,
        width=None if seen else WIDTH,
        # Texts may come from files: nothing in them is an instruction to the console.
        markup=False,
        emoji=False,
        highlight=False,
    )


def line(
    text: str, *, style: str = "", until: int | None = None, stream: TextIO | None = None
) -> None:
    """Write a text as it is; on a terminal its first `until` characters (None: all) are styled."""
    stream = stream or sys.stdout
    if style and stream.isatty():
        from rich.text import Text

        shown = Text(text)
        shown.stylize(style, 0, until)
        console(stream).print(shown, soft_wrap=True)
    else:
        stream.write(text + "\n")
        stream.flush()


def bar(share: float, width: int = 20) -> str:
    """Return a bar of a share between 0 and 1."""
    full, empty = "\u2588\u2591" if "utf" in (sys.stdout.encoding or "").lower() else "#."
    return full * round(share * width) + empty * (width - round(share * width))


def facts(texts: Facts) -> None:
    """Write nonempty texts beside their titles, wrapped unless `Whole`; no path is broken."""
    for title, text in texts.items():
        start = f"{title + ':':<{_INDENT}}"
        if text and not isinstance(text, Whole):
            text = textwrap.fill(  # noqa: PLW2901
                text,
                WIDTH,
                initial_indent=start,
                subsequent_indent=" " * _INDENT,
                break_long_words=False,
                break_on_hyphens=False,
            ).removeprefix(start)
        if text:
            line(start + text, style="bold", until=len(title) + 1)


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> None:
    """Write rows in columns, or "none"; long texts wrap; a header ``>name`` aligns right."""
    if not rows:
        line("  none")
        return
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, show_header=bool(header), pad_edge=False, padding=(0, 2, 0, 0))
    for name in header or [""] * max(map(len, rows)):
        side: Literal["left", "right"] = "right" if name.startswith(">") else "left"
        drawn.add_column(name.lstrip(">"), justify=side, overflow="fold", header_style="bold")
    for row in rows:
        drawn.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in row))
    drawing = console(sys.stdout)
    with drawing.capture() as captured:
        drawing.print(Padding(drawn, (0, 0, 0, 2)))
    line("\n".join(text.rstrip() for text in captured.get().splitlines()))


@contextmanager
def answering(*, for_program: bool) -> Iterator[None]:
    """Answer a program, or a person, within a block."""
    token = _FOR_PROGRAM.set(for_program)
    try:
        yield
    finally:
        _FOR_PROGRAM.reset(token)


def answers_program() -> bool:
    """Return whether answers are for a program, by the option ``--json``."""
    return _FOR_PROGRAM.get()


def answer(answered: object, *shown: str | Facts | Callable[[], None]) -> None:
    """Write an answer to standard output: an object for a program, or words for a person.

    Words are lines, texts by their titles, and functions that write more.
    """
    if answers_program():
        line(json.dumps(plain(answered), indent=2, ensure_ascii=False))
        return
    for part in shown:
        if isinstance(part, str):
            line(part)
        elif callable(part):
            part()
        else:
            facts(part)


def plain(value: object) -> Any:
    """Return an answer in JSON's own types; amounts stay exact decimals, as text, times are UTC."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, float):
        return value if math.isfinite(value) else None  # JSON has no infinity
    return value if value is None or isinstance(value, int) else str(value)


def failure(error: ClustMixError, *, as_json: bool) -> None:
    """Write a failure: a line, or a line for each fault, for people; an object for programs."""
    if as_json:
        with answering(for_program=True):
            found = {"error": error.code, "message": error.message, "exit_code": error.exit_code}
            answer(found | ({"faults": error.faults} if error.faults else {}))
    start = f"clustmix: {error.code}:"
    # Faults of a file have a line each.
    text = error.message.partition(error.faults[0])[0].rstrip() if error.faults else error.message
    line(f"{start} {text}", style="bold red", until=len(start), stream=sys.stderr)
    for fault in error.faults:
        line(f"  {fault}", stream=sys.stderr)
