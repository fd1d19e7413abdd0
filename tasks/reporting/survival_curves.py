"""The survival curve of a release, with a band: post-processing of released shares.

Times are uniform inside their intervals. Of n patients at risk when one begins, d have the event in
it and c leave observation, so that ``n - (d + c) x`` are at risk at its part x. The product-limit
estimator (Kaplan and Meier 1958) then falls by the factor ``(1 - (d + c) x / n) ** (d / (d + c))``.

The variance of log S has two parts: the noise, by the gradient of log S in the noisy counts, and
the choice of patients, ``d x / (n (n - (d + c) x))`` in each interval (Greenwood 1926). The band is
``S ** exp(+-1.96 sd / |log S|)``: it holds for each time with 95 %, and lies between 0 and 1.
"""

import io
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privacy.arrays import Floats
from storage.schema.labels import SurvivalLabel
from storage.schema.table import TableSchema
from tasks.ingest.encoding import label_codes
from tasks.reporting.released_tables import DEVIATIONS

PARTS = np.arange(1, 9) / 8
"""Places of a curve in each interval."""


def survival_curve(
    frame: pd.DataFrame, schema: TableSchema, tables: bytes | None
) -> dict[str, Any] | None:
    """Return the curve of a survival label: of released shares, else of rows, without a band."""
    label = schema.label
    if not isinstance(label, SurvivalLabel):
        return None
    n_levels, noise, patients = len(schema.labels.level_names), None, 1.0
    if tables is None:
        codes = [label_codes(frame[one.name], one, []) for one in schema.all_labels]
        shares = np.bincount(schema.labels.joined(codes), minlength=n_levels) / len(frame)
    else:
        cells = pd.read_parquet(io.BytesIO(tables), filters=[("column", "==", schema.labels.name)])
        cells = cells[cells["by"] == ""]
        shares, own = cells["share"].to_numpy(), cells["noise_patients"].to_numpy()
        width = (cells["high"] - cells["low"])[(cells["low"] > 0.0) & (cells["high"] < 1.0)]
        if len(width):  # otherwise the number of patients is unknown
            patients = 2.0 * DEVIATIONS * own[width.index[0] - cells.index[0]] / width.iloc[0]
            noise = float(np.median(own / np.hypot(1.0 - shares, np.sqrt(n_levels - 1) * shares)))
    outcomes, intervals, *_ = schema.labels.apart(np.arange(n_levels))
    edges, events = np.array(label.time.edges), outcomes != label.event.code
    every = np.arange(len(edges))[:, None] == intervals
    curve, band = _curve(every & events, every & ~events, patients * shares, noise=noise)
    times = (edges[:-1, None] + np.diff(edges)[:, None] * PARTS).ravel()
    return {"label": label, "band": band, "times": [edges[0], *times], "survival": [1.0, *curve]}


def _curve(
    ended: NDArray[np.bool_], left: NDArray[np.bool_], counts: Floats, *, noise: float | None
) -> tuple[Floats, list[tuple[float, float]]]:
    """Return S at the parts of the intervals, and its band where the noise of a count is known.

    Masks (k + 1, C) of the counts (C,) select patients with the event in an interval, and those
    that leave; the last row selects those who are observed up to the last edge.
    """
    log_s, variance = _log_survival(ended @ counts, left @ counts)
    if noise is None:
        return np.exp(log_s), []
    step = 1e-6 * counts.sum()
    for one in np.eye(len(counts)):
        moved, _ = _log_survival(ended @ (counts + step * one), left @ (counts + step * one))
        variance += (noise * (moved - log_s) / step) ** 2
    spread = np.minimum(DEVIATIONS * np.sqrt(variance) / np.maximum(-log_s, 1e-12), 30.0)
    low, high = np.exp(log_s * np.exp(spread)), np.exp(log_s * np.exp(-spread))
    return np.exp(log_s), [(1.0, 1.0), *zip(low, high, strict=True)]


def _log_survival(ended: Floats, left: Floats) -> tuple[Floats, Floats]:
    """Return log S and its variance by the choice of patients, at the parts of all intervals."""
    going = (ended + left)[:, None]
    at_risk = np.maximum(going[::-1].cumsum(axis=0)[:0:-1], 1e-12)
    going, events = going[:-1], ended[:-1, None]
    then = np.maximum(at_risk - going * PARTS, 1e-12)
    falls = events / np.maximum(going, 1e-12) * np.log(then / at_risk)
    both = np.array([falls, events * PARTS / (at_risk * then)])
    both[:, 1:] += both[:, :-1, -1:].cumsum(axis=1)  # the ends of the intervals before
    return both[0].ravel(), both[1].ravel()
