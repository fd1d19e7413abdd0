"""The command ``clustmix``; it needs the packages of an installation."""

import sys

from privacy.errors import MissingExtra, extra


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        with extra("server"):
            from flows.cli.running import run
    except MissingExtra as error:
        sys.stderr.write(f"clustmix: {error}\n")
        return error.exit_code
    return run(sys.argv[1:] if arguments is None else arguments)
