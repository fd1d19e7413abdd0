"""The command ``clustmix``: release, benchmark, verify, ledger, doctor, init."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flows import commands, terminal
from privacy.errors import ClustMixError, ConfigurationError

EXIT_CODES = """\
exit codes:
  0  done
  2  bad configuration or input
  3  refused by the budget
  4  withheld by a gate
  1  anything else"""

ENVIRONMENT = """\
environment:
  CLUSTMIX_HOME          private folder: ledger, workspaces, diagnostics
                         (default .clustmix)
  CLUSTMIX_RELEASES      folder that bundles are published to (default releases)
  CLUSTMIX_DATA_DIR      folder with copies of the public datasets
  CLUSTMIX_OFFLINE       true: never download a public dataset
  CLUSTMIX_DASK_WORKERS  worker processes (default 2; 0: this process alone)
  CLUSTMIX_DASK_ADDRESS  Dask scheduler to use instead of local workers
  PREFECT_API_URL        Prefect server to report to instead of a private one"""

EXAMPLES = """\
examples:
  clustmix init cohort.csv --output cohort.yaml   then fill in cohort.yaml
  clustmix release cohort.yaml
  clustmix verify releases/cohort/r-20260131-0a1b2c3d
  clustmix ledger show"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = build_parser().parse_args(arguments)
    as_json = getattr(options, "json", False)
    try:
        return int(options.run(options))
    except ClustMixError as error:
        failed = error
    except BrokenPipeError:
        # Whoever read the answer has seen enough; the interpreter must not flush into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            failed = _unexpected(error)
        else:
            failed = ConfigurationError(
                "FILE_UNUSABLE",
                f"expected to read or write {error.filename}, found: {error.strerror}",
            )
    except KeyboardInterrupt:
        failed = ClustMixError("STOPPED", "stopped from the keyboard")
    except Exception as error:
        failed = _unexpected(error)
    terminal.failure(failed, as_json=as_json)
    return failed.exit_code


def _unexpected(error: Exception) -> ClustMixError:
    """Keep the traceback, which may quote what was worked on, in the private log."""
    from storage.settings import load_settings
    from tasks.runtime import PRIVATE_LOG_NAME, private_log, private_log_directory

    stopped = f"stopped by {type(error).__name__}"
    try:
        folder = load_settings().diagnostics
        with private_log_directory(folder):
            private_log("command", "".join(traceback.format_exception(error)))
    except (ClustMixError, OSError):
        return ClustMixError("UNEXPECTED", f"{stopped}; the private log cannot be written")
    return ClustMixError("UNEXPECTED", f"{stopped}; {folder / PRIVATE_LOG_NAME} says where")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="clustmix",
        description=_filled(
            "Make synthetic training tables from private tables under differential privacy: a "
            "site file (YAML) declares the table and the guarantee, a release publishes a bundle "
            "of synthetic rows, and a ledger keeps what each dataset has spent of its budget."
        ),
        epilog="\n\n".join((EXAMPLES, EXIT_CODES, ENVIRONMENT)),
        formatter_class=_Help,
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"clustmix {version('clustmix')}"
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    release = _command(
        subparsers,
        "release",
        "make and publish one release of a dataset",
        "Read the table that the site file names, measure it once under differential privacy, "
        "and publish a bundle of synthetic rows with its manifest, data card and report. The "
        "budget is charged before the first row is read and is not given back afterwards.",
        commands.release,
    )
    release.add_argument(
        "site", type=Path, metavar="SITE.yaml", help="site file of the dataset (see clustmix init)"
    )
    release.add_argument(
        "--fallback",
        type=Path,
        metavar="SITE.yaml",
        help="site file to use instead where the first one names a public dataset that is not "
        "here and cannot be fetched",
    )

    benchmark = _command(
        subparsers,
        "benchmark",
        "run the published analysis on public data",
        "Run Algorithm 2 of the paper as printed, on public benchmark data only. Its epsilon is "
        "claimed by the paper, not proven: every file says so, and nothing is published.",
        commands.benchmark,
    )
    benchmark.add_argument(
        "site", type=Path, metavar="SITE.yaml", help="site file of a public dataset"
    )
    benchmark.add_argument(
        "--output",
        type=Path,
        default=Path("benchmark-output"),
        metavar="FOLDER",
        help="folder for the files (default benchmark-output)",
    )

    verify = _command(
        subparsers,
        "verify",
        "check a published bundle",
        "Check a bundle with nothing but the bundle: every file against the manifest, and "
        "epsilon computed anew from the recorded events. Prints the guarantee.",
        commands.verify,
    )
    verify.add_argument(
        "bundle", type=Path, metavar="BUNDLE", help="folder of a release, with its manifest.json"
    )

    ledger = subparsers.add_parser(
        "ledger",
        help="show or verify the budget ledger",
        description=_filled(
            "Show what each dataset has spent of its budget, or verify the ledger. Amounts are "
            "in rho, which adds up over releases; epsilon does not."
        ),
        formatter_class=_Help,
    )
    actions = ledger.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = _command(
        actions,
        "show",
        "list releases, spent and remaining budget",
        "Verify the ledger and list, by dataset, its lifetime cap, what is spent and left (in "
        "rho), and every release with its state. All states but void count as spent.",
        commands.ledger_show,
    )
    show.add_argument("--dataset", metavar="NAME", help="show this dataset only")
    _command(
        actions,
        "verify",
        "check the hash chain, every state and every amount",
        "Check the hash chain of the whole ledger, every change of state, every amount and every "
        "cap. Prints the number of rows and the hash of the last one: keep it on another machine.",
        commands.ledger_verify,
    )

    _command(
        subparsers,
        "doctor",
        "check this installation",
        "Check packages, folders, the ledger, the noise source, the orchestrator and which "
        "public data are here. Changes nothing; exit code 1 if a check fails.",
        commands.doctor,
    )

    init = _command(
        subparsers,
        "init",
        "write a site file to fill in",
        "Write a commented site file from the column names and types of a table. Bounds and "
        "levels are left for you to declare: they must come from a codebook, not from the "
        "records. No row is read.",
        commands.init,
    )
    init.add_argument(
        "table",
        type=Path,
        metavar="TABLE",
        help="CSV file with a header line, Parquet file, or folder of Parquet files",
    )
    init.add_argument(
        "--delimiter", default=",", metavar="MARK", help="delimiter of a CSV file (default ,)"
    )
    init.add_argument(
        "--output",
        type=Path,
        metavar="SITE.yaml",
        help="file to write, which must not exist (default: standard output)",
    )
    return parser


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help whose columns leave room for the longest command."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=terminal.WIDTH)


def _filled(text: str) -> str:
    return textwrap.fill(text, terminal.WIDTH)


def _command(
    subparsers: Any, name: str, summary: str, description: str, run: Any
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=_filled(description),
        epilog=EXIT_CODES,
        formatter_class=_Help,
    )
    parser.add_argument(
        "--json", action="store_true", help="write the answer, or the failure, as JSON to stdout"
    )
    parser.set_defaults(run=run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
