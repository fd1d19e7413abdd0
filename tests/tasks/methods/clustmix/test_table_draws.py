import itertools
from dataclasses import replace

import numpy as np
import pytest
from measuring import domain_with, drawn_by, every_labelled_record, norm_of

from audits.pairs import AuditPatient, encode
from tasks.measurement.centred import counts_of, label_counts, measured_codes, to_simplex
from tasks.measurement.statistics import SUM_SCALE
from tasks.methods.clustmix.records.kernel_features import FEATURE_NORM, _kernel, _of_norm_one
from tasks.methods.clustmix.records.table_layout import Layout, pair_cells
from tasks.methods.clustmix.table_clustmix import Effort, TableClustMix
from tasks.methods.clustmix.tables import table_draws as draws

DOMAIN = domain_with(
    *(4, 2, 3, 1),
    numeric=(0, 2),
    missing=[0],
    labels=("home", "ward", "died"),
    rows_per_patient=4,
    patients=4_000,
)
RECORDS = every_labelled_record(DOMAIN)
METHOD = TableClustMix(DOMAIN, Effort(starts=1, steps=5, fit_rows=200))


def patients(n, seed):
    rng = np.random.default_rng(seed)
    return [
        AuditPatient(
            records=tuple(RECORDS[i] for i in rng.integers(len(RECORDS), size=rng.integers(1, 5))),
            fold=0,
        )
        for _ in range(n)
    ]


def rows_of(some):
    return encode(some, n_columns=DOMAIN.n_columns)


@pytest.fixture(scope="module")
def drawn():
    plan, seen, _ = drawn_by(METHOD, rows_of(patients(40, 0)), mu=1.0)
    return plan, seen


def test_no_patient_moves_a_draw_by_more_than_planned_and_one_nearly_does(drawn):
    plan, seen = drawn
    rounds = ["residual_round_1", "residual_round_2", "kernel_residuals"]
    assert list(seen) == ["label_counts", "pair_tables", *rounds]
    neighbours = [
        *(AuditPatient(records=(record,) * m, fold=0) for record in RECORDS for m in (1, 3)),
        *patients(60, 2),
    ]
    for name, (contribution, public) in seen.items():
        others = patients(12, 3)
        without = contribution(rows_of(others), **public)
        most = 0.0
        for patient in neighbours:
            moved = contribution(rows_of([*others, patient]), **public) - without
            assert norm_of(moved) <= plan[name].l2_sensitivity
            most = max(most, norm_of(moved) / plan[name].l2_sensitivity)
        assert most > (0.999 if name in ("label_counts", "pair_tables") else 0.9), name


def centred(code, k):
    return np.eye(k)[code] - 1.0 / k


def test_as_many_patients_have_as_many_rows_as_the_hidden_column_says():
    some, layout = patients(15, 4), Layout.of(DOMAIN)
    sizes = {"n_codes": layout.n_codes, "n_labels": 3, "n_visits": layout.n_visits}
    found = label_counts(rows_of(some), **sizes) / SUM_SCALE
    _, counts = counts_of(found, layout.n_codes)
    n_rows = np.bincount([len(patient.records) for patient in some], minlength=5)
    np.testing.assert_allclose(counts[:, -4:].sum(axis=0), n_rows[1:], atol=1e-4)


def test_pair_tables_are_those_of_their_definition(drawn):
    contribution, public = drawn[1]["pair_tables"]
    assert contribution is draws.pair_tables
    rows, choice = rows_of(patients(15, 5)), public["choice"]
    n_groups = choice.n_groups
    codes = measured_codes(rows, public["n_visits"])
    starts = np.cumsum(public["n_codes"]) - public["n_codes"]
    one_ways = np.zeros(sum(public["n_codes"]))
    pairs = [*itertools.combinations(range(len(n_groups)), 2)]
    tables = dict.fromkeys(pairs, 0.0)
    for line, weight in zip(codes, rows.weight, strict=True):
        blocks = [centred(code, k) for code, k in zip(line, public["n_codes"], strict=True)]
        one_ways += weight * choice.one_way * np.concatenate(blocks)
        groups = choice.groups[starts + line]
        for i, j in pairs:
            outer = np.outer(centred(groups[i], n_groups[i]), centred(groups[j], n_groups[j]))
            tables[i, j] = tables[i, j] + weight * outer
    found = contribution(rows, **public) / SUM_SCALE * choice.norm
    np.testing.assert_allclose(found[: len(one_ways)], one_ways, atol=1e-4)
    cells = pair_cells(n_groups, choice.used)
    matrix = np.zeros(cells.shape)
    n_cells = int(cells.sum())
    matrix[cells] = found[len(one_ways) : len(one_ways) + n_cells]
    assert not found[len(one_ways) + n_cells :].any()
    first = np.cumsum(n_groups) - n_groups
    for (i, j), table in tables.items():
        block = matrix[first[i] : first[i] + n_groups[i], first[j] : first[j] + n_groups[j]]
        np.testing.assert_allclose(block, table * choice.used[i, j], atol=1e-4)


def test_residuals_are_those_of_their_definition(drawn):
    contribution, public = drawn[1]["residual_round_2"]
    rows = rows_of(patients(15, 6))
    offsets = np.concatenate([[0], np.cumsum(DOMAIN.n_codes)])
    expected = 0.0
    for line, label, weight in zip(rows.codes, rows.label, rows.weight, strict=True):
        scores = public["intercepts"] + public["log_odds"][offsets[:-1] + line].sum(axis=0)
        p = np.exp(scores - scores.max())
        p /= p.sum()
        phi = [public["constant"]]
        for table, code in zip(public["features"], line, strict=True):
            phi.extend(table[code])
        largest = max(np.linalg.norm(np.eye(3)[c] - p) for c in range(3))
        residual = (np.eye(3)[label] - p) / largest / max(1.0, np.linalg.norm(phi))
        expected = expected + weight * np.outer(phi, residual)
    found = contribution(rows, **public) / draws.RESIDUAL_SUM_SCALE
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_kernel_residuals_are_those_of_their_definition(drawn):
    contribution, public = drawn[1]["kernel_residuals"]
    rows, kernel = rows_of(patients(15, 9)), public["kernel"]
    starts = np.cumsum(DOMAIN.n_codes) - np.array(DOMAIN.n_codes)
    expected = 0.0
    for line, label, weight in zip(rows.codes, rows.label, rows.weight, strict=True):
        place = kernel.embedding[starts + line].sum(axis=0)
        apart = ((place - kernel.points) ** 2).sum(axis=1)
        near = _kernel(place[None], kernel.points, kernel.reach)[0]
        np.testing.assert_allclose(near, 2.0**14 * np.exp(-apart / kernel.reach), atol=1.4)
        z = (near @ kernel.matrix - place @ kernel.linear - kernel.shift) * kernel.factors
        scores = public["intercepts"] + public["log_odds"][starts + line].sum(axis=0)
        p = np.exp(scores) / np.exp(scores).sum()
        largest = max(np.linalg.norm(np.eye(3)[c] - p) for c in range(3))
        residual = (np.eye(3)[label] - p) / largest
        at = kernel.coordinates[starts + line].sum(axis=0)
        products = [at[i] * at[j] for i, j in kernel.products] / kernel.spreads
        both = [one / max(np.linalg.norm(one), 1e-9) for one in (z, products)]
        expected = expected + weight * np.outer(np.concatenate(both) / np.sqrt(2.0), residual)
    assert len(kernel.products) == 3
    found = contribution(rows, **public) / draws.KERNEL_SUM_SCALE
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize("name", ["residual_round_2", "kernel_residuals"])
@pytest.mark.parametrize("part", ["log_odds", "intercepts"])
def test_a_model_that_is_not_finite_is_refused_since_its_bound_would_not_hold(drawn, name, part):
    contribution, public = drawn[1][name]
    broken = public[part].copy()
    broken.flat[0] = np.nan
    with pytest.raises(ValueError, match="finite numbers"):
        contribution(rows_of(patients(15, 6)), **{**public, part: broken})


def test_kernel_features_of_a_record_do_not_depend_on_the_records_beside_it(drawn):
    public = drawn[1]["kernel_residuals"][1]
    kernel, layout = public["kernel"], public["layout"]
    codes = np.array([codes for codes, _ in RECORDS], dtype=np.uint16)
    together = kernel.features(layout, codes)
    assert np.linalg.norm(together, axis=1).max() <= FEATURE_NORM * (1.0 + 2.0**-40)
    for part in (slice(0, 1), slice(3, 10), slice(None, None, -1)):
        np.testing.assert_array_equal(kernel.features(layout, codes[part]), together[part])
    # Whole numbers whose sums float64 holds exactly in any order.
    arrays = (kernel.embedding, kernel.points, kernel.matrix, kernel.linear, kernel.shift,
              kernel.coordinates)  # fmt: skip
    assert all((array == np.rint(array)).all() for array in arrays)
    embedded = np.abs(kernel.embedding).sum(axis=1).max() * layout.n_columns
    largest = 2**14 * np.abs(kernel.matrix).sum(axis=0)
    largest += embedded * np.abs(kernel.linear).sum(axis=0) + np.abs(kernel.shift)
    assert largest.max() < 2**53


def test_norms_of_many_products_do_not_depend_on_the_records_beside_them_to_the_last_bit():
    # A selection of columns lies column after column in memory, by which sums were rounded.
    rng = np.random.default_rng(8)
    products = rng.normal(size=(50, 300))[:, rng.permutation(300)]
    together = _of_norm_one(products)
    for row, one in zip(products, together, strict=True):
        np.testing.assert_array_equal(_of_norm_one(row[None])[0], one)


def test_a_norm_that_does_not_bound_a_row_is_refused(drawn):
    contribution, public = drawn[1]["pair_tables"]
    choice = replace(public["choice"], norm=0.99 * public["choice"].norm)
    with pytest.raises(ValueError, match="expected a norm that bounds what a row adds"):
        contribution(rows_of(patients(3, 7)), **{**public, "choice": choice})


@pytest.mark.parametrize("n_labels", [2, 3, 7, 50])
def test_no_larger_weight_keeps_every_residual_within_one(n_labels):
    rng = np.random.default_rng(n_labels)
    p = rng.dirichlet(np.full(n_labels, 0.3), 200)
    weights = draws.residual_weights(p)
    norms = np.linalg.norm(np.eye(n_labels)[None] - p[:, None], axis=2)
    np.testing.assert_allclose((weights[:, None] * norms).max(axis=1), 1.0, rtol=1e-12)
    if n_labels == 2:
        np.testing.assert_allclose(weights, 1.0 / (np.sqrt(2.0) * p.max(axis=1)))


def test_a_code_outside_the_domain_is_refused(drawn):
    rows = rows_of([AuditPatient(records=(((0, 2, 0, 0), 0),), fold=0)])
    for name in ("label_counts", "pair_tables"):
        contribution, public = drawn[1][name]
        with pytest.raises(ValueError, match="inside the public domain"):
            contribution(rows, **public)


def test_nearest_probabilities():
    rng = np.random.default_rng(8)
    for _ in range(50):
        values = rng.normal(0.2, 0.5, 6)
        found = to_simplex(values)
        assert found.min() >= 0.0
        assert found.sum() == pytest.approx(1.0)
        # Of a projection onto a convex set, no point of the set lies on the other side.
        others = rng.dirichlet(np.ones(6), 200)
        assert ((others - found) @ (values - found)).max() <= 1e-12
