"""The commands of ``clustmix server``."""

from dataclasses import asdict
from functools import partial
from typing import Annotated

from flows.cli import terminal
from flows.cli.options import Commands, load_settings, option
from flows.cli.terminal import Whole

MAX_WORKERS = 256

app = Commands(
    name="server",
    help="Run all parts of an installation on this machine.\n\nThey are the orchestrator with its "
    "page and its database, a Dask cluster, the workers that measure and publish, and the watcher "
    "of the landing folder: processes that listen on the loopback interface alone.",
)


@app.command()
def start(
    port: Annotated[
        int | None, option("N", "port of the page (default: 4200, or a free one)")
    ] = None,
    workers: Annotated[
        int | None, option("N", "Dask workers (default: cores, at most 2)", min=1, max=MAX_WORKERS)
    ] = None,
) -> None:
    """Start the parts, wait until they answer, and print the addresses.

    Parts that are running are left as they are.
    """
    from flows.cli.progress import Progress
    from flows.local_server import PASSWORD_FILE, part_states, start_server

    settings = load_settings()
    with Progress("starting the server", quiet=False) as progress:
        addresses, started = start_server(settings, port=port, n_workers=workers, log=progress.note)
    password = settings.server_home / PASSWORD_FILE
    releases, landing = addresses.pages or settings.releases_url, settings.landing
    parts = part_states(settings.server_home)
    terminal.answer(
        {
            "started": started,
            "page": addresses.orchestrator,
            "password_file": str(password),
            "landing": landing,
            "releases": releases,
            "cluster": addresses.scheduler or settings.dask_address,
            "parts": [asdict(part) for part in parts],
        },
        "the server runs" if started else "the server runs already",
        *(f"  {part.name:<16}{part.pid:>8}" for part in parts),
        {
            "Page": Whole(addresses.orchestrator),
            "Cluster": Whole(addresses.scheduler or settings.dask_address),
            "Password": Whole(f"{password} (all of its one line)"),
            "Releases": Whole(releases),
            "Logs": Whole(settings.server_home),
            "Next": Whole(f"put a table into {landing}, then"),
        },
        f"            clustmix ready {landing}/TABLE --dataset NAME",
        "            clustmix status shows what goes on, clustmix server stop ends it",
    )


@app.command()
def stop() -> None:
    """Stop the processes that start has started, and no other."""
    from flows.cli.progress import Progress
    from flows.local_server import stop_server

    with Progress("stopping the server"):
        stopped = stop_server(load_settings().server_home)
    said = f"stopped: {', '.join(stopped)}" if stopped else "no part of the server was running"
    terminal.answer({"stopped": list(stopped)}, said)


@app.command()
def status() -> int:
    """Show the state of each part; exit code 1 if one does not run.

    A part that ends is started again, and its restarts are counted. Times are of this machine.
    """
    from flows.local_server import part_states

    parts = part_states(load_settings().server_home)
    rows = [
        (p.name, p.state.lower(), f"{p.pid or ''}", f"{p.restarts}", p.since_text) for p in parts
    ]
    header = ("part", "state", ">process", ">restarts", "since")
    terminal.answer(
        {"parts": [asdict(part) for part in parts]},
        partial(terminal.table, rows, header) if rows else "no part of the server is running",
    )
    return 0 if parts and all(part.runs for part in parts) else 1
