"""Measure what has no row yet, and lay the rows out: ``python -m benchmarks run | report``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

PROGRAMS = {"run": "benchmarks.runner", "report": "benchmarks.report"}


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] and words[0] in PROGRAMS:
        return int(import_module(PROGRAMS[words[0]]).main(words[1:]))
    print(f"{__doc__}\n\n  run --help\n  report --help")
    return int(words not in (["-h"], ["--help"]))


if __name__ == "__main__":
    sys.exit(main())
