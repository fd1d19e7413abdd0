"""Commands of the operator, from ``status`` to ``certificates``."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from flows.cli import terminal
from flows.cli.options import Commands, argument, load_settings, option

if TYPE_CHECKING:
    from flows.watching.doctor import Finding
    from flows.watching.status import Item, Status

_DEPLOYMENTS = Path("deployments/prefect.yaml")

app = Commands()


@app.command()
def status() -> int:
    """Show parts, runs, waiting releases, arrivals and budgets.

    Whether parts answer, how the last runs ended, waiting releases, arrivals, and the remaining
    budget of each dataset. Times are those of this machine. Exit code 1 if a part fails.
    """
    from flows.cli.progress import Progress
    from flows.local_server import join_server
    from tasks.execution.runtime import safe_environment

    with Progress("asking the orchestrator, the ledger and the stores"):
        join_server(load_settings().server_home)
        os.environ.update(safe_environment())
        # Imported after the change of the environment, which Prefect reads once.
        from flows.watching.status import collect

        found = collect(load_settings())
    terminal.answer(found, partial(_show_status, found))
    return 0 if all(part.good for part in found.parts) else 1


@app.command()
def ready(
    table: Annotated[Path, argument("TABLE", "file or folder, written whole")],
    dataset: Annotated[str, option("NAME", "dataset that the table is of")],
    key: Annotated[
        Path | None,
        option("FILE", "key of the landing folder (default: that of this installation)"),
    ] = None,
) -> None:
    """Announce a table in the landing folder.

    Write the signed announcement of a file, or of a folder of Parquet files, beside it: its
    contents, and a signature by the key of the landing folder.
    """
    from flows.cli.progress import Progress
    from storage.arrivals.ready_files import build_ready_file, write_ready_file
    from storage.keys.key_store import KeyStore
    from storage.keys.keys import read_secret

    if key is None:
        secret = KeyStore(load_settings().key_folder).landing_secret()
    else:
        secret = read_secret(key)
    table = table.absolute()
    with Progress(f"reading {table.name}"):
        content = build_ready_file(table, dataset=dataset, secret=secret)
    written = write_ready_file(table, content)
    terminal.answer(
        {"dataset": dataset, "ready_file": str(written)},
        f"announced {table.name} for dataset {dataset}: {written}",
    )


@app.command()
def deploy(
    file: Annotated[Path, argument("FILE", "file of the deployments")] = _DEPLOYMENTS,
) -> None:
    """Register deployments with the orchestrator.

    Work pools, schedules, triggers and notifications too, as a file declares them. Those that it no
    longer names are removed. Registering twice changes nothing.
    """
    from flows.cli.progress import Progress
    from flows.local_server import join_server
    from tasks.execution.runtime import configure_prefect

    settings = load_settings()
    join_server(settings.server_home)
    configure_prefect(settings)
    with Progress("registering the deployments"):
        from flows.watching import deploy as deployments

        deployed = deployments.deploy(settings, file)
    unset = "Nobody is notified: CLUSTMIX_NOTIFY_URL is not set."
    terminal.answer(
        deployed,
        {
            "Serves": ", ".join(deployed.deployments),
            "Watches": ", ".join(deployed.automations),
            "Removed": ", ".join(deployed.removed),
        },
        *([] if deployed.notifies else [unset]),
    )


@app.command()
def watch(once: Annotated[bool, option(None, "watch once, then end", "--once")] = False) -> int:
    """Take arrivals and notify the orchestrator.

    Tables are taken from the landing folder. The orchestrator gets an event for each of them and
    for every change in the ledger, and dead runs are cleaned up after. Runs until it is stopped.
    """
    from flows.watching.watcher_lock import only_watcher

    settings = load_settings()
    with only_watcher(settings.server_home):
        # Heavy imports, one of which reads the settings of the orchestrator.
        from flows.watching.metrics import Readings, answering
        from flows.watching.status import collect
        from flows.watching.watcher import TICK_SECONDS, Watcher, log

        watcher = Watcher(settings)
        if once:
            done = watcher.tick()
            codes = {name: None if error is None else error.code for name, error in done.items()}
            terminal.answer({"parts": codes})
            return max((0 if error is None else error.exit_code) for error in done.values())
        readings = Readings(partial(collect, settings), settings.landing)
        with answering(
            settings.metrics,
            readings,
            password_folder=settings.server_home,
            tls=settings.metrics_tls,
        ):
            asked_to_end = threading.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                # The work of a tick is never cut short.
                signal.signal(number, lambda *_: asked_to_end.set())
            log("watch", "begins")
            while True:
                watcher.tick()
                if asked_to_end.wait(TICK_SECONDS):
                    break
            log("watch", "ends")
    return 0


@app.command()
def doctor() -> int:
    """Check this installation.

    Packages, folders, keys, the ledger, the noise source, the orchestrator, and the public data
    that are here. Changes nothing; exit code 1 if a check fails.
    """
    from flows.cli.progress import Progress

    with Progress("examining the installation"):
        from flows.watching.doctor import examine

        findings = examine(load_settings())
    terminal.answer(findings, partial(_show_findings, findings))
    return 0 if all(finding.good for finding in findings) else 1


@app.command()
def certificates(
    output: Annotated[Path, option("FOLDER", "new folder for the files")],
    days: Annotated[int, option("N", "days that they last")] = 30,
) -> None:
    """Make TLS certificates for a Dask cluster.

    For one on several hosts: an authority, and certificates of scheduler, workers and clients.
    """
    from tasks.execution.cluster import make_certificates

    make_certificates(output, days=days)
    wrote = f"wrote certificates to {output}; docs/operate.md says where each goes"
    terminal.answer({"output": str(output)}, wrote)


def _show_status(found: Status) -> None:
    terminal.line("Parts", style="bold")
    _show_findings(found.parts)
    if found.is_served:
        _section("Last runs", found.runs)
    else:
        _section("Last entries of the ledger", found.entries)
    _section("Waiting for an officer", found.waiting)
    if found.waiting:
        terminal.line("  clustmix approve RELEASE --key FILE --reason TEXT; --reject rejects it")
    _section("Arrivals that are not released yet", found.arrivals)
    if found.refused_arrivals:
        _section("Refused arrivals", found.refused_arrivals)
    terminal.line("Datasets", style="bold")
    terminal.table(
        [
            (d.dataset, f"{d.percent_left} %", f"{d.releases_left}", d.last_release or "none yet")
            for d in found.datasets
        ],
        ("dataset", ">left", ">releases left", "last release"),
    )
    for d in (each for each in found.datasets if each.year):
        terminal.line(f"  {d.dataset}, next twelve months: {d.year}")
    _section("Next scheduled runs", found.next_runs)


def _show_findings(findings: Sequence[Finding]) -> None:
    terminal.table([("ok" if one.good else "FAIL", one.name, one.text) for one in findings])


def _section(title: str, items: Sequence[Item]) -> None:
    terminal.line(title, style="bold")
    rows = []
    for item in items:
        time, name = f"{item.at.astimezone():%Y-%m-%d %H:%M}", f"{item.name}\n{item.reason}".strip()
        rows.append([text for text in (time, item.flow, item.state, name) if text])
    terminal.table(rows)
