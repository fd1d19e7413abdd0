"""Histories of patients: a mixture of transition records, fitted to one noisy draw, and its events.

A mixture of products conditions exactly. Given the patient and the event before, every component
has a weight; from these come the kind, the gap, the value given the last value of this kind and the
patient's level of it, and the further columns. A chain of such draws does not reproduce the shares
of its records. Raking (Deming and Stephan 1940) on repeated draws of histories finds factors that
restore the released or fitted shares. Post-processing of released values.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from threadpoolctl import threadpool_limits

from privacy.arrays import Codes, Floats, Indices, Integers
from tasks.measurement.encoded import row_slices
from tasks.measurement.method import PUBLIC_SEED
from tasks.methods.clustmix.events.event_domain import LEVELS, Events
from tasks.methods.clustmix.events.event_table import EventTable
from tasks.methods.clustmix.tables import table_rule as rule
from tasks.methods.clustmix.tables.estimates import DrawnPairs, Targets, pair_targets
from tasks.methods.clustmix.tables.mixture import Effort, fit_pooled
from tasks.methods.clustmix.tables.one_ways import smooth_shares
from tasks.methods.clustmix.tables.table_sampler import Mixture

_COMPONENTS, _KNOWN_STDDEV = 128, 1e-4
_RUNS, _PATIENTS, _RATE, _MOST_FACTOR = 6, 6_000, 0.8, 1_000.0
_LEAST, _HARDLY, _PATIENTS_AT_ONCE = 1e-9, 0.01, 20_000


def fitted(
    table: EventTable, values: Floats, codes: Codes, *, n_patients: float
) -> dict[str, Floats]:
    """Fit the model of histories to drawn values, with codes (n, d') of synthetic patients.

    The noisy number of patients is that of the patients' table. The model has the weights (K,) and
    components (K, W) of the mixture, and factors of codes or pairs, by the names of columns.
    """
    active = codes[:, table.start] > 0
    drawn = DrawnPairs(
        choice=table.choice,
        values=values,
        unit_stddev=table.plan[table.name].unit_noise_stddev,
        patients=max(n_patients * float(active.mean()), 1.0),
    )
    shares = _one_way_shares(table, drawn, codes[active])
    joins = np.eye(table.measured.width, table.layout.width)
    for name, (column, groups) in table.coarse.items():
        own = table.layout.offsets[table.at[column]] + np.arange(len(groups))
        joins[table.measured.offsets[table.at[name]] + groups, own] = 1.0
    measured = pair_targets(table.measured, joins @ shares, drawn)
    targets = Targets(
        pairs=(replace(measured, joins=joins),),
        shares=shares,
        share_weight=4.0 * drawn.precision**2,
        by_label=shares[None],
    )
    penalty = rule.penalty(drawn.choice, pair_stddev=drawn.stddev, patients=drawn.patients)
    mixture = fit_pooled(
        table.layout, targets, n_components=_COMPONENTS, penalty=penalty, effort=Effort()
    )
    with threadpool_limits(1, user_api="blas"):
        return _raked(table, mixture, codes[active], _wanted(table, targets, mixture))


def _one_way_shares(table: EventTable, drawn: DrawnPairs, codes: Codes) -> Floats:
    """Return weighted shares (W,) of the codes of records: measured, or of known patients.

    The weights of a patient's records sum to one, so the patient's columns are as among patients.
    """
    layout, measured, one_way = table.layout, table.measured, drawn.choice.one_way
    heard = np.where(one_way > 0.0, drawn.patients * one_way, np.inf)
    noisy = drawn.values[: measured.width] * drawn.choice.norm / np.repeat(heard, measured.n_codes)
    noisy += 1.0 / measured.sizes
    shares = noisy[: layout.width]
    # Least squares: the codes of a kind are as noisy as their sum, which was measured as well.
    block, n_values = layout.block(table.event[0]), np.asarray(table.events.n_values)
    sums = np.add.reduceat(shares[block], table.events.starts[:-1])
    moved = (noisy[measured.block(table.at["kind"])] - sums) / (n_values + 1.0)
    shares[block] += np.repeat(moved, n_values)
    for column, own in enumerate(table.known(codes).T):
        counts = np.bincount(own, minlength=layout.n_codes[column]) + 0.5
        shares[layout.block(column)] = counts / counts.sum()
    stddev = np.maximum(drawn.stddev / heard[: layout.n_columns], _KNOWN_STDDEV)
    return smooth_shares(layout, shares, stddev=stddev)


def _wanted(table: EventTable, targets: Targets, mixture: Mixture) -> dict[tuple[str, ...], Floats]:
    """Return shares that histories should have: one-ways of gaps and events, pairs as fitted."""
    names, found = [f"event_{j}" for j in range(len(table.event))], dict[tuple[str, ...], Floats]()
    for name in ("gap", *names):
        found[name,] = targets.shares[table.layout.block(table.at[name])]
    # With kinds, a value follows the last one of its kind and the level, not the event before.
    followed = names[int(len(table.events.n_values) > 1) :]
    pairs = [("kind_before", "kind"), ("last_place", "kind"), ("number", "final")]
    pairs += [(name.replace("event", "before"), name) for name in followed]
    components = mixture.components @ targets.pairs[0].joins.T
    for pair in pairs:
        one, other = (components[:, table.measured.block(table.at[name])] for name in pair)
        found[pair] = one.T @ (mixture.weights[:, None] * other)
    # A step back in the order of kinds needs a later day, whose share gaps estimate better.
    kinds, later = found["kind_before", "kind"], found["gap",][:-1][table.events.later].sum()
    back = np.arange(kinds.shape[1]) < np.arange(len(kinds))[:, None]
    back[-1] = False
    kinds[back] *= min(1.0, later / max(float(kinds[back].sum()), _LEAST))
    return found


def _raked(
    table: EventTable, mixture: Mixture, codes: Codes, wanted: Mapping[tuple[str, ...], Floats]
) -> dict[str, Floats]:
    """Add factors to a mixture so that histories of these synthetic patients have the shares."""
    rng, model = np.random.default_rng(PUBLIC_SEED), dict(vars(mixture))
    model |= {" ".join(names): np.ones(shares.shape) for names, shares in wanted.items()}
    for _ in range(_RUNS):
        part = codes[rng.permutation(len(codes))[:_PATIENTS]]
        found = table.records(draw_histories(table, model, part, rng=rng), part)
        for names, shares in wanted.items():
            counts, columns = np.zeros(shares.shape), [table.at[name] for name in names]
            np.add.at(counts, tuple(found.codes[:, columns].T), found.weight)
            ratio = (shares * (counts.sum() / shares.sum()) + 1.0) / (counts + 1.0)
            moved = model[" ".join(names)] * ratio**_RATE
            model[" ".join(names)] = np.clip(moved, 1.0 / _MOST_FACTOR, _MOST_FACTOR)
    return model


def draw_histories(
    table: EventTable,
    model: Mapping[str, Floats],
    codes: Codes,
    *,
    bounds: Floats | None = None,
    rng: np.random.Generator,
) -> Events:
    """Draw the events of patients with codes (n, d') by the `fitted` model, by patient and time.

    Events lie between a patient's bounds (n, 2), in days; none where the second is earlier.
    """
    bounds = np.tile([-np.inf, np.inf], (len(codes), 1)) if bounds is None else bounds
    found = []
    for part in row_slices(max(len(codes), 1), _PATIENTS_AT_ONCE):
        steps = _Steps(table, model, codes[part], bounds=bounds[part], rng=rng)
        n_most = steps.moment.shape[1]
        for t in range(n_most):
            steps.take(t, np.flatnonzero(steps.number > t))
        patient, rank = np.nonzero(np.arange(n_most) < steps.number[:, None])
        own = steps.moment[patient, rank], steps.codes[patient, rank]
        found.append(Events(patient + part.start, *own))
    return Events(*map(np.concatenate, zip(*found, strict=True)))


class _Steps:
    """Events of patients, step by step, in arrays (n, most, ...)."""

    def __init__(
        self,
        table: EventTable,
        model: Mapping[str, Floats],
        codes: Codes,
        *,
        bounds: Floats,
        rng: np.random.Generator,
    ) -> None:
        domain, self.table, self.model = table.events, table, model
        self.bounds, self.rng = bounds, rng
        low, high = domain.fewest[codes[:, table.start]], domain.most_of[codes[:, table.start]]
        # The number is an upper bound until the model ends a history.
        self.least, self.number = low, np.where(bounds[:, 0] <= bounds[:, 1], high, 0)
        shape = (len(codes), int(self.number.max(initial=0)))
        self.moment = np.zeros(shape)
        self.codes = np.zeros((*shape, len(table.event)), dtype=np.int64)
        self.last = np.full((len(codes), len(domain.n_values)), max(domain.n_values) + 1)
        hidden, none = codes[:, table.hidden][:, 1:], domain.no_event[2:]
        # The first event is not after the last day. If a row names no kind, all are as likely.
        last = np.searchsorted(domain.offsets[:-1], bounds[:, 1], side="right") - 1
        self.first, levels = np.minimum(hidden[:, 0], np.maximum(last, 0)), hidden[:, 1:]
        self.present = levels < none
        self.due = self.present.copy()
        # A kind without values has the middle level, as in the records.
        level = np.where(self.present & (none > 1), levels, LEVELS // 2)
        self.level = domain.level_codes(level[:, domain.level_of], low[:, None])
        # Shares of codes by component (K, k), and by code (k, K); those of kinds (K, T).
        every = np.maximum(model["components"], _LEAST).astype(np.float32)
        shares = np.split(every, table.layout.offsets[1:-1], axis=1)
        for name, column in table.at.items():
            if name in model:
                shares[column] = shares[column] * model[name].astype(np.float32)
        self.shares, self.by_code = shares, [np.ascontiguousarray(one.T) for one in shares]
        joint = shares[table.event[0]]
        self.kinds = np.add.reduceat(joint, domain.starts[:-1], axis=1)
        self.inside = joint / self.kinds[:, domain.kind_of[:-1]]
        # The third row is for events between the fewest and the most, which may be the last.
        ends = self.by_code[table.at["final"]]
        self.ends = np.log(np.vstack([ends, ends.sum(axis=0)]))
        gaps = shares[table.at["gap"]][:, :-1]
        self.waits = gaps @ domain.later / gaps.sum(axis=1)
        logs = np.tile(np.log(np.maximum(model["weights"], _LEAST)), (len(codes), 1))
        self.known = table.known(codes)
        for column, own in enumerate(self.known.T):
            logs += np.log(self.by_code[column])[own]
        self.logs = logs.astype(np.float32)

    def take(self, t: int, who: Indices) -> None:
        """Draw event t of some of the patients (n,)."""
        table, at, kinds = self.table, self.table.at, self.table.events.kind_of
        none = [table.layout.n_codes[column] for column in table.event]
        before = self.codes[who, t - 1] if t > 0 else np.tile(none, (len(who), 1))
        early, ended = self.least[who] > t + 1, self.number[who] == t + 1
        logs = self.logs[who] + self.ends[np.where(ended, 1, np.where(early, 0, 2))]
        for place, codes in enumerate(before.T, start=at["before_0"]):
            logs += np.log(self.by_code[place])[codes]
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        # Events of one day are in the order of kinds: a step back needs a later day.
        back = (np.arange(self.kinds.shape[1]) < kinds[before[:, :1]]) & (t > 0)
        ways = np.where(back, (weights * self.waits) @ self.kinds, weights @ self.kinds)
        kind = self._code(ways * self._turns(t, who, kinds[before[:, 0]]))
        weights *= self.kinds.T[kind]
        back = back[np.arange(len(who)), kind, None]
        gap = np.full(len(who), len(table.events.gaps))
        if t > 0:
            left = self.bounds[who, 1] - self.moment[who, t - 1]
            soon = np.asarray(table.events.gaps) <= left[:, None]
            soon = soon * np.where(back & ~table.events.later, _LEAST, 1.0)
            gap = self._code(weights @ self.shares[at["gap"]][:, :-1] * soon)
        weights *= self.by_code[at["gap"]][gap]
        weights *= self.by_code[at["last"]][self.last[who, kind]]
        weights *= self.by_code[at["level"]][self.level[who, kind]]
        for j, column in enumerate(table.event):
            own = self.shares[column] if j else self.inside
            shares = weights @ own * (1.0 if j else kinds[:-1] == kind[:, None])
            if f"before_{j} event_{j}" in self.model:
                shares *= self.model[f"before_{j} event_{j}"][before[:, j]]
            self.codes[who, t, j] = code = self._code(shares)
            weights *= own.T[code]
        self.moment[who, t] = self._moment(gap, t, who, back[:, 0] * 1)
        self.last[who, kind] = table.events.on_grid[self.codes[who, t, 0]]
        self.due[who, table.events.level_of[kind]] = False
        ends = weights @ self.shares[at["final"]] * self.model["number final"][self.known[who, -1]]
        ended = (self._code(ends) > 0) & ~early & ~self.due[who].any(axis=1)
        self.number[who[ended]] = t + 1

    def _turns(self, t: int, who: Indices, before: Integers) -> Floats:
        """Return factors of kinds (n, T), by the model, the patient's kinds, and those still due.

        Other kinds keep a small factor, for patients whose own kinds hardly recur.
        """
        domain, due = self.table.events, self.due[who]
        out = due.any(axis=1) & (due.sum(axis=1) >= self.number[who] - t)
        allowed = np.where(out[:, None], due, np.maximum(self.present[who], _HARDLY))
        place = self.table.coarse["last_place"][1][self.last[who]]
        turns = self.model["last_place kind"][place, np.arange(len(domain.n_values))]
        turns = turns * self.model["kind_before kind"][before]
        return np.asarray(turns * allowed[:, domain.level_of])

    def _moment(self, gap: Integers, t: int, who: Indices, back: Integers) -> Floats:
        """Draw whole days, uniform inside the bins of the gaps, or of first events, and bounds.

        A first event is in a bin that begins before the last day, if there is one.
        """
        domain, (lower, latest) = self.table.events, self.bounds[who].T
        edges = np.asarray([*domain.gaps, 2.0 * domain.gaps[-1] + 1.0] if t > 0 else domain.offsets)
        bins, since = (gap, self.moment[who, t - 1]) if t > 0 else (self.first[who], 0.0)
        low = np.maximum(since + edges[bins], since + back if t > 0 else lower)
        days = np.maximum(np.minimum(since + edges[bins + 1], latest + 1.0) - low, 1.0)
        return np.asarray(np.minimum(low + np.floor(self.rng.random(len(who)) * days), latest))

    def _code(self, shares: Floats) -> Integers:
        """Draw a code of each row of shares (n, k), of any positive sum."""
        sums = np.cumsum(shares, axis=1, dtype=np.float64)
        point = self.rng.random(len(sums)) * sums[:, -1]
        return np.asarray((sums <= point[:, None]).sum(axis=1), dtype=np.int64)
