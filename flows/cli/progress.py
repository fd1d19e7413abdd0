"""Progress of a command on standard error: lines that stay, and a bar with the time left.

All of it is public. Imported by commands that run for seconds, as rich is loaded with it.
"""

import math
import sys
import textwrap
import threading
import time
from collections.abc import Iterable

from rich import progress
from rich.table import Column
from rich.text import Text

from flows.cli import terminal
from flows.stages import text_of

_SECONDS = {
    "ingest": 2.5, "kip": 6.3, "mixing": 2.5, "train": 3.0, "mix": 1.0, "rounds": 1.0,
    "clustering": 1.0, "decode": 2.2, "output": 2.7, "report": 0.6,
}  # fmt: skip
"""Seconds of a stage (100,000 rows, two cores) by the first word of its name; only ratios count."""


_EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal."""


class Progress(progress.Progress):
    """A bar on a terminal, with lines above; by default quiet where a program is answered."""

    def __init__(self, text: str = "", *, quiet: bool | None = None) -> None:
        quiet = terminal.answers_program() if quiet is None else quiet
        super().__init__(
            progress.BarColumn(10, table_column=Column(no_wrap=True, min_width=10)),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            progress.TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)
            ),
            console=terminal.console(sys.stderr),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            refresh_per_second=4,
            speed_estimate_period=math.inf,
            disable=quiet or not sys.stderr.isatty(),
        )
        self._quiet = quiet
        self.stage_seconds: dict[str, float] = {}
        self._share = 0.0
        # Without a terminal, regular lines replace the bar.
        self._ended = threading.Event() if self.disable and not quiet else None
        self._task = self.add_task(text, total=None)

    def start(self) -> None:
        """Show the bar, or a line every few seconds where there is no terminal."""
        super().start()
        if self._ended is not None:
            threading.Thread(target=self._report, daemon=True).start()

    def stop(self) -> None:
        """End the bar or the lines."""
        if self._ended is not None:
            self._ended.set()
        super().stop()

    def _report(self) -> None:
        began = time.monotonic()
        while self._ended is not None and not self._ended.wait(_EVERY):
            task, seconds = self.tasks[self._task], time.monotonic() - began
            done = f"{task.percentage:3.0f} %  " if task.total else ""
            self.line(f"  {done}{seconds:5.0f} s  {task.description}")

    def expect(self, total: float) -> None:
        """Set the total, in shares; without it, no time is estimated."""
        self.update(self._task, total=total)

    def expect_stages(self, names: Iterable[str]) -> None:
        """Set the total of a run by its stages."""
        self.expect(sum(map(_share_of, names)))

    def begin(self, text: str, share: float = 0.0) -> None:
        """Start the next step; this ends the previous one."""
        self.update(self._task, description=text, advance=self._share)
        self._share = share

    def note(self, text: str) -> None:
        """Write a remark that stays."""
        self.line(textwrap.fill(text, terminal.WIDTH, initial_indent="  ", subsequent_indent="  "))

    def line(self, text: str, style: str = "") -> None:
        """Write a line that stays."""
        if not self._quiet:
            self.console.print(Text(text, style), soft_wrap=True)

    def __call__(self, name: str, seconds: float | None) -> None:
        """Show a stage that starts (None) or ends, with its seconds."""
        text = text_of(name)
        if seconds is None:
            self.begin(text, _share_of(name))
            return
        self.stage_seconds[name] = round(self.stage_seconds.get(name, 0.0) + seconds, 3)
        self.line(f"  {name:<19}  {text:<46} {seconds:6.1f} s")


def _share_of(stage: str) -> float:
    return _SECONDS.get(stage.split("-", maxsplit=1)[0], 0.1)
