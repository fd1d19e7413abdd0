from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from measuring import NoNoise, curator_of, domain_with, rows_with

from benchmarks.in_process import SeededNoise
from tasks.methods.clustmix.table_clustmix import Effort, TableClustMix
from tasks.methods.clustmix.tables.measured_tables import LABEL, measured_tables
from tasks.reporting import released_tables
from tasks.reporting.released_tables import DEVIATIONS

QUICK = Effort(starts=1, steps=3, fit_rows=50, points=10)
PATIENTS = 1_500
DOMAIN = domain_with(
    *(3, 9, 2, 40), numeric=(1, 3), missing=(1,), labels=("a", "b", "c"), rows_per_patient=3,
    patients=PATIENTS,
)  # fmt: skip


def cohort():
    """Rows of patients with up to three each, whose columns go with the label and each other."""
    rng = np.random.default_rng(11)
    per_patient = rng.integers(1, 4, PATIENTS)
    weight = np.repeat(1.0 / per_patient, per_patient)
    label = np.repeat(rng.choice(3, PATIENTS, p=[0.75, 0.2, 0.05]), per_patient)
    codes = np.column_stack(
        [np.minimum(rng.poisson(0.2 * k * (1 + label) / 2), k - 1) for k in DOMAIN.n_codes]
    )
    return rows_with(codes, label, weight=weight)


def tables_of(rows, noise, *, mu):
    method = TableClustMix(DOMAIN, QUICK)
    kept, plan, released = {}, method.plan(mu=mu), {}
    curator = curator_of(method, [rows], noise, mu=mu, seal=kept.__setitem__)
    for stage in method.stages()[:2]:
        released = {**released, **stage.run(curator, released)}

    def noisy(name):
        return kept[name].values / plan[name].scale, plan[name].unit_noise_stddev

    by_label = np.ones((sum(DOMAIN.n_codes), DOMAIN.n_labels))
    return list(measured_tables(DOMAIN, released, noisy, by_label=by_label))


def true_shares(rows, table):
    columns = [rows.label if c == LABEL else rows.codes[:, c] for c in table.columns]
    masks = [
        np.stack([np.isin(column, group) for group in groups], axis=1)
        for column, groups in zip(columns, table.groups, strict=True)
    ]
    other = masks[1] if len(masks) > 1 else np.ones((len(rows), 1))
    return (rows.weight[:, None] * masks[0]).T @ other / rows.weight.sum()


def test_without_noise_every_estimate_is_what_counting_gives():
    rows = cohort()
    tables = tables_of(rows, NoNoise(), mu=1.0)
    # The label, each of four columns alone and by label, and six pairs.
    assert len(tables) == 1 + 2 * 4 + 6
    for table in tables:
        if table.estimates is not None:
            np.testing.assert_allclose(table.estimates, true_shares(rows, table), atol=5e-6)


def test_shares_of_all_tables_agree():
    tables = tables_of(cohort(), SeededNoise(1), mu=0.1)
    alone = {table.columns[0]: table for table in tables if len(table.columns) == 1}
    assert {table.origin for table in tables} >= {"measured", "coarsened"}
    for table in tables:
        assert (table.shares >= 0.0).all()
        for axis, (column, groups) in enumerate(zip(table.columns, table.groups, strict=True)):
            margin = table.shares.sum(axis=1 - axis)
            whole = alone[column].shares[:, 0]
            expected = [whole[list(group)].sum() for group in groups]
            np.testing.assert_allclose(margin, expected, atol=1e-6)


@pytest.mark.parametrize("mu", [0.1, pytest.param(0.5, marks=pytest.mark.integration)])
def test_intervals_hold_at_their_rate_in_every_class_of_noise(mu):
    # The rate of a class of 500 cells has a standard error of 1 % if they are independent. A
    # noise that is thought a fifth smaller than it is moves the rate to 88 %, a fifth larger to 98.
    rows, held = cohort(), defaultdict(list)
    for seed in range(80):
        for table in tables_of(rows, SeededNoise(seed), mu=mu):
            if table.estimates is None:
                continue
            true = true_shares(rows, table)
            inside = np.abs(table.estimates - true) <= DEVIATIONS * table.stddevs
            ratio = np.digitize(table.stddevs / np.maximum(true, 1e-9), [0.1, 0.5, 2.0])
            kind = (len(table.columns), LABEL in table.columns, table.origin)
            for level in np.unique(ratio):
                held[(*kind, level)].extend(inside[ratio == level])
    rates = {kind: float(np.mean(cells)) for kind, cells in held.items()}
    assert all(rate >= 0.9 for rate in rates.values()), rates
    large = [rates[kind] for kind, cells in held.items() if len(cells) >= 500]
    assert len(large) >= 6
    assert all(0.93 <= rate <= 0.97 for rate in large), rates


def test_where_cells_are_many_what_was_measured_is_told_first(monkeypatch):
    tables = tables_of(cohort(), SeededNoise(1), mu=0.1)
    tables[-2] = replace(tables[-2], origin="implied")
    monkeypatch.setattr(released_tables, "MAX_CELLS", 10)
    kept = list(released_tables._within_limit(tables))
    assert [table.columns for table in kept] == [
        table.columns for table in tables if table.origin != "implied"
    ]
    assert len(kept) == len(tables) - 1
