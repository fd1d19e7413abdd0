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

PAGES_HERE = ("--dashboard-address", "127.0.0.1:0")


@contextmanager
def using(certificates, role="client"):
    """Read the Dask settings of a role in this process, as DASK_CONFIG does in a new one."""
    read = yaml.safe_load((certificates / role / "dask.yaml").read_text())
    with dask.config.set(dask.config.merge(dask.config.global_config, read)):
        yield


def program(folder, certificates, role, *arguments, **variables):
    folder.mkdir(mode=0o700, exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DASK_")} | variables
    environment["PYTHONPATH"] = os.fspath(Path(shard_functions.__file__).parent)
    if certificates is not None:
        environment["DASK_CONFIG"] = os.fspath(certificates / role / "dask.yaml")
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", role, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


@contextmanager
def running(folder, *, certificates, scheduler=PAGES_HERE, workers=(PAGES_HERE,), **variables):
    with ExitStack() as stack:

        def start(name, role, *arguments):
            own = (*arguments, "--host", "127.0.0.1")
            process = program(folder / name, certificates, role, *own, **variables)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)

        start("scheduler", "scheduler", "--port", "0", "--no-show", *scheduler)
        log = folder / "scheduler" / "log"
        said = until(
            lambda: re.search(r"Scheduler at:\s+(\S+)", log.read_text()), what=log.read_text
        )
        for number, options in enumerate(workers):
            scratch = os.fspath(folder / f"worker-{number}")
            own = ("--nthreads", "1", *options, "--local-directory", scratch)
            start(f"worker-{number}", "worker", said[1], *own)
        yield said[1]
