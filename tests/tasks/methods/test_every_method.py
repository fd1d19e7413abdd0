"""What every proven method promises, whatever the table: the plan is drawn, records are valid."""

import numpy as np
import pytest
from measuring import curator_of, in_shards, released_of, sampled
from pydantic import TypeAdapter

from privacy.randomness import SeededNoise
from tasks.measurement.method import measure
from tasks.methods.method_config import MethodConfig
from tasks.methods.registry import METHODS, build

CLUSTMIX = {"kind": "clustmix"}
CDA = {"kind": "dp_cda", "declared_patients": 40, "order_of_mixture": 5}
DPGM = {
    "kind": "dpgm", "clusters": 3, "hidden_units": 3, "fourier_features": 8, "epochs": 2,
    "min_cluster_size": 5,
}  # fmt: skip
KMEANS = {"kind": "dp_kmeans", "clusters": 4, "rounds": 3, "n_features": 16}
FORMS = {
    "clustmix": CLUSTMIX,
    "dp_cda": {**CDA, "l2_clip_norm": 1.0},
    "dp_cda of numbers": {**CDA, "one_hot_levels": 0},
    "dp_kmeans": {**KMEANS, "features": "plain"},
    "dp_kmeans of features": {**KMEANS, "features": "fourier"},
    "dpgm": {**DPGM, "network": "vae"},
    "naive_bayes": {"kind": "naive_bayes"},
}


@pytest.fixture(scope="module")
def released(small):
    """Return a function that measures a table of some patients by a form, once each."""
    known = {}

    def run(form, n_patients, mu=2.0):
        if (form, n_patients) not in known:
            method = build(TypeAdapter(MethodConfig).validate_python(FORMS[form]), small.domain)
            rows = small.rows(small.patients(n_patients, 1))
            known[form, n_patients] = method, released_of(method, rows, SeededNoise(1), mu=mu)
        return known[form, n_patients]

    return run


def test_every_proven_method_is_here():
    proven = {entry.kind for entry in METHODS}
    assert {form["kind"] for form in FORMS.values()} == proven


@pytest.mark.parametrize("form", FORMS)
def test_every_planned_draw_is_made_and_records_are_valid(form, released, small):
    method, arrays = released(form, 100)
    assert all(np.isfinite(array).all() for array in arrays.values())
    for n_rows in (1, 75, 300):
        sampled(method, small.domain, arrays, n_rows)


@pytest.mark.parametrize("n_patients", [0, 1])
@pytest.mark.parametrize("form", FORMS)
def test_a_tiny_table_under_much_noise_releases_the_same_shapes(form, n_patients, released, small):
    # No exception and no shape may depend on the rows; factors of a dependence are post-processing.
    method, arrays = released(form, n_patients, mu=0.05)
    assert all(np.isfinite(array).all() for array in arrays.values())
    usual = released(form, 100)[1]
    shapes = {name: array.shape for name, array in arrays.items() if name != "loadings"}
    assert shapes == {name: array.shape for name, array in usual.items() if name != "loadings"}
    sampled(method, small.domain, arrays, 50)


@pytest.mark.parametrize("form", FORMS)
def test_shards_their_number_and_order_do_not_matter(form, released, small):
    method, whole = released(form, 100)
    rows = small.rows(small.patients(100, 1))
    order = np.random.default_rng(0).permutation(len(rows))
    shards = in_shards(rows, order, [3, 40, 40])
    parts = measure(method, curator_of(method, shards, SeededNoise(1), mu=2.0), mu=2.0)
    assert parts.keys() == whole.keys()
    assert all(parts[name].tobytes() == array.tobytes() for name, array in whole.items())
