"""Events for the orchestrator: ids, states and codes of what has happened, and nothing else.

`emit` returns once the server has answered. Prefect's own ``emit_event`` hands an event to a
thread, which silently drops it if the server is away.

Rows of the ledger are also run events of OpenLineage, of the specification 2-0-2
(openlineage.io/spec). A row whose event was not accepted is sent again, with the same run id.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from pydantic import SecretStr

from privacy.errors import ClustMixError, refusals
from privacy.ledger import EntryState, LedgerEntry

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


T = TypeVar("T")

TIMEOUT_SECONDS = 10.0
"""Time that the server has for one answer."""

_BATCH = 100
_PAGE = 200
_NAME = re.compile(r"[a-z]{1,30}(\.[a-z]{1,30}){1,3}")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+/-]{0,199}")
_KEYS = frozenset(
    "arrival dataset deployment expected_at percent_left reason release_id releases_left".split()
)


class OrchestratorError(ClustMixError):
    """The orchestrator did not answer, or refused (exit code 1)."""


refusal = refusals(__package__, OrchestratorError)


@dataclass(frozen=True, slots=True)
class PublicEvent:
    """One event: a name, the resource that it concerns, and ids, states and codes.

    An event with an id may be sent again: Prefect stores it once and, within five minutes and
    without a restart of its server, acts on it once. An unknown key is refused, and a value that is
    neither a whole number nor a single word such as an id or a code; the message holds no value.

    Privacy
    -------
    The server stores and shows an event. A sentence is refused, since it could quote private data.
    """

    name: str
    resource_id: str
    payload: dict[str, str | int]
    event_id: UUID | None = None

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.payload) - _KEYS):
            raise refusal("EVENT_REFUSED key", keys=", ".join(sorted(_KEYS)), found=unknown[0])
        wrong = [key for key, value in self.payload.items() if not _is_public(value)]
        if not _NAME.fullmatch(self.name) or not _WORD.fullmatch(self.resource_id):
            wrong.append("name or resource_id")
        if wrong:
            raise refusal("EVENT_REFUSED", wrong=", ".join(wrong))

    def as_json(self) -> dict[str, Any]:
        """Return the event as the server takes it."""
        return {
            "id": str(self.event_id or uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": self.name,
            "resource": {
                "prefect.resource.id": self.resource_id,
                "prefect.resource.name": self.resource_id.rpartition(".")[2],
            },
            "payload": self.payload,
        }


def release_event(
    name: str, dataset: str, release_id: str, *, event_id: UUID | None = None, **more: str
) -> PublicEvent:
    """Return the event of a name about a release."""
    return PublicEvent(
        name=name,
        resource_id=f"clustmix.release.{release_id}",
        payload={"dataset": dataset, "release_id": release_id, **more},
        event_id=event_id,
    )


def dataset_event(
    name: str, dataset: str, *, event_id: UUID | None = None, **more: str | int
) -> PublicEvent:
    """Return the event of a name about a dataset."""
    place, payload = f"clustmix.dataset.{dataset}", {"dataset": dataset, **more}
    return PublicEvent(name, place, payload, event_id)


def orchestrator_is_served() -> bool:
    """Return whether a server is named, by ``PREFECT_API_URL``, that outlives this process."""
    return bool(os.environ.get("PREFECT_API_URL"))


def emit(events: Sequence[PublicEvent]) -> None:
    """Send events in order; return once the server has stored all. With an id, resend is safe."""
    if not events:
        return
    with orchestrator() as client:
        for start in range(0, len(events), _BATCH):
            batch = [event.as_json() for event in events[start : start + _BATCH]]
            client._client.post("/events", json=batch)


@contextmanager
def orchestrator(
    *, timeout_seconds: float = TIMEOUT_SECONDS, retries: int = 0
) -> Iterator[SyncPrefectClient]:
    """Give a client of the server that the environment names.

    A busy server is asked again `retries` times. Errors hold neither the address nor the password.
    """
    if not orchestrator_is_served():
        raise refusal("ORCHESTRATOR_UNREACHABLE unnamed")
    import httpx
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.exceptions import ObjectNotFound
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    status: int | None = None
    try:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: retries}):
            # Not `get_client`, which within a flow gives a client that somebody else closes.
            with SyncPrefectClient(
                os.environ["PREFECT_API_URL"],
                auth_string=os.environ.get("PREFECT_API_AUTH_STRING"),
                httpx_settings={"timeout": timeout_seconds},
            ) as client:
                yield client
                return
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
    except ObjectNotFound:
        status = 404
    except (httpx.HTTPError, httpx.InvalidURL):
        pass
    if status is not None and status < 500:
        raise refusal("ORCHESTRATOR_REFUSED", status=status)
    raise refusal("ORCHESTRATOR_UNREACHABLE")


def every(read: Callable[..., list[T]], **asked: Any) -> list[T]:
    """Return all results of a query to the server, which answers in pages."""
    found: list[T] = []
    while True:
        page = read(**asked, limit=_PAGE, offset=len(found))
        found += page
        if len(page) < _PAGE:
            return found


def _is_public(value: object) -> bool:
    return type(value) is int or (isinstance(value, str) and _WORD.fullmatch(value) is not None)


_NAMESPACE = "clustmix"
_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_TYPES = MappingProxyType(
    {
        EntryState.RESERVED: "START",
        EntryState.SEALED: "RUNNING",
        EntryState.PUBLISHED: "COMPLETE",
        EntryState.VOID: "ABORT",
        EntryState.BURNED: "FAIL",
        EntryState.WITHHELD: "FAIL",
    }
)


def run_events(rows: Iterable[LedgerEntry], *, owner: str) -> list[dict[str, Any]]:
    """Return the events of the rows of one installation, in their order.

    Privacy
    -------
    An event holds ids, a time, and the names of the dataset and its release; no facet, and so no
    number of rows or patients. Times depend on the rows, so the receiver is internal.
    """
    return [
        {
            "eventType": _TYPES[row.state],
            "eventTime": row.recorded_at,
            "producer": f"urn:clustmix:{version('clustmix')}",
            "schemaURL": _SCHEMA,
            "run": {"runId": str(uuid5(NAMESPACE_URL, f"urn:clustmix:run:{row.entry_id}"))},
            "job": _named(f"release.{row.dataset}"),
            "inputs": [_named(row.dataset)],
            "outputs": [_named(f"{row.dataset}/{row.release_id}")]
            if row.state is EntryState.PUBLISHED
            else [],
        }
        for row in rows
        if row.state in _TYPES and row.owner == owner
    ]


def send(events: Iterable[dict[str, Any]], url: SecretStr, *, whose: str = "LINEAGE") -> None:
    """Post each event (ClustMixError, without the address, if one is not accepted).

    `whose` is the middle of the variable that has the address: ``LINEAGE`` or ``NOTIFY``.
    """
    import httpx

    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would write the address
    address = url.get_secret_value()
    with suppress(httpx.HTTPError, httpx.InvalidURL):
        answers = (httpx.post(address, json=each, timeout=TIMEOUT_SECONDS) for each in events)
        if all(answer.is_success for answer in answers):
            return
    raise ClustMixError(
        f"{whose}_UNREACHABLE",
        f"expected the address of CLUSTMIX_{whose}_URL to accept an event, found that it did not; "
        "start the receiver, or correct the address",
    )


def _named(name: str) -> dict[str, str]:
    return {"namespace": _NAMESPACE, "name": name}
