import itertools

import numpy as np
import pytest
from measuring import (
    curator_of,
    every_labelled_record,
    in_shards,
    released_of,
    sampled,
    transcript_of,
)
from pydantic import TypeAdapter, ValidationError

from audits.pairs import AUDIT_DOMAIN, AuditPatient, encode
from audits.subjects import NOISE, SUBJECTS
from benchmarks.in_process import SeededNoise
from flows.stages import text_of
from privacy.calibration import gdp_mu
from privacy.gaussian import GaussianAccountant
from privacy.parameters import Adjacency
from tasks.measurement.curator import exact_sum
from tasks.measurement.method import measure
from tasks.methods.clustmix.table_clustmix import Effort, TableClustMix
from tasks.methods.naive_bayes import NaiveBayes
from tasks.methods.registry import METHODS, build, method_entry
from tasks.steps.job import MethodConfig

CONFIG = TypeAdapter(MethodConfig)
CDA = {"kind": "dp_cda", "declared_patients": 40, "order_of_mixture": 5}
DPGM = {
    "kind": "dpgm", "clusters": 3, "hidden_units": 3, "fourier_features": 8, "epochs": 2,
    "min_cluster_size": 5,
}  # fmt: skip
KMEANS = {"kind": "dp_kmeans", "clusters": 4, "rounds": 3, "n_features": 16}
FORMS = {
    "clustmix": {"kind": "clustmix"},
    "dp_cda": {**CDA, "l2_clip_norm": 1.0},
    "dp_cda of numbers": {**CDA, "one_hot_levels": 0},
    "dp_kmeans": {**KMEANS, "features": "plain"},
    "dp_kmeans of features": {**KMEANS, "features": "fourier"},
    "dpgm": {**DPGM, "network": "vae"},
    "naive_bayes": {"kind": "naive_bayes"},
}


def method_of(form, domain):
    if form == "clustmix":  # with less computing after the draws
        return TableClustMix(domain, Effort(starts=1, steps=50, fit_rows=2_000, points=100))
    return build(CONFIG.validate_python(FORMS[form]), domain)


@pytest.fixture(scope="module")
def released(small):
    known = {}

    def run(form, n_patients, mu=2.0):
        if (form, n_patients) not in known:
            method = method_of(form, small.domain)
            rows = small.rows(small.patients(n_patients, 1))
            known[form, n_patients] = method, released_of(method, rows, SeededNoise(1), mu=mu)
        return known[form, n_patients]

    return run


def test_every_proven_method_is_here():
    proven = {entry.kind for entry in METHODS}
    assert {form["kind"] for form in FORMS.values()} == proven
    assert {subject.name for subject in SUBJECTS} == {*proven, NOISE}
    for entry in METHODS:
        assert method_entry(entry.kind) is entry
        assert CONFIG.validate_python({"kind": entry.kind}).kind == entry.kind
    with pytest.raises(KeyError, match="expected a registered method, found 'gan'"):
        method_entry("gan")


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "mwem"},
        {"kind": "naive_bayes", "slices": 2},
        {"kind": "clustmix", "random_features": 3},
        {"kind": "dpgm", "fourier_features": 7},
        {"kind": "dp_kmeans", "n_features": 3},
    ],
)
def test_settings_that_make_no_release_are_refused(settings):
    with pytest.raises(ValidationError):
        CONFIG.validate_python(settings)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("epsilon", [pytest.param(0.1, marks=pytest.mark.integration), 3.0])
def test_a_plan_composes_within_its_budget_and_names_its_stages(form, epsilon, small):
    method, mu = method_of(form, small.domain), gdp_mu(epsilon=epsilon, delta=1e-6)
    plan = method.plan(mu=mu)
    accountant = GaussianAccountant(adjacency=Adjacency.ADD_REMOVE).compose(plan.event)
    assert mu * (1 - 1e-6) <= accountant.mu <= mu
    assert accountant.epsilon(delta=1e-6) <= epsilon
    assert all(statistic.noise_stddev >= 50 for statistic in plan.statistics)
    names = [stage.name for stage in method.stages()]
    assert len(set(names)) == len(names)
    # What an operator reads while it runs.
    assert all(text_of(name) for name in names)


@pytest.mark.parametrize("form", FORMS)
def test_every_planned_draw_is_made_and_records_are_valid(form, released, small):
    method, arrays = released(form, 100)
    assert all(np.isfinite(array).all() for array in arrays.values())
    for n_rows in (1, 75, 300):
        sampled(method, small.domain, arrays, n_rows)


@pytest.mark.parametrize("n_patients", [0, 1])
@pytest.mark.parametrize("form", FORMS)
def test_a_tiny_table_under_much_noise_releases_the_same_shapes(form, n_patients, released, small):
    # No exception and no shape may depend on the rows.
    method, arrays = released(form, n_patients, mu=0.05)
    assert all(np.isfinite(array).all() for array in arrays.values())
    usual = released(form, 100)[1]
    shapes = {name: array.shape for name, array in arrays.items()}
    assert shapes == {name: array.shape for name, array in usual.items()}
    sampled(method, small.domain, arrays, 50)


@pytest.mark.parametrize("form", FORMS)
def test_shards_their_number_and_order_do_not_matter(form, released, small):
    method, whole = released(form, 100)
    rows = small.rows(small.patients(100, 1))
    order = np.random.default_rng(0).permutation(len(rows))
    shards = in_shards(rows, order, [3, 40, 40])
    parts = measure(method, curator_of(method, shards, SeededNoise(1), mu=2.0))
    assert parts.keys() == whole.keys()
    assert all(parts[name].tobytes() == array.tobytes() for name, array in whole.items())


RECORDS = every_labelled_record(AUDIT_DOMAIN)
"""Every record that there can be: twelve."""


def table_of(patients):
    return [encode(patients, n_columns=AUDIT_DOMAIN.n_columns)]


def some_patients(n, seed, folds):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        chosen = rng.integers(len(RECORDS), size=rng.integers(1, 5))
        yield AuditPatient(records=tuple(RECORDS[i] for i in chosen), fold=int(rng.integers(folds)))


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_no_patient_moves_a_draw_by_more_than_planned(subject):
    others, method = [*some_patients(30, 3, 5)], subject.bind(AUDIT_DOMAIN)
    alone = [AuditPatient(records=(record,), fold=fold) for record in RECORDS for fold in (0, 1)]
    plan = method.plan(mu=1.0)
    draws, _ = transcript_of(method, table_of(others)[0].load(), mu=1.0)
    names = {noisy.event.statistic for noisy, *_ in draws}
    assert names == {planned.name for planned in plan.statistics}
    # The same function is asked in many rounds: the first and the last are enough.
    asked = {}
    for noisy, contribution, public in draws:
        name = noisy.event.statistic
        places = asked.setdefault((name.rstrip("0123456789"), contribution.__name__), [])
        places[1:] = [(name, contribution, public)]
    for name, contribution, public in itertools.chain(*asked.values()):
        planned = plan[name]
        without = exact_sum(contribution, public, table_of(others))
        most = 0.0
        for patient in [*alone, *some_patients(16, 4, 2)]:
            change = exact_sum(contribution, public, table_of([*others, patient])) - without
            norm = np.linalg.norm(change.astype(np.float64))
            assert norm <= planned.l2_sensitivity, (name, norm)
            most = max(most, norm / planned.l2_sensitivity)
        # The bound means something: some patient comes near it, or moves the draw at least.
        assert most > 0.02, (name, most)


def test_equals_a_hand_calculation_without_noise(small):
    patients = [
        (0, [((0, 0, 0), 0)]),
        (1, [((0, 1, 1), 0)]),
        (2, [((3, 1, 2), 1), ((1, 1, 2), 1)]),
        (3, [((3, 1, 2), 0), ((2, 0, 0), 1)]),
    ]
    method = NaiveBayes(small.domain)
    released = released_of(method, small.rows(patients), mu=1e4)
    # Label 0 has 2.5 patients, label 1 has 1.5.
    np.testing.assert_allclose(released["label_frequencies"], [0.625, 0.375], atol=1e-6)
    no = [2 / 2.5, 0, 0, 0.5 / 2.5, 1 / 2.5, 1.5 / 2.5, 1 / 2.5, 1 / 2.5, 0.5 / 2.5]
    yes = [0, 0.5 / 1.5, 0.5 / 1.5, 0.5 / 1.5, 0.5 / 1.5, 1 / 1.5, 0.5 / 1.5, 0, 1 / 1.5]
    np.testing.assert_allclose(released["marginals"], [no, yes], atol=1e-6)
