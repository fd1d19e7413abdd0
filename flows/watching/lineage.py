"""Run events of OpenLineage about the rows of the ledger.

Events are those of the specification 2-0-2 (openlineage.io/spec): small documents with ids, times
and the names of datasets. A row whose event was not accepted is sent again, with the same run id.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version
from types import MappingProxyType
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from pydantic import SecretStr

from flows.events import TIMEOUT_SECONDS
from privacy.errors import ClustMixError
from privacy.ledger import EntryState, LedgerEntry

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
    """Post each event (ClustMixError if one is not accepted; the address stays unsaid).

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
