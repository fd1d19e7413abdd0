"""Measure what has no row yet, and lay the rows out: ``python -m benchmarks run | report``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import report, runner


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    programs = {"run": runner.main, "report": report.main}
    if words[:1] and words[0] in programs:
        return programs[words[0]](words[1:])
    print(f"{__doc__}\n\n{runner.__doc__}\n\n{report.__doc__}")
    return int(words not in (["-h"], ["--help"]))


if __name__ == "__main__":
    sys.exit(main())
