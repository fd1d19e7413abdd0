"""The words and options of every command of ``clustmix``."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from pathlib import Path

from flows.cli import audit
from flows.cli import methods as method_commands
from flows.cli import publication as publication_commands
from flows.cli import release as commands
from flows.cli.ledger_parser import add_ledger_commands
from flows.cli.operation_parser import add_operation_commands
from flows.cli.words import EXIT_CODES, Help, command, filled

ENVIRONMENT = """\
environment:
  CLUSTMIX_HOME          private folder: ledger, workspaces, diagnostics
                         (default .clustmix)
  CLUSTMIX_RELEASES      folder that bundles are published to (default releases)
  CLUSTMIX_DATA_DIR      folder with copies of the public datasets
  CLUSTMIX_OFFLINE       true: never download a public dataset
  CLUSTMIX_DASK_WORKERS  worker processes; 0: this process alone (default: 2
                         for a table of more than 32 MiB, else 0)
  CLUSTMIX_DASK_ADDRESS  Dask scheduler to use instead of local workers
  CLUSTMIX_LEDGER_URL    postgresql:// address of a ledger that several
                         installations share (default: a file in CLUSTMIX_HOME)
  CLUSTMIX_SITES         folder of site files, DATASET.yaml, for releases that
                         the orchestrator starts (default deployments/sites)
  CLUSTMIX_LANDING       folder or s3:// address where tables arrive
                         (default landing)
  CLUSTMIX_REQUESTER     key id in whose name the orchestrator asks
  CLUSTMIX_RELEASES_URL  address at which readers find the release store
  CLUSTMIX_NOTIFY_URL    webhook that is told of what a person should know
  PREFECT_API_URL        Prefect server to report to instead of a private one"""

EXAMPLES = """\
examples:
  clustmix init cohort.csv --output cohort.yaml   then fill in cohort.yaml
  clustmix release cohort.yaml
  clustmix verify releases/cohort/r-20260131-0a1b2c3d
  clustmix ledger show"""

MAX_ROWS = 10_000_000
"""Most synthetic rows of one bundle."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="clustmix",
        description=filled(
            "Make synthetic training tables from private tables under differential privacy: a "
            "site file (YAML) declares the table and the guarantee, a release publishes a bundle "
            "of synthetic rows, and a ledger keeps what each dataset has spent of its budget."
        ),
        epilog="\n\n".join((EXAMPLES, EXIT_CODES, ENVIRONMENT)),
        formatter_class=Help,
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"clustmix {version('clustmix')}"
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    release = command(
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

    release.add_argument(
        "--new-draw",
        action="store_true",
        help="measure again with new noise where the same table was measured before; charged again",
    )
    release.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="private key of the person who asks, where an officer has to approve",
    )

    resample = command(
        subparsers,
        "resample",
        "publish other rows of a release, at no cost",
        "Sample other rows from the sealed measurement of a published release: more of them, or "
        "only such as meet conditions. No table is read, no noise is drawn, nothing is charged.",
        publication_commands.resample,
    )
    resample.add_argument("release", metavar="RELEASE", help="id of the release that paid")
    resample.add_argument(
        "--rows", type=_row_count, metavar="N", help="number of rows (default: as in the release)"
    )
    resample.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="COLUMN=LEVEL",
        help="a declared level that every row has; may be given several times",
    )

    publish = command(
        subparsers,
        "publish",
        "publish a sealed release whose run had ended",
        "Publish a release whose run ended between its seal and its publication, without its "
        "table and at no cost. The same request (clustmix release) does so too, as long as the "
        "table and the program are the same. One that waits for an officer goes on waiting.",
        publication_commands.publish,
    )
    publish.add_argument("release", metavar="RELEASE", help="id of the sealed release")
    publish.add_argument(
        "--site",
        type=Path,
        metavar="SITE.yaml",
        help="site file that declares the order of the label levels, for a measurement of a "
        "program that did not keep it; what was published in another order is published again "
        "under a new id",
    )
    publish.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="private key of the person who declares that order, whose id the manifest states",
    )

    for name, summary, description, run in (
        (
            "approve",
            "sign and publish a release that waits",
            "Sign a sealed release that waits for an officer, and publish it. The officer's key "
            "is not that of the person who asked; its public half is in the folder officers of "
            "the installation's keys. The reason is published with the signature.",
            publication_commands.approve,
        ),
        (
            "reject",
            "withhold a release that waits",
            "Withhold a sealed release that waits for an officer. Its charge stands.",
            publication_commands.reject,
        ),
        (
            "revoke",
            "take a published release back",
            "Add a published release to the signed list of revocations in the release store, with "
            "every resample of it, and say so in the ledger. clustmix verify refuses what is "
            "listed. A resample can be revoked by itself. No file is removed and nothing is given "
            "back. An officer decides; the reason is published.",
            publication_commands.revoke,
        ),
    ):
        decision = command(subparsers, name, summary, description, run)
        decision.add_argument("release", metavar="RELEASE", help="id of the release")
        decision.add_argument(
            "--key", type=Path, required=True, metavar="FILE", help="private key of the officer"
        )
        decision.add_argument(
            "--reason", required=True, metavar="TEXT", help="why, in one line of 200 characters"
        )

    sign = command(
        subparsers,
        "sign",
        "sign a decision to be carried out elsewhere",
        "Sign the approval or the rejection of a release that waits, with nothing but a copy of "
        "its folder and the officer's key, and print it. It is carried out by the form of the "
        "deployment publish/on-demand, on the page of the orchestrator.",
        publication_commands.sign,
    )
    sign.add_argument(
        "bundle", type=Path, metavar="BUNDLE", help="folder of the release, with manifest.json"
    )
    sign.add_argument(
        "--decision", choices=("approve", "reject"), required=True, help="what was decided"
    )
    sign.add_argument(
        "--key", type=Path, required=True, metavar="FILE", help="private key of the officer"
    )
    sign.add_argument(
        "--reason", required=True, metavar="TEXT", help="why, in one line of 200 characters"
    )

    keygen = command(
        subparsers,
        "keygen",
        "make a pair of keys",
        "Make an Ed25519 key pair: FILE for its owner alone, and FILE with the suffix .pub for "
        "everybody.",
        publication_commands.keygen,
    )
    keygen.add_argument("file", type=Path, metavar="FILE", help="private key to write")

    certificates = command(
        subparsers,
        "certificates",
        "make TLS certificates for a Dask cluster",
        "Make a private certificate authority and certificates for the scheduler, the workers "
        "and the clients of a Dask cluster on several hosts.",
        publication_commands.certificates,
    )
    certificates.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="new folder for the files"
    )
    certificates.add_argument(
        "--days", type=int, default=30, metavar="N", help="days that they last (default 30)"
    )

    command(
        subparsers,
        "methods",
        "list the methods that a site file can name",
        "List every method with its paper, what it can guarantee, which data it is meant for and "
        "its settings.",
        method_commands.methods,
    )

    benchmark = command(
        subparsers,
        "benchmark",
        "run the published analysis on public data",
        "Run a method as its paper prints it, on public benchmark data only. Its epsilon is "
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

    verify = command(
        subparsers,
        "verify",
        "check a published bundle",
        "Check a bundle offline, with public keys alone: the signature of the pipeline, the "
        "officer's where one was needed, every file against the manifest, and epsilon computed "
        "anew from the recorded events. Names the byte that changed. Prints the guarantee.",
        commands.verify,
    )
    verify.add_argument(
        "bundle", type=Path, metavar="BUNDLE", help="folder of a release, with its manifest.json"
    )
    for option, whom in (("--key", "pipeline that publishes"), ("--officer", "officers")):
        verify.add_argument(
            option,
            type=Path,
            action="append",
            default=[],
            metavar="FILE",
            help=f"public key, or folder of public keys, of the {whom} (default: those of this "
            "installation)",
        )

    verify.add_argument(
        "--revoked",
        type=Path,
        metavar="FILE",
        help="list of revoked releases (default: revoked.json of the store that the bundle is in, "
        "if it is there)",
    )

    add_ledger_commands(subparsers)
    add_operation_commands(subparsers)

    audit_parser = command(
        subparsers,
        "audit",
        "attack a method and bound epsilon from below",
        "Run a method many times on the worst pairs of neighbouring tables, attack its output, "
        "and print a lower bound on epsilon beside the claim; or, with --whole-release, attack "
        "what clustmix release makes of a generated table. It can show a flaw and never the "
        "absence of one. No private table is read. Exit code 1 if a bound is above the claim.",
        audit.audit_command,
    )
    audit.add_arguments(audit_parser)

    command(
        subparsers,
        "doctor",
        "check this installation",
        "Check packages, folders, the ledger, the noise source, the orchestrator and which "
        "public data are here. Changes nothing; exit code 1 if a check fails.",
        commands.doctor,
    )

    init = command(
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


def _row_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_ROWS:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to {MAX_ROWS:,}")
    return int(text)
