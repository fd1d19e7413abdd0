"""What `benchmarks.peers` hands to a peer's program, and what it takes back: files in one folder.

A peer runs in an environment of its own, so this module imports numpy alone. Rows are coded by the
declared schema before they get here; the label is the last column.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

REQUEST, ROWS, MADE = "request.json", "rows.u16", "made.u16"

Codes = NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a peer is asked for. All of it is public.

    Parameters
    ----------
    n_codes
        Number of codes of each column, by the schema; that of the label is the last.
    epsilon, delta
        The budget, for one patient with one row, added or removed.
    rows_out
        Number of rows to be made.
    """

    n_codes: tuple[int, ...]
    epsilon: float
    delta: float
    rows_out: int


def write_request(folder: Path, request: Request, codes: Codes) -> None:
    """Put a request and its coded rows (n, d) into a folder."""
    (folder / REQUEST).write_text(json.dumps(asdict(request)), encoding="utf-8")
    (folder / ROWS).write_bytes(np.ascontiguousarray(codes, dtype="<u2").tobytes())


def read_request(folder: Path) -> tuple[Request, Codes]:
    """Read what `write_request` wrote."""
    facts = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    request = Request(**{**facts, "n_codes": tuple(facts["n_codes"])})
    return request, _rows(folder / ROWS, request)


def write_made(folder: Path, codes: NDArray[np.integer], request: Request) -> None:
    """Put the rows that were made beside the request."""
    if codes.shape != (request.rows_out, len(request.n_codes)):
        raise ValueError(f"expected {request.rows_out} rows of every column, found {codes.shape}")
    (folder / MADE).write_bytes(np.ascontiguousarray(codes, dtype="<u2").tobytes())


def read_made(folder: Path, request: Request) -> Codes:
    """Read the rows that were made, and hold them to the declared numbers of codes."""
    codes = _rows(folder / MADE, request)
    if (codes >= np.array(request.n_codes)).any():
        raise ValueError("expected codes of the declared schema alone")
    return codes


def _rows(path: Path, request: Request) -> Codes:
    codes = np.frombuffer(path.read_bytes(), dtype="<u2").reshape(-1, len(request.n_codes))
    return codes.astype(np.uint16)
