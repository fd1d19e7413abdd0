"""Distilled points: the mathematics against a slow reference, the features against pandas."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from made_up_release import SCHEMA

from clustmix import NaiveBayes, Schema
from privacy.errors import ConfigurationError
from storage.schema.columns import CategoricalColumn, NumericColumn
from storage.schema.date_columns import DateColumn
from storage.schema.table import TableSchema
from tasks.distillation import inducing_points
from tasks.distillation.distilled_rows import distilled, encoded, features
from tasks.distillation.inducing_points import RIDGE, best_labels, kernel_of_network, loss
from tasks.gates.agreement import CodedTable
from tasks.ingest.encoding import decode


def slow_kernel(x, y):
    """The tangent kernel of one hidden layer, pair by pair, in closed form."""
    found = np.zeros((len(x), len(y)))
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            ab, aa, bb = (2.0 * one @ two / len(a) + 0.01 for one, two in ((a, b), (a, a), (b, b)))
            angle = np.arccos(np.clip(ab / np.sqrt(aa * bb), -1.0, 1.0))
            below = (np.pi - angle) / (2 * np.pi)
            hidden = np.sqrt(aa * bb) * np.sin(angle) / (2 * np.pi) + below * ab
            found[i, j] = 2.0 * (hidden + below * ab) + 0.01
    return found


def slow_loss(points, labels, rows, wanted):
    gram = slow_kernel(points, points)
    ridge = RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    found = slow_kernel(rows, points) @ np.linalg.solve(gram + ridge, labels)
    return sum(float(np.sum((w - f) ** 2)) for w, f in zip(wanted, found, strict=True)) / (
        2 * len(rows)
    )


@pytest.fixture
def problem():
    rng = np.random.default_rng(3)
    points, rows = rng.uniform(size=(6, 4)), rng.uniform(size=(20, 4))
    return points, rng.normal(size=(6, 2)), rows, rng.normal(size=(20, 2))


@pytest.mark.parametrize(("kind", "near"), [(jnp.float64, 1e-8), (jnp.float32, 1e-4)])
def test_loss_and_gradient_are_those_of_a_slow_reference(problem, kind, near):
    with jax.enable_x64(True):
        arrays = [jnp.asarray(array, kind) for array in problem]
        of = jax.value_and_grad(lambda *all_of: loss(*all_of, kernel=kernel_of_network()), (0, 1))
        value, gradients = of(*arrays)
    assert value == pytest.approx(slow_loss(*problem), abs=near)
    step = 1e-6
    for array, gradient in enumerate(gradients):
        for place in ((0, 0), (3, 1), (5, 1)):
            ends = []
            for sign in (1, -1):
                moved = [one.copy() for one in problem]
                moved[array][place] += sign * step
                ends.append(slow_loss(*moved))
            assert gradient[place] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=near)


def test_no_labels_of_the_points_predict_the_rows_better(problem, monkeypatch):
    points, labels, rows, wanted = problem
    monkeypatch.setattr(inducing_points, "_BLOCK", 7)
    found = best_labels(points, rows=rows, labels=wanted)
    gram, crossed = slow_kernel(points, points), slow_kernel(rows, points)
    ridge = RIDGE * np.trace(gram) / len(gram)

    def penalised(soft):
        weights = np.linalg.solve(gram + ridge * np.eye(len(gram)), soft)
        return np.sum((wanted - crossed @ weights) ** 2) + ridge * np.sum(
            weights * (gram @ weights)
        )

    least = penalised(found)
    for change in np.random.default_rng(0).normal(scale=1e-2, size=(20, *labels.shape)):
        assert penalised(found + change) > least


UNKNOWN = {"name": "died on", "missing": ("9999-12-31",)}
COLUMNS = [
    NumericColumn(kind="integer", name="age at entry", lower=0, upper=99, bins=5),
    NumericColumn(kind="real", name="low", lower=0, upper=2, bins=4, missing=("-1",), decimals=1),
    NumericColumn(kind="integer", name="high", lower=0, upper=9, bins=(0, 3, 10), missing=("99",)),
    NumericColumn(kind="integer", name="empty", lower=1, upper=4, bins=4, nullable=True),
    DateColumn(kind="date", name="seen", lower="2015-01-01", upper="2016-12-31", bins="quarter"),
    DateColumn(kind="date", name="left", lower=-2, upper=9, bins=3, relative_to="seen"),
    DateColumn(kind="date", lower="2015-01-01", upper="2016-12-31", bins=3, **UNKNOWN),
    CategoricalColumn(kind="categorical", name="a-b", levels=("it's", "2"), missing=("?",)),
    CategoricalColumn(kind="categorical", name="none", levels=('"x"', "y"), nullable=True),
]


def test_a_feature_is_what_its_name_says():
    schema = TableSchema(
        columns=COLUMNS,
        label={"name": "y", "levels": {"a": [], "b": []}},
        more_labels=[{"name": "z", "levels": {"0": [], "1": []}}],
    )
    rng = np.random.default_rng(1)
    codes = np.stack([rng.integers(c.n_codes, size=60) for c in COLUMNS], 1).astype(np.uint16)
    label = rng.integers(4, size=60).astype(np.uint16)
    frame = decode(codes, label, schema, rng=rng)
    names, values = encoded(codes, schema)
    assert len(names) == sum(len(list(features(column))) for column in COLUMNS)
    for name, value in zip(names, values.T, strict=True):
        found = pd.Series(frame.eval(name)).fillna(False).astype(float)
        np.testing.assert_array_equal(found, value, err_msg=name)
    soft = distilled(CodedTable(codes=codes, label=label), schema, 10)
    for code, name in enumerate(soft.columns[-4:]):
        np.testing.assert_array_equal(frame.eval(name), label == code)


def test_the_same_rows_give_the_same_bytes_on_any_executor(executor):
    schema = TableSchema.model_validate(SCHEMA)
    rng = np.random.default_rng(2)
    codes = np.stack([rng.integers(c.n_codes, size=300) for c in schema.columns], 1)
    label = rng.integers(len(schema.labels.level_names), size=300).astype(np.uint16)
    rows = CodedTable(codes=codes.astype(np.uint16), label=label)
    found = distilled(rows, schema, 160, executor)
    assert found.shape == (160, len(encoded(rows.codes, schema)[0]) + 2)
    pd.testing.assert_frame_equal(found, distilled(rows, schema, 160), check_exact=True)


def test_a_fitted_model_distils_what_it_samples():
    schema = Schema(items=("tea",), label={"name": "y", "levels": {"no": (), "yes": ()}})
    frame = pd.DataFrame({"tea": [0, 1] * 500, "y": ["no", "yes"] * 500})
    model = NaiveBayes(schema, epsilon=1.0, delta=1e-6).fit(frame)
    points = model.distill(10)
    assert points.shape == (10, 4)
    assert points.attrs["guarantee"] == model.guarantee_.statement
    with pytest.raises(ConfigurationError, match="10 to 2,000"):
        model.distill(9)
