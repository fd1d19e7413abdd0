"""A scheduler and workers as an operator starts them, in processes of their own."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import dask
import shard_functions
import yaml
from waiting import until


@contextmanager
def using(certificates, role="client"):
    """Read the Dask settings of a role in this process, as DASK_CONFIG does in a new one."""
    read = yaml.safe_load((certificates / role / "dask.yaml").read_text())
    with dask.config.set(dask.config.merge(dask.config.global_config, read)):
        yield


def program(folder, *arguments, settings=None, **variables):
    folder.mkdir(mode=0o700, exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DASK_")} | variables
    environment["PYTHONPATH"] = os.fspath(Path(shard_functions.__file__).parent)
    if settings is not None:
        environment["DASK_CONFIG"] = os.fspath(settings)
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def address_in(folder):
    """Wait for the address that a scheduler writes to its log."""
    log = folder / "log"
    found = until(lambda: re.search(r"Scheduler at:\s+(\S+)", log.read_text()), what=log.read_text)
    return found[1]


@contextmanager
def running(
    folder,
    *,
    certificates,
    scheduler=("--dashboard-address", "127.0.0.1:0"),
    workers=(("--dashboard-address", "127.0.0.1:0"),),
    **variables,
):
    def settings(role):
        return None if certificates is None else certificates / role / "dask.yaml"

    common = ("--host", "127.0.0.1", "--port", "0", "--no-show")
    with ExitStack() as stack:

        def start(name, *arguments, role):
            process = program(folder / name, *arguments, settings=settings(role), **variables)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)

        start("scheduler", "scheduler", *common, *scheduler, role="scheduler")
        address = address_in(folder / "scheduler")
        for number, options in enumerate(workers):
            start(
                f"worker-{number}",
                *("worker", address, "--host", "127.0.0.1", "--nthreads", "1", *options),
                *("--local-directory", os.fspath(folder / f"worker-{number}")),
                role="worker",
            )
        yield address
