"""The words and options of ``clustmix ledger``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.cli import ledger as ledger_commands
from flows.cli.words import Help, command, filled


def add_ledger_commands(subparsers: Any) -> None:
    """Add the commands around the budget ledger."""
    ledger = subparsers.add_parser(
        "ledger",
        help="show or verify the budget ledger",
        description=filled(
            "Show what each dataset has spent of its budget, or verify the ledger. Amounts are "
            "in rho, which adds up over releases; epsilon does not."
        ),
        formatter_class=Help,
    )
    actions = ledger.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = command(
        actions,
        "show",
        "list releases, spent and remaining budget",
        "Verify the ledger and list, by cohort, its lifetime cap, what is spent and left (in "
        "rho), and every release with its state. All states but void count as spent.",
        ledger_commands.show,
    )
    show.add_argument("--cohort", metavar="NAME", help="show this cohort only")
    check = command(
        actions,
        "verify",
        "check the hash chain, every state and every amount",
        "Check the hash chain of the whole ledger, every change of state, every amount and every "
        "cap, and that it holds the head that was exported last. Prints the number of rows and "
        "the hash of the last one: keep it on another machine.",
        ledger_commands.verify,
    )
    check.add_argument(
        "--head",
        metavar="ROWS:HASH",
        help="head that was kept before: the ledger must hold it",
    )
    export = command(
        actions,
        "export",
        "write every row for an auditor",
        "Verify the ledger and write every row as one line of JSON, with its hash.",
        ledger_commands.export,
    )
    export.add_argument("output", type=Path, metavar="FILE", help="file to write, not there yet")
    adjust = command(
        actions,
        "adjust",
        "add a charge by hand, by two people",
        "Charge a cohort for something that no release of this ledger was, such as a table that "
        "left by another way. Two officers sign; nothing is ever given back.",
        ledger_commands.adjust,
    )
    adjust.add_argument("cohort", metavar="COHORT", help="cohort that is charged")
    adjust.add_argument("--rho", required=True, metavar="RHO", help="amount, at most 12 decimals")
    adjust.add_argument("--reason", required=True, metavar="TEXT", help="why, in one line")
    adjust.add_argument(
        "--key",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="private key of an officer; give it twice, for two officers",
    )
