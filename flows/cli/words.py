"""How every command of ``clustmix`` is worded: its help, its width, its exit codes."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from flows.cli import terminal

EXIT_CODES = """\
exit codes:
  0  done
  2  bad configuration or input
  3  refused by the budget
  4  withheld by a gate
  1  anything else"""


class Help(argparse.RawDescriptionHelpFormatter):
    """Help whose columns leave room for the longest command."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=terminal.WIDTH)


def filled(text: str) -> str:
    """Return a text broken into lines of the terminal's width."""
    return textwrap.fill(text, terminal.WIDTH)


def command(
    subparsers: Any, name: str, summary: str, description: str, run: Any
) -> argparse.ArgumentParser:
    """Add a command with the options that every command has, and return its parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=filled(description),
        epilog=EXIT_CODES,
        formatter_class=Help,
    )
    parser.add_argument(
        "--json", action="store_true", help="write the answer, or the failure, as JSON to stdout"
    )
    parser.set_defaults(run=run)
    return parser
