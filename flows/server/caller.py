"""Whether the orchestrator of the local server answers, and whether its workers have called it.

Plain requests: to import Prefect's client takes longer than most parts need to start.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flows.server.ports import ask


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCaller:
    """Asks the orchestrator of the local server.

    Parameters
    ----------
    port
        Its port on the loopback interface.
    password
        What it asks for, ``name:password``.
    """

    port: int
    password: str = field(repr=False)

    def answers(self) -> bool:
        """Return whether the orchestrator is up; raises `OSError` where nobody answers."""
        return self._ask("/api/health") is not None

    def has_worker(self, pool: str, *, since: float) -> bool:
        """Return whether a worker of a pool has called, and not only one of an earlier start.

        Parameters
        ----------
        pool
            Name of the work pool.
        since
            When the worker was started, in seconds since 1970.
        """
        client = uuid.uuid4().hex
        token = self._ask(f"/api/csrf-token?client={client}")
        if token is None:
            return False
        workers = self._ask(
            f"/api/work_pools/{pool}/workers/filter",
            headers={"Prefect-Csrf-Client": client, "Prefect-Csrf-Token": token["token"]},
            question={},
        )
        return any(
            datetime.fromisoformat(worker["last_heartbeat_time"]).timestamp() >= since
            for worker in workers or ()
        )

    def _ask(
        self, path: str, *, headers: Mapping[str, str] | None = None, question: object = None
    ) -> Any:
        token = base64.b64encode(self.password.encode("ascii")).decode("ascii")
        headers = {**(headers or {}), "Authorization": f"Basic {token}"}
        status, content = ask(self.port, path, headers=headers, question=question)
        return json.loads(content) if status == 200 else None
