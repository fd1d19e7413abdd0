"""The parts of a running server, killed one by one and started again as a service manager does."""

import json
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
from served_installation import _has

from flows.server.processes import _lives, _mark_of

RUN = "run"
"""A flow run: a process that a worker has started."""

DASK = "dask-worker"
"""A process that computes sums; its nanny starts another one."""


class SupervisedParts:
    def __init__(self, installation):
        self._installation = installation
        record = json.loads((installation.home / "server" / "parts.json").read_text())
        self._pids, self._commands, self._children = {}, {}, []
        for part in record["parts"]:
            if part["name"] == "database":
                continue
            process = psutil.Process(part["pid"])
            self._pids[part["name"]] = process.pid
            command = {"args": process.cmdline(), "env": process.environ(), "cwd": process.cwd()}
            self._commands[part["name"]] = command, Path(part["log"])

    def runs(self):
        return [
            process
            for process in self._installation.processes("prefect")
            if _mark_of(process).endswith("-worker") and process.pid not in self._pids.values()
            if not _has(process, ["resource_tracker"])
        ]

    def dask_workers(self):
        return [
            process
            for process in self._installation.processes("spawn_main")
            if _mark_of(process).endswith("cpu-workers")
        ]

    def kill(self, name):
        with suppress(psutil.Error):
            process = psutil.Process(self._pids[name])
            process.kill()
            process.wait(30)

    def revive(self):
        """Start every part again that has ended; return their names."""
        revived = []
        for name, pid in list(self._pids.items()):
            if _runs(pid):
                continue
            command, path = self._commands[name]
            with path.open("ab") as log:
                child = subprocess.Popen(
                    **command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._children.append(child)
            self._pids[name] = child.pid
            revived.append(name)
        return revived

    def forget(self):
        """Take note of the ends of what was started here."""
        for child in self._children:
            child.wait(60)


def _runs(pid):
    with suppress(psutil.Error):
        return _lives(psutil.Process(pid))
    return False
