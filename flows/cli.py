"""The command ``clustmix``: release, benchmark, verify, ledger, doctor, init."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from flows import terminal
from privacy.errors import ClustMixError, ConfigurationError

EXIT_CODES = """exit codes:
  0  done
  2  bad configuration or input
  3  refused by the budget
  4  withheld by a gate
  1  anything else"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except ClustMixError as error:
        terminal.failure(error, as_json=getattr(options, "json", False))
        return error.exit_code
    except KeyboardInterrupt:
        terminal.line("stopped")
        return 1


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="clustmix",
        description="Publish synthetic training tables under differential privacy.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    release = _command(
        commands,
        "release",
        "make and publish one release",
        "Read the cohort that the site file names, measure it once under differential privacy, "
        "and publish a bundle of synthetic rows. The budget is charged before the data are read.",
        _release,
    )
    release.add_argument("site", type=Path, metavar="SITE.yaml", help="site file of the dataset")
    release.add_argument(
        "--fallback",
        type=Path,
        metavar="SITE.yaml",
        help="site file to use where the public data of the first cannot be found or fetched",
    )

    benchmark = _command(
        commands,
        "benchmark",
        "run the published analysis on public data",
        "Run Algorithm 2 of the paper as printed. Its epsilon is claimed by the paper, not "
        "proven: every file says so, and nothing is published.",
        _benchmark,
    )
    benchmark.add_argument("site", type=Path, metavar="SITE.yaml", help="site file, public data")
    benchmark.add_argument(
        "--output", type=Path, default=Path("benchmark-output"), help="folder for the files"
    )

    verify = _command(
        commands,
        "verify",
        "check a bundle with nothing but the bundle",
        "Check every file against the manifest, and compute epsilon from the events anew.",
        _verify,
    )
    verify.add_argument("bundle", type=Path, metavar="BUNDLE", help="folder of a release")

    ledger = _command(
        commands,
        "ledger",
        "show or verify the budget ledger",
        "Show what each dataset has spent, or check the hash chain of the whole ledger.",
        _ledger,
    )
    ledger.add_argument("action", choices=("show", "verify"), help="what to do")
    ledger.add_argument("--dataset", help="only this dataset (show)")

    _command(
        commands,
        "doctor",
        "check this installation",
        "Check packages, folders, the ledger, the noise source and the public data.",
        _doctor,
    )

    init = _command(
        commands,
        "init",
        "write a site file template",
        "Write a commented site file from the column names and types of a table. Bounds and "
        "levels are left for you to declare: they must not come from the records.",
        _init,
    )
    init.add_argument("table", type=Path, metavar="TABLE", help="CSV or Parquet file")
    init.add_argument(
        "--output", type=Path, metavar="SITE.yaml", help="file; standard output if left out"
    )
    return parser


def _command(
    commands: Any, name: str, summary: str, description: str, run: Any
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.set_defaults(run=run)
    return parser


def _release(options: argparse.Namespace) -> int:
    # Settings are checked and Prefect's environment is set before Prefect is imported.
    from flows.site import load_site
    from privacy.errors import InputError
    from storage.settings import load_settings
    from tasks.runtime import configure_prefect

    settings = load_settings()
    path, site = options.site, load_site(options.site)
    progress = terminal.Progress(quiet=options.json)
    if options.fallback is not None:
        from storage.cohorts import CohortReader

        try:
            progress.note(f"looking for the data of {site.dataset}")
            CohortReader(site.source, settings=settings).header()
        except InputError as error:
            if error.code != "DATA_UNAVAILABLE":
                raise
            path, site = options.fallback, load_site(options.fallback)
            progress.note(
                f"the data of {options.site.stem} are not at hand and could not be fetched; "
                f"releasing {site.title} instead"
            )
    configure_prefect(settings)
    progress.title(site)

    from flows.request import ReleaseRequest

    request = ReleaseRequest(site_file=str(path), dataset=site.dataset)
    progress.note("starting the orchestrator")
    from flows.release import run_release
    from tasks.run import listen_to_stages

    with listen_to_stages(progress):
        outcome = run_release(request)
    answer = {**outcome.model_dump(), "stage_seconds": progress.stage_seconds}
    if options.json:
        terminal.print_json(answer)
    else:
        progress.finish(outcome)
    return 0


def _benchmark(options: argparse.Namespace) -> int:
    from flows.site import load_site
    from storage.settings import load_settings
    from tasks.run import listen_to_stages
    from tasks.runtime import configure_prefect

    settings, site = load_settings(), load_site(options.site)
    configure_prefect(settings)
    progress = terminal.Progress(quiet=options.json)
    progress.note("starting the orchestrator")
    from flows.benchmark import benchmark_published

    with listen_to_stages(progress):
        answer = benchmark_published(site, settings, options.output)
    if options.json:
        terminal.print_json({**answer, "stage_seconds": progress.stage_seconds})
    else:
        terminal.line(f"{answer['claim']}\n{answer['folder']}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    from storage.releases import verify_bundle
    from tasks.reporting.guarantee import Claim, guarantee_statement

    verified = verify_bundle(options.bundle)
    manifest = verified.manifest
    if options.json:
        terminal.print_json(
            {
                "verified": True,
                "dataset": manifest.dataset,
                "release_id": manifest.release_id,
                "epsilon": manifest.epsilon,
                "delta": manifest.delta,
                "adjacency": manifest.adjacency,
                "manifest_sha256": verified.manifest_sha256,
            }
        )
        return 0
    terminal.line(
        f"verified: {manifest.dataset}/{manifest.release_id}, {len(manifest.files)} files as the "
        "manifest states them, epsilon as its events give it"
    )
    terminal.line(guarantee_statement(Claim.of(manifest)))
    return 0


def _ledger(options: argparse.Namespace) -> int:
    from storage.ledger_db import LedgerDatabase
    from storage.settings import load_settings

    path = load_settings().ledger_path
    if not path.exists():
        raise ConfigurationError(
            "NO_LEDGER", "expected a ledger in CLUSTMIX_HOME, found none; it starts with a release"
        )
    ledger = LedgerDatabase(path)
    ledger.verify()
    if options.action == "verify":
        sequence, head = ledger.head()
        if options.json:
            terminal.print_json({"verified": True, "rows": sequence, "head": head})
        else:
            terminal.line(f"verified: {sequence} rows, head {head}")
        return 0
    entries = ledger.entries(options.dataset)
    datasets = sorted({entry.dataset for entry in entries})
    balances = {name: ledger.balance(name) for name in datasets}
    if options.json:
        terminal.print_json(terminal.ledger_as_json(entries, balances))
    else:
        terminal.ledger(entries, balances)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from flows.doctor import examine
    from storage.settings import load_settings

    findings = examine(load_settings())
    if options.json:
        terminal.print_json([finding.as_json() for finding in findings])
    else:
        terminal.findings(findings)
    return 0 if all(finding.good for finding in findings) else 1


def _init(options: argparse.Namespace) -> int:
    from flows.site_template import describe_table, site_template

    header, dtypes = describe_table(options.table)
    text = site_template(header, dtypes)
    if options.output is None:
        sys.stdout.write(json.dumps({"site": text}) + "\n" if options.json else text)
        return 0
    try:
        with options.output.open("x", encoding="utf-8") as handle:
            handle.write(text)
    except FileExistsError:
        raise ConfigurationError(
            "FILE_EXISTS", f"expected no file at {options.output}, found one; name another"
        ) from None
    terminal.line(f"wrote {options.output}; replace every FILL_IN before the first release")
    return 0


if __name__ == "__main__":
    sys.exit(main())
