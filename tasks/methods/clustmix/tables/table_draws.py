"""The draws of ClustMix on tables: requests, and exact sums of private rows with their proofs.

Written like `tasks.measurement.statistics`: rows of one shard and public arrays to int64, every
value an integer from the start, so that sums are exact in any order. The first draw, counts of
codes by label, is `tasks.measurement.centred.label_counts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import softmax

from privacy.arrays import Floats, Integers
from tasks.measurement.centred import measured_codes
from tasks.measurement.encoded import EncodedRows, row_slices
from tasks.measurement.measurement_plan import MeasurementPlan, SumRequest, plan_measurement
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.clustmix.records.kernel_features import FEATURE_NORM, N_FEATURES, KernelMap
from tasks.methods.clustmix.records.table_layout import (
    LABEL_COUNTS,
    PAIR_TABLES,
    Layout,
    pair_cells,
)
from tasks.methods.clustmix.tables import table_rule as rule

KERNEL_ROUND = "kernel_residuals"

_FEATURE_SCALE, _RESIDUAL_SCALE = 2**16, 2**18
"""Grid points per unit of a feature and of a residual."""

RESIDUAL_SUM_SCALE = _FEATURE_SCALE * _RESIDUAL_SCALE
"""Grid points per unit of their product."""

KERNEL_SUM_SCALE = FEATURE_NORM * _RESIDUAL_SCALE

_ROWS_AT_ONCE = 8192


def residual_round(index: int) -> str:
    """Name of the statistic of residual round ``index``, from 0."""
    return f"residual_round_{index + 1}"


def plan_of(layout: Layout, *, patients: int | None, mu: float, parts: int = 1) -> MeasurementPlan:
    """Plan every draw from public values alone; the number of patients may be undeclared.

    Privacy
    -------
    Reads no data. The sensitivities are those proved beside the sums.
    """
    shares = rule.shares_of(layout, patients=patients, mu=mu, parts=parts)
    counts = (layout.n_labels, 1 + layout.width)
    requests = [SumRequest(LABEL_COUNTS, counts, share=shares.label_counts)]
    if layout.n_columns > 1:
        most = rule.most_codes(layout, patients=patients, mu=mu, parts=parts)
        shape = (rule.n_cells(layout, most),)
        requests.append(SumRequest(PAIR_TABLES, shape, share=shares.pair_tables))
    residuals = (1 + n_features(layout), layout.n_labels)
    requests += [
        SumRequest(
            residual_round(index), residuals, share=shares.residuals, scale=RESIDUAL_SUM_SCALE
        )
        for index in range(shares.rounds)
    ]
    if shares.kernel > 0.0:
        more = rule.n_products(layout, patients=patients, kernel_mu=mu * np.sqrt(shares.kernel))
        kernel = (N_FEATURES + more, layout.n_labels)
        requests.append(
            SumRequest(KERNEL_ROUND, kernel, share=shares.kernel, scale=KERNEL_SUM_SCALE)
        )
    return plan_measurement(requests, mu=mu)


def n_features(layout: Layout) -> int:
    """Return the number of features of the label model: one code less for every declared column."""
    declared = layout.n_codes[: layout.n_declared]
    return int(sum(declared)) - len(declared)


def pair_tables(
    rows: EncodedRows,
    *,
    n_codes: tuple[int, ...],
    n_visits: int,
    choice: rule.PairChoice,
    length: int,
) -> Integers:
    """Centred one-ways and doubly centred tables of chosen pairs, divided by the norm.

    The result (`length`,), in units of ``1 / SUM_SCALE``, has the centred one-ways of all W codes,
    then the cells of `pair_cells` row by row, then zeros.

    Privacy
    -------
    Adjacency: add or remove one patient. A row adds ``b_j (k_j onehot_j - 1)`` for every column and
    ``a_ij (g_i e_i - 1)(g_j e_j - 1)'`` for every chosen pair of groups, with the integers
    ``b_j = trunc(w f_j SUM_SCALE / (S k_j))`` and ``a_ij = trunc(w SUM_SCALE / (S g_i g_j))``. The
    squared norm of ``k onehot - 1`` is ``k^2 (1 - 1 / k)``, and the norm of an outer product is the
    product of the norms, so that the row has a squared norm of at most ``(w SUM_SCALE / S)^2 (sum
    f_j^2 (1 - 1 / k_j) + sum (1 - 1 / g_i)(1 - 1 / g_j))``. An S whose square is below that sum is
    refused. The weights of a patient sum to at most one: sensitivity 1 (``SUM_SCALE`` grid points).
    Event: one discrete Gaussian.
    """
    sizes, norm = np.asarray(choice.n_groups, dtype=np.int64), choice.norm
    k, one_way = np.asarray(n_codes, dtype=np.int64), np.broadcast_to(choice.one_way, len(n_codes))
    inner, outer = 1.0 - 1.0 / sizes, 1.0 - 1.0 / k
    pairs = np.triu(choice.used, 1) * np.outer(inner, inner)
    squared = (one_way**2 * outer).sum() + pairs.sum()
    if not squared <= norm**2 * (1.0 + 1e-12):
        raise ValueError("expected a norm that bounds what a row adds, found a smaller one")
    rows.require_inside(n_codes[: rows.codes.shape[1]], 2**16)
    starts, width = np.cumsum(k) - k, int(k.sum())
    joined = choice.groups + np.repeat(np.cumsum(sizes) - sizes, k)
    column = np.repeat(np.arange(len(sizes)), sizes)
    per_code = np.repeat(sizes, sizes)
    cells = pair_cells(choice.n_groups, choice.used)
    total = np.zeros(length, dtype=np.int64)
    for weight, parts in rows.by_weight(_ROWS_AT_ONCE):
        places = (starts + measured_codes(part, n_visits) for part in parts)
        fine, table = _counted(places, joined, width=width, n_groups=len(column))
        n_rows = int(fine[: k[0]].sum())
        amount = np.trunc(weight * one_way * SUM_SCALE / (norm * k)).astype(np.int64)
        total[:width] += np.repeat(amount, k) * (np.repeat(k, k) * fine - n_rows)
        margin = per_code * np.diagonal(table)
        amounts = np.trunc(weight * SUM_SCALE / (norm * np.outer(sizes, sizes))).astype(np.int64)
        centred = np.outer(per_code, per_code) * table - margin[:, None] - margin + n_rows
        centred *= amounts[np.ix_(column, column)]
        chosen = centred[cells]
        total[width : width + len(chosen)] += chosen
    return total


def _counted(
    parts: Iterable[NDArray[Any]], joined: Integers, *, width: int, n_groups: int
) -> tuple[Integers, Integers]:
    """Count codes (W,) and pairs of groups (M, M) in places (n, d) of rows among all codes."""
    fine = np.zeros(width, dtype=np.int64)
    table = np.zeros((n_groups, n_groups), dtype=np.int64)
    for places in parts:
        fine += np.bincount(places.ravel(), minlength=width)
        # Whole numbers, small enough in each part for single precision.
        indicator = np.zeros((len(places), n_groups), dtype=np.float32)
        np.put_along_axis(indicator, joined[places], 1.0, axis=1)
        table += (indicator.T @ indicator).astype(np.int64)
    return fine, table


def weighted_residuals(
    rows: EncodedRows,
    *,
    features: tuple[Floats, ...],
    constant: float,
    log_odds: Floats,
    intercepts: Floats,
) -> Integers:
    """Sum features times residuals of a released label model, each scaled to its bound.

    A row has the features ``phi = (constant, z_1[x_1], ..., z_d[x_d])`` and the residual
    ``e_y - p``, ``p`` the probabilities of the model. It adds
    ``w phi (e_y - p)' / (max(1, |phi|) max_c |e_c - p|)``.

    `features` are tables (k_j, r_j) by the codes of each declared column, beside the `constant` of
    every row. `log_odds` (W, C) are the contributions of these codes to the scores of the labels,
    beside the `intercepts` (C,). The result (1 + sum of r_j, C) is in units of ``2**-34``.

    Privacy
    -------
    Adjacency: add or remove one patient. With ``u = trunc(2^16 phi)`` and
    ``v = trunc(2^18 w (e_y - p) / (max(1, |phi|) max_c |e_c - p|))`` a row adds ``u v'``, of norm
    ``|u| |v| <= 2^16 |phi| 2^18 w / max(1, |phi|) <= 2^34 w``, since truncation shrinks magnitudes
    and ``|e_y - p| <= max_c |e_c - p|``. The weights of a patient sum to at most one: sensitivity 1
    (``2**34`` grid points) given the released model. The largest residual is that of the least
    likely label: ``|e_c - p|^2 = 1 - 2 p_c + |p|^2``. No larger weight that is a function of p
    alone would do. Event: one discrete Gaussian, composed adaptively.
    """
    _require_finite(log_odds, intercepts, *features)
    sizes, n_labels = [len(table) for table in features], len(intercepts)
    rows.require_inside(sizes, n_labels)
    by_place = np.zeros((1 + sum(sizes), n_labels), dtype=np.int64)
    for part in map(rows.only, row_slices(len(rows), _ROWS_AT_ONCE)):
        ones = one_hot(part.codes, features)
        probabilities = probabilities_of(ones, log_odds, intercepts)
        shrunk = 1.0 / np.maximum(1.0, row_norms(ones, features, constant))
        by_place += (ones.T @ _residuals(part, probabilities, shrunk)).astype(np.int64)
    parts = [int(constant * _FEATURE_SCALE) * by_place[:1]]
    for table, sums in zip(features, np.split(by_place[1:], np.cumsum(sizes)[:-1]), strict=True):
        parts.append(np.trunc(table * _FEATURE_SCALE).astype(np.int64).T @ sums)
    return np.concatenate(parts)


def kernel_residuals(
    rows: EncodedRows,
    *,
    layout: Layout,
    kernel: KernelMap,
    features: tuple[Floats, ...],
    log_odds: Floats,
    intercepts: Floats,
) -> Integers:
    """Sum kernel features times residuals of a released label model, each scaled to its bound.

    As `weighted_residuals`, with features of a record, of norm one: (q, C), in units of ``2**-30``.

    Privacy
    -------
    Adjacency: add or remove one patient. A row adds ``u v'`` with ``|u| <= 2^12`` and
    ``v = trunc(2^18 w (e_y - p) / max_c |e_c - p|)``, of norm ``2^30 w`` at most. The weights of a
    patient sum to at most one: sensitivity 1 (``2**30`` grid points) given the released model and
    map, under which the features of a record do not depend on others. Event: one discrete Gaussian,
    composed adaptively.
    """
    _require_finite(log_odds, intercepts, *vars(kernel).values())
    rows.require_inside([len(table) for table in features], len(intercepts))
    total = np.zeros((kernel.n_features, len(intercepts)), dtype=np.int64)
    for part in map(rows.only, row_slices(len(rows), _ROWS_AT_ONCE)):
        probabilities = probabilities_of(one_hot(part.codes, features), log_odds, intercepts)
        amount = _residuals(part, probabilities, np.ones(len(part)))
        # At most 2^12 * 2^18 for each of 2^13 rows: exact in float64.
        total += (kernel.features(layout, part.codes).T @ amount).astype(np.int64)
    return total


def _require_finite(*model: Floats | float) -> None:
    """Refuse a released model that is not finite: the bound of a row would not hold."""
    if not all(np.isfinite(part).all() for part in model):
        raise ValueError("expected a label model of finite numbers, found others; report this")


def _residuals(rows: EncodedRows, probabilities: Floats, shrunk: Floats) -> Floats:
    """Residuals (n, C) times all weights of their rows, truncated to the grid."""
    amount = np.eye(probabilities.shape[1])[rows.label] - probabilities
    amount *= (rows.weight * residual_weights(probabilities) * shrunk * _RESIDUAL_SCALE)[:, None]
    return np.asarray(np.trunc(amount))


def one_hot(codes: NDArray[np.integer[Any]], features: Sequence[Floats]) -> csr_array:
    """Return a one and the one-hot codes of each record, of shape (n, 1 + W).

    A product with this matrix sums each row by itself, beginning with the one.
    """
    sizes = np.array([len(table) for table in features])
    places = np.zeros((len(codes), 1 + len(sizes)), dtype=np.int32)
    places[:, 1:] = codes[:, : len(sizes)] + (1 + np.cumsum(sizes) - sizes)
    ends = np.arange(0, places.size + 1, places.shape[1])
    shape = (len(codes), 1 + int(sizes.sum()))
    return csr_array((np.ones(places.size), places.ravel(), ends), shape)


def probabilities_of(ones: csr_array, log_odds: Floats, intercepts: Floats) -> Floats:
    """Label probabilities of records, each by itself, float64 of shape (n, C)."""
    return np.asarray(softmax(ones @ np.concatenate([intercepts[None], log_odds]), axis=1))


def residual_weights(probabilities: Floats) -> Floats:
    """Return ``1 / max_c |e_c - p|`` of each row: the largest weight that bounds residuals by one.

    The least likely label is the farthest. Its distance is at least ``sqrt(1 - 1 / C)``; with two
    labels it is ``sqrt(2) max(p, 1 - p)``.
    """
    farthest = 1.0 - 2.0 * probabilities.min(axis=1) + (probabilities**2).sum(axis=1)
    return np.asarray(1.0 / np.sqrt(np.maximum(farthest, 0.5)))


def row_norms(ones: csr_array, features: Sequence[Floats], constant: float) -> Floats:
    """Norms of the features of records, each by itself."""
    squares = [[constant**2], *((table**2).sum(axis=1) for table in features)]
    return np.asarray(np.sqrt(ones @ np.concatenate(squares)))
