"""Conclusions with intervals: from the sealed tables themselves, or from a release and its draws.

Variances include the sampling of patients and the noise. Estimates that a model shrinks are biased
and get no interval. Post-processing of released values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privacy.arrays import Floats
from privacy.errors import refusals
from storage.schema.columns import NumericColumn
from storage.schema.table import TableSchema

if TYPE_CHECKING:
    from tasks.measurement.method import Noisy, Released

refusal = refusals(__package__)

KINDS = ("share", "mean", "risk_difference", "risk_ratio", "odds_ratio")
_CLEAR = 3.0
"""Least ratio of a number of patients to its noise, for ratios of such numbers to be estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate, its 95 % interval and standard errors, which for ratios are of the logarithm."""

    estimate: float
    low: float
    high: float
    sampling: float
    noise: float

    def __str__(self) -> str:
        return f"{self.estimate:.4g} (95 % interval {self.low:.4g} to {self.high:.4g})"


def combine(
    estimates: Sequence[float],
    variances: Sequence[float],
    *,
    rows: int | None = None,
    patients: float | None = None,
) -> Interval:
    """Return the interval of an estimate of a release, given those of its draws.

    The first estimate is that of the release, on which the interval is centred; the others are of
    its draws, and vary as noise does. Variances treat rows as patients; with `rows` and `patients`
    they are scaled to the number of patients. Degrees of freedom are Rubin's. Means, shares and
    contrasts by the label are honest; coefficients of several columns and contrasts of two columns
    are shrunk by the model: `contrast` reads the latter from sealed tables.
    """
    from scipy.stats import t

    n_draws = len(estimates) - 1
    if n_draws < 2 or len(variances) != len(estimates) or (rows is None) != (patients is None):
        raise refusal("DRAWS_FEW")
    within = float(variances[0]) * (rows or 1.0) / (patients or 1.0)
    between = (1.0 + 1.0 / n_draws) * float(np.var(estimates[1:], ddof=1))
    degrees = (n_draws - 1) * (1.0 + within / max(between, 1e-300)) ** 2
    return _interval(float(estimates[0]), within, between, quantile=float(t.ppf(0.975, degrees)))


def contrast(
    method: object,
    schema: TableSchema,
    released: Released,
    noisy: Noisy,
    *,
    kind: str,
    of: str,
    by: str | None = None,
    against: str | None = None,
) -> Interval:
    """Estimate a quantity from measured cells, without a model, in closed form (delta method).

    `kind` is one of `KINDS`. `of` is a ``COLUMN=LEVEL``, or a column for a mean; `by` is another,
    compared with the level `against` or all others. ``LOW..HIGH`` of whole bins is a level of a
    number. It is a ConfigurationError with the reason if no honest interval can be given: an
    unknown or shrunk quantity, a pair that was not measured, joined levels, numbers lost in noise.
    """
    from tasks.measurement.record_rules import LABEL

    measured = getattr(method, "cells", None)  # which ClustMix on tables has
    if kind not in KINDS or measured is None:
        raise refusal("NOT_OFFERED", kinds=", ".join(KINDS), found=kind[:40])
    if (kind in ("share", "mean")) == (by is not None):
        raise refusal("QUESTION_INVALID by")
    column, values = (_values if kind == "mean" else _codes)(schema, of)
    if by is None:
        cells = measured(released, noisy, column)
        values = values.reshape(cells.counts.shape)
        among = np.isfinite(values)
        return _delta(cells, *_mean(cells, among, np.where(among, values, 0.0)))
    group_column, group = _codes(schema, by)
    rest = ~group if against is None else _codes(schema, against, of=group_column)[1]
    if group_column == column or (group & rest).any():
        raise refusal("QUESTION_INVALID groups")
    turned = group_column == LABEL  # the label is the second column of its tables
    columns = (column, group_column) if turned else (group_column, column)
    cells = measured(released, noisy, *columns)
    if cells is None:
        raise refusal("PAIR_NOT_MEASURED", of=of[:40], by=by[:40])
    event = _mask(cells, int(not turned), values)
    groups = [_mask(cells, int(turned), codes) for codes in (group, rest)]
    return _compared(kind, cells, event, groups)


def _compared(kind: str, cells: Any, event: Floats, groups: Sequence[Floats]) -> Interval:
    """Compare the risks of an event (a, b) in two groups of cells."""
    (first, slope), (other, of_other) = (_mean(cells, among, event) for among in groups)
    if kind == "risk_difference":
        return _delta(cells, first - other, slope - of_other)
    for among in groups:
        for part in (among * event, among * (1.0 - event)):
            _clear(cells, part)
    if kind == "risk_ratio":
        return _delta(cells, np.log(first / other), slope / first - of_other / other, np.exp)
    slope, of_other = slope / (first * (1.0 - first)), of_other / (other * (1.0 - other))
    log = np.log(first / (1.0 - first)) - np.log(other / (1.0 - other))
    return _delta(cells, log, slope - of_other, np.exp)


def _codes(schema: TableSchema, text: str, *, of: int | None = None) -> tuple[int, NDArray[Any]]:
    """Return the column and the codes of ``COLUMN=LEVEL``, or of a level of a known column."""
    from tasks.ingest.conditional_rows import allowed_codes

    name, _, level = text.partition("=")
    if of is not None:
        name, level = (*schema.column_names, schema.first_label.name)[of], text
    [(place, codes)] = allowed_codes(schema, {name: level}).items()
    return place, codes


def _values(schema: TableSchema, name: str) -> tuple[int, Floats]:
    """Return a column of numbers and the middles of its bins, NaN for a missing cell."""
    for place, column in enumerate(schema.columns):
        if column.name == name and isinstance(column, NumericColumn):
            if column.is_date and column.base is None:
                break
            starts, step = np.asarray(column.bin_starts, np.float64), 10.0**-column.grid_decimals
            # The last value of a bin is one step below the next bin.
            middles = (starts + np.append(starts[1:] - step, column.upper)) / 2.0
            return place, np.append(middles, np.full(column.n_codes - len(starts), np.nan))
    raise refusal("QUESTION_INVALID mean", found=name[:40])


def _mask(cells: Any, axis: int, codes: NDArray[Any]) -> Floats:
    """Return 1 (a, b) for groups of codes; codes that were measured with others are refused."""
    found = [codes[list(group)] for group in cells.groups[axis]]
    if any(own.any() != own.all() for own in found):
        raise refusal("LEVELS_JOINED")
    mask = np.array([float(own.all()) for own in found])
    return np.ones(cells.counts.shape) * (mask[:, None] if axis == 0 else mask)


def _clear(cells: Any, mask: Floats) -> float:
    """Return the patients of some cells; refused where these are lost in noise."""
    total = float((cells.counts * mask).sum())
    if total < _CLEAR * float(np.sqrt(cells.noise(mask))):
        raise refusal("LOST_IN_NOISE", clear=_CLEAR)
    return total


def _mean(cells: Any, among: NDArray[Any], values: NDArray[Any]) -> tuple[float, Floats]:
    """Return the mean of values (a, b) among some cells, and its gradient in the cells."""
    total = _clear(cells, among * 1.0)
    mean = float((cells.counts * among * values).sum()) / total
    return mean, among * (values - mean) / total


def _delta(cells: Any, estimate: float, gradient: Floats, back: Any = float) -> Interval:
    """Return the interval of an estimate with this gradient (a, b), on the scale that is `back`."""
    sampling = float((np.maximum(cells.counts, 0.0) * gradient**2).sum())
    return _interval(estimate, sampling, cells.noise(gradient), back=back)


def _interval(
    centre: float, sampling: float, noise: float, *, quantile: float = 1.959964, back: Any = float
) -> Interval:
    half = quantile * float(np.sqrt(sampling + noise))
    return Interval(
        estimate=float(back(centre)),
        low=float(back(centre - half)),
        high=float(back(centre + half)),
        sampling=float(np.sqrt(sampling)),
        noise=float(np.sqrt(noise)),
    )
