"""The program ``clustmix``: its command line, where the packages of an installation are there."""

from __future__ import annotations

import sys

from privacy.extras import MissingExtra, extra


def main() -> int:
    """Run one command and return its exit code."""
    try:
        with extra("server"):
            from flows import cli
    except MissingExtra as error:
        sys.stderr.write(f"clustmix: {error}\n")
        return error.exit_code
    return cli.main()
