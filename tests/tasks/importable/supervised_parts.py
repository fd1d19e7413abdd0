"""The parts of a running server, to be killed; its supervisor starts them again."""

from contextlib import suppress

import psutil
from served_installation import _has

from flows.local_server import part_states


class SupervisedParts:
    def __init__(self, installation):
        self._installation = installation

    def runs(self):
        pids = {part.pid for part in part_states(self._installation.home / "server")}
        return [
            process
            for process in self._installation.processes("prefect")
            if _part_of(process).endswith("-worker") and process.pid not in pids
            if not _has(process, ["resource_tracker"])
        ]

    def dask_workers(self):
        return [
            process
            for process in self._installation.processes("spawn_main")
            if _part_of(process) == "cpu-workers"
        ]


def _part_of(process):
    with suppress(psutil.Error):
        return process.environ().get("SUPERVISOR_PROCESS_NAME", "")
    return ""
