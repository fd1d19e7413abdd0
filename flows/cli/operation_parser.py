"""The words and options of the commands that run an installation day by day."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.cli.words import Help, command, filled

MAX_WORKERS = 256


def add_operation_commands(subparsers: Any) -> None:
    """Add the commands of the server, the watcher and those who feed it."""
    server = subparsers.add_parser(
        "server",
        help="run all parts of an installation on this machine",
        description=filled(
            "Start or stop the parts of an installation as processes of this machine: the "
            "orchestrator with its page and its database, a Dask cluster, the workers that "
            "measure and publish, and the watcher of the landing folder. All of them listen on "
            "the loopback interface alone."
        ),
        formatter_class=Help,
    )
    actions = server.add_subparsers(dest="action", required=True, metavar="ACTION")
    start = command(
        actions,
        "start",
        "start the parts and wait until they answer",
        "Start every part, wait until it answers, and print the addresses. Parts that are "
        "running are left as they are.",
        _later("flows.cli.server", "start"),
    )
    start.add_argument(
        "--port", type=int, metavar="N", help="port of the page (default 4200, or a free one)"
    )
    start.add_argument(
        "--workers", type=_workers, metavar="N", help="Dask workers (default: cores, at most 2)"
    )
    command(
        actions,
        "stop",
        "stop what start has started",
        "Stop the processes that clustmix server start has started, and no other.",
        _later("flows.cli.server", "stop"),
    )

    deploy = command(
        subparsers,
        "deploy",
        "register deployments with the orchestrator",
        "Register the work pools, deployments, schedules, triggers and notifications of a file "
        "with the orchestrator. What the file no longer names is removed. Registering twice "
        "changes nothing.",
        _later("flows.cli.deploy", "deploy"),
    )
    deploy.add_argument(
        "file",
        type=Path,
        nargs="?",
        default=Path("deployments/prefect.yaml"),
        metavar="FILE",
        help="file of the deployments (default deployments/prefect.yaml)",
    )

    watch = command(
        subparsers,
        "watch",
        "wait for arrivals and tell the orchestrator",
        "Take tables that arrive in the landing folder, tell the orchestrator of them and of "
        "every change in the ledger, and clean up after dead runs. Runs until it is stopped.",
        _later("flows.cli.watch", "watch"),
    )
    watch.add_argument("--once", action="store_true", help="look once, then end")

    ready = command(
        subparsers,
        "ready",
        "announce a table in the landing folder",
        "Write the signed announcement of a file, or of a folder of Parquet files, beside it. It "
        "says what was sent, and that whoever holds the key of the landing folder has sent it.",
        _later("flows.cli.arrivals", "ready"),
    )
    ready.add_argument("table", type=Path, metavar="TABLE", help="file or folder, written whole")
    ready.add_argument(
        "--dataset", required=True, metavar="NAME", help="dataset that the table is of"
    )
    ready.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="key of the landing folder (default: that of this installation)",
    )

    command(
        subparsers,
        "status",
        "show runs, budgets and what waits",
        "Show whether each part answers, the last runs with their ends, what waits for an "
        "officer, the arrivals, and what each dataset has left of its budget.",
        _later("flows.cli.status", "status"),
    )


def _later(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """Return a command whose module is imported when it runs: help is answered at once."""

    def run(options: argparse.Namespace) -> int:
        return int(getattr(importlib.import_module(module), name)(options))

    return run


def _workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to {MAX_WORKERS}")
    return int(text)
