"""One job of the benchmarks: a command whose last line is one row.

``jobs.txt`` lists the jobs of every suite. A suite is a module with a function that makes the row
of one of them; ``run`` calls it by the words of the command.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from benchmarks.results import ResultRow, print_row

ROW_LIMIT_SECONDS = 1800
COUNTED = ("--seed", "--split", "--draw")
"""Options that a parameter ``seed`` has: its name in a command says what is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A process of its own that prints one row.

    The suite names its module and its file of rows, and the command is what follows `python -m`.
    Past the limit the process is ended, and its row has the outcome `did not end`.
    """

    suite: str
    command: tuple[str, ...]
    limit_seconds: int = ROW_LIMIT_SECONDS

    @property
    def words(self) -> str:
        """The command as typed, which names the job's row."""
        return " ".join(("python", "-m", *self.command))


def listed(suite: str) -> list[Job]:
    """Read the jobs of a suite in ``jobs.txt``, which explains its form; none if none is there."""
    text = Path(__file__).with_name("jobs.txt").read_text("utf-8")
    lines = text.partition(f"\n[{suite}]\n")[2].partition("\n[")[0].splitlines()
    limit, names, found = ROW_LIMIT_SECONDS, dict[str, str](), dict[tuple[str, ...], Job]()
    for line in lines:
        if line.startswith("limit "):
            limit = int(line.split()[1])
        elif named := re.match(r"([\w-]+) = (.*)", line):
            names[f"@{named[1]}"] = named[2]
        elif line and not line.startswith("#"):
            for options in _expanded(re.sub("@[\\w-]+", lambda name: names[name[0]], line)):
                command = (f"benchmarks.suites.{suite}", *options.split())
                found.setdefault(command, Job(suite=suite, command=command, limit_seconds=limit))
    return list(found.values())


def _expanded(line: str) -> Iterator[str]:
    parts = re.split(r"\{(.*?)\}", line)
    places = sorted(range(1, len(parts), 2), key=lambda place: (-parts[place].count("<"), place))
    for chosen in product(*(parts[place].lstrip("<").split(",") for place in places)):
        for place, word in zip(places, chosen, strict=True):
            parts[place] = word
        yield "".join(parts)


def asked(function: Callable[..., Any], words: Sequence[str] | None) -> dict[str, Any]:
    """Read a command whose options are the parameters of a function, by their types."""
    parser = argparse.ArgumentParser(prog=function.__module__, description=function.__doc__)
    for name, one in inspect.signature(function, eval_str=True).parameters.items():
        flags = COUNTED if name == "seed" else (f"--{name}",)
        kind, inner = one.annotation, get_args(one.annotation)
        read: dict[str, Any] = {"type": (*inner, kind)[0], "default": one.default}
        if kind is bool:
            read = {"action": "store_true"}
        elif get_origin(kind) is Literal:
            read |= {"type": type(inner[0]), "choices": inner}
        parser.add_argument(*flags, dest=name, required=one.default is one.empty, **read)
    return vars(parser.parse_args(words))


def run(row_of: Callable[..., ResultRow], words: Sequence[str] | None = None) -> int:
    """Print the row that a function makes of words, else of the command of this process."""
    return print_row(row_of(**asked(row_of, words)))
