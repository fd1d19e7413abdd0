import copy
import re
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from fixed_runs import fixed_randomness
from sklearn.base import clone
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.validation import check_is_fitted

import clustmix
from clustmix import DPCDA, NaiveBayes, NotFittedError, Schema, Synthesizer
from clustmix.guarantee import NOT_CHARGED
from privacy.errors import ConfigurationError, InputError

TARGET = {"epsilon": 1.0, "delta": 1e-6}
BY_PATIENT = {**TARGET, "patient_column": "patient", "max_rows_per_patient": 2}


def test_nothing_says_that_it_was_charged_without_a_ledger(schema, frame, tmp_path):
    model = NaiveBayes(schema, **BY_PATIENT).fit(frame)
    assert repr(model).endswith("fitted; nothing was charged")
    assert str(model.guarantee_).endswith(NOT_CHARGED)
    rows = model.sample(10)
    rows.to_parquet(tmp_path / "rows.parquet")
    assert pd.read_parquet(tmp_path / "rows.parquet").attrs["guarantee"].endswith(NOT_CHARGED)


def test_a_second_fit_is_a_second_charge_and_refused(schema, frame):
    model = NaiveBayes(schema, **BY_PATIENT).fit(frame)
    before = {name: array.copy() for name, array in model.released_.items()}
    for again in (lambda: model.fit(frame), lambda: model.set_params(epsilon=2.0)):
        with pytest.raises(ConfigurationError, match=r"FITTED: .* a second fit is a second charge"):
            again()
    assert all((model.released_[name] == array).all() for name, array in before.items())
    # A copy is another measurement, with noise of its own.
    anew = clone(model).fit(frame).released_
    assert anew.keys() == before.keys()
    assert not all((anew[name] == array).all() for name, array in before.items())


def test_a_notebook_shows_settings_guarantee_and_charge_and_nothing_runs(schema, frame):
    odd = Schema.model_validate({**schema.model_dump(), "ignore": ["<script>"]})
    model = NaiveBayes(odd, **{**BY_PATIENT, "patient_column": "<b>p"})
    assert "not fitted" in model._repr_html_()
    assert "&lt;b&gt;p" in model._repr_html_()
    shown = NaiveBayes(schema, **BY_PATIENT).fit(frame)
    page, plan = shown._repr_html_(), model.plan()._repr_html_()
    assert re.search("recognises at most.*Nothing was charged", page)
    assert "feature_by_label_histograms" in plan
    for html in (page, plan, model._repr_html_()):
        # Nothing is loaded, nothing runs, and no colour of its own: light or dark.
        assert not [part for part in ("<script", "<b>", "http", "src=", "color") if part in html]


def test_a_fit_that_stopped_after_its_draw_is_not_made_again(schema, frame, monkeypatch):
    model = NaiveBayes(schema, **BY_PATIENT)
    with monkeypatch.context() as patch:
        patch.setattr("tasks.measurement.curator.Curator.event", property(lambda _: 1 / 0))
        with pytest.raises(ZeroDivisionError):
            model.fit(frame)
    with pytest.raises(ConfigurationError, match=r"FITTED"):
        model.fit(frame)
    with pytest.raises(NotFittedError):
        model.sample(1)


def test_a_table_that_is_refused_draws_nothing(schema, frame):
    model = NaiveBayes(schema, **BY_PATIENT)
    for refused, message in (
        (frame.assign(ward="Z"), "INPUT_REFUSED: column ward: expected declared levels"),
        (frame.assign(extra=1), "HEADER_MISMATCH"),
        (frame.assign(died=0), "ONE_LABEL_LEVEL"),
        (frame.iloc[:0], "EMPTY_TABLE"),
        ([1, 2], r"FRAME_TYPE: .*, found list"),
        (
            pa.Table.from_pandas(frame).set_column(1, "age", pa.array([[1]] * len(frame))),
            "COLUMN_TYPE: column 'age' has the type list",
        ),
    ):
        with pytest.raises((InputError, ConfigurationError), match=message):
            model.fit(refused)
    assert model.fit(frame).sample(1).shape == (1, 3)


def test_habits_of_scikit_learn(schema, frame):
    model = DPCDA(schema, **BY_PATIENT, order_of_mixture=8)
    assert model.get_params()["order_of_mixture"] == 8
    assert model.set_params(order_of_mixture=4, epsilon=2.0) is model
    assert (model.order_of_mixture, model.epsilon) == (4, 2.0)
    for refused, error, message in (
        (lambda: model.set_params(turns=4), ValueError, "expected a setting .*, found 'turns'"),
        (
            lambda: model.set_params(order_of_mixture=2, epsilon=0.0),
            ConfigurationError,
            "EPSILON_INVALID",
        ),
        (lambda: Synthesizer(schema, **TARGET), TypeError, "expected a class of a method"),
    ):
        with pytest.raises(error, match=message):
            refused()
    assert (model.order_of_mixture, model.epsilon) == (4, 2.0)
    twin = clone(model)
    assert isinstance(twin, DPCDA)
    assert {**twin.get_params(), "schema": schema} == {**model.get_params(), "schema": schema}
    with pytest.raises(NotFittedError, match="NOT_FITTED"):
        model.sample(1)
    with pytest.raises(SklearnNotFittedError):
        check_is_fitted(model)
    check_is_fitted(NaiveBayes(schema, **BY_PATIENT).fit(frame))
    assert repr(model) == (
        "DPCDA(epsilon=2.0, delta=1e-06, patient_column='patient', max_rows_per_patient=2, "
        "order_of_mixture=4), not fitted"
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0.0}, "EPSILON_INVALID"),
        ({"delta": 0.5}, "DELTA_INVALID"),
        ({"adjacency": "other"}, "SETTING_INVALID: DPCDA: adjacency: expected .add_remove. or"),
        ({"scale": 0}, "SETTING_INVALID: DPCDA: scale: expected a number greater than 0; found sc"),
        ({"schema": {}}, "SCHEMA_INVALID: expected a clustmix.Schema, found dict"),
        ({"max_rows_per_patient": 2}, "PRIVACY_UNIT_INVALID"),
        ({"patient_column": "ward"}, "PRIVACY_UNIT_INVALID: .* outside columns"),
        ({"patient_column": 3}, "SETTING_INVALID: DPCDA: patient_column: expected a valid string"),
        ({"max_rows_per_patient": 2.5}, "SETTING_INVALID: DPCDA: max_rows_per_patient: expected a"),
        ({"patients": 2500.5}, "SETTING_INVALID: DPCDA: patients: expected a valid integer"),
        ({"class_sizes": (200, 200, 200)}, "CLASS_SIZES_INVALID"),
        ({"declared_patients": 10}, "ORDER_ABOVE_CLASS"),
        ({"patients": 0, "epsilon": "1"}, "epsilon: .* and patients: .*; found epsilon='1', pat"),
    ],
)
def test_a_setting_that_is_not_acceptable_is_one_line_at_construction(schema, changed, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        DPCDA(**{"schema": schema, **TARGET, **changed})
    assert "\n" not in str(caught.value)


def test_as_many_rows_as_were_declared_and_never_as_many_as_were_measured(schema, frame):
    model = NaiveBayes(schema, **BY_PATIENT, patients=30).fit(frame)
    assert (len(model.sample()), len(model.sample(7))) == (30, 7)
    with pytest.raises(ConfigurationError, match=r"ROWS_INVALID: .* found None; give sample.n."):
        NaiveBayes(schema, **BY_PATIENT).fit(frame).sample()
    for declared, rows in (
        ({"class_sizes": (130, 140)}, 270),
        ({"declared_patients": 300}, 300),
        ({"declared_patients": 300, "patients": 290}, 290),
    ):
        model = DPCDA(schema, **BY_PATIENT, **declared, order_of_mixture=100).fit(frame)
        assert len(model.sample()) == rows


def test_rows_under_conditions(schema, frame):
    model = NaiveBayes(schema, **BY_PATIENT).fit(frame)
    rows = model.sample(50, where={"ward": "B", "died": "yes"})
    assert len(rows) == 50
    assert set(rows["ward"]) == {"B"}
    assert set(rows["died"]) == {"yes"}
    for n, where, message in (
        (5, {"ward": "Z"}, "CONDITION_UNKNOWN: .* found ward=Z"),
        (5, {"age": 5}, "CONDITION_UNKNOWN: .* found age=5"),
        (5, "died", "CONDITION_INVALID: .* found str"),
        *((n, None, "ROWS_INVALID") for n in (0, 5.0, "5", 10_000_001)),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.sample(n, where=where)
    assert len(model.sample(np.int64(5))) == 5


@pytest.mark.parametrize(
    "form",
    [
        "polars",
        "arrow",
        "dictionary",
        "stream",
        "interchange",
        "index",
        "of pandas",
        "arrow dtypes",
    ],
)
def test_the_same_table_of_any_library_is_the_same_measurement(schema, frame, seeded, form):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    wards = table["ward"].cast(pa.string()).dictionary_encode()
    others = {
        "polars": lambda: pl.from_arrow(table),
        "arrow": lambda: table,
        "dictionary": lambda: table.set_column(2, "ward", wards),
        # These speak one protocol and nothing else.
        "stream": lambda: SimpleNamespace(__arrow_c_stream__=table.__arrow_c_stream__),
        "interchange": lambda: SimpleNamespace(__dataframe__=table.__dataframe__),
        "index": lambda: frame.set_axis([0] * len(frame)).iloc[::-1],
        # Its metadata makes an index of a declared column; a second index has no name.
        "of pandas": lambda: pa.Table.from_pandas(
            frame.assign(**{"": range(len(frame))})
            .set_index(["ward", ""])
            .rename_axis(["ward", None])
        ),
        "arrow dtypes": lambda: table.to_pandas(types_mapper=pd.ArrowDtype),
    }
    released, rows = [], []
    for found in (frame, others[form]()):
        with fixed_randomness(seeded()):
            model = NaiveBayes(schema, **BY_PATIENT).fit(found)
            rows.append(model.sample(40))
        released.append(model.released_)
    assert released[0].keys() == released[1].keys()
    assert all((released[0][name] == released[1][name]).all() for name in released[0])
    # Rows come back as the library's own table, with the same cells.
    library = {"polars": pl.DataFrame, "arrow": pa.Table, "dictionary": pa.Table}
    library["of pandas"] = pa.Table
    assert rows[1].__class__ is library.get(form, pd.DataFrame)
    back = rows[1] if isinstance(rows[1], pd.DataFrame) else pa.table(rows[1]).to_pandas()
    pd.testing.assert_frame_equal(back, rows[0], check_dtype=False)
    if isinstance(rows[1], pa.Table):
        assert rows[1].schema.metadata[b"guarantee"].decode() == str(model.guarantee_)


VALUES = [b"ab", ["a"], ("a",), {"a": 1}, timedelta(1), np.timedelta64(1, "s"), 1j, np.arange(2)]
SERIES = [
    *(pd.Series([value, None, "a"], dtype=object) for value in VALUES),
    pd.Series([b"ab", b"c"]).astype("category"),
    *(pd.Series(pd.to_timedelta([1, 2])).astype(kind) for kind in ("timedelta64[ns]", "category")),
    *(pd.Series([1j, 2], dtype=kind) for kind in ("complex64", "complex128")),
    *(pd.Series(pd.period_range("2020", periods=2)), pd.Series(pd.interval_range(0, 2))),
    *(pd.Series(VALUES[:1], dtype=pd.ArrowDtype(pa.binary())), pl.Series([VALUES[1]])),
    *(pl.Series(VALUES[:1]), pl.Series([VALUES[3]]), pl.Series([VALUES[4]])),
    *(pa.array([VALUES[n]]) for n in (0, 1, 3, 4)),
    *(pa.array(VALUES[:1]).dictionary_encode(), pa.array([b"a"], pa.binary_view())),
]


@pytest.mark.parametrize("cells", SERIES, ids=range(len(SERIES)))
def test_types_without_a_plain_text_are_refused_by_column_and_type(cells):
    schema = Schema(
        columns=[{"kind": "categorical", "name": "x", "levels": ["a"], "other": "a"}],
        label={"name": "y", "levels": {"no": (), "yes": ()}},
    )
    library = {pd.Series: pd.DataFrame, pl.Series: pl.DataFrame}.get(type(cells), pa.table)
    table = library({"x": cells, "y": ["no", "yes", "no"][: len(cells)]})
    with pytest.raises(InputError, match="COLUMN_TYPE: column 'x' has the type") as caught:
        NaiveBayes(schema, **TARGET).fit(table)
    assert "ab" not in str(caught.value).replace("table", "")


def test_seeded_noise_is_no_guarantee_and_says_so(schema, frame, seeded):
    with fixed_randomness(seeded()):
        model = NaiveBayes(schema, **BY_PATIENT).fit(frame)
    assert str(model.guarantee_).startswith("WARNING: Made with seeded noise")
    assert "tainted=True" in repr(model.guarantee_)


def test_a_guarantee_at_another_delta_and_for_other_neighbours(schema):
    # A number of numpy is one of Python.
    model = NaiveBayes(schema, epsilon=np.float64(1.0), delta=1e-6, patients=np.int64(50))
    before = copy.deepcopy(vars(model))
    guarantee = model.plan().guarantee
    assert vars(model) == before
    assert guarantee.at(delta=guarantee.delta) == guarantee
    assert guarantee.at(delta=1e-4).epsilon < guarantee.epsilon < guarantee.at(delta=1e-8).epsilon
    asked = NaiveBayes(schema, **TARGET, adjacency="replace_one").plan().guarantee
    assert 0.99 < asked.epsilon == asked.replace_one_epsilon <= 1.0


def test_rows_of_a_notebook_keep_the_constraints(schema, frame, tmp_path):
    rule = {"when": {"ward": "A"}, "then": {"died": "no"}}
    strict = Schema.model_validate({**schema.model_dump(), "constraints": [rule]})
    with pytest.raises(InputError, match="column died: expected the constraint 'ward=A implies"):
        NaiveBayes(strict, **BY_PATIENT).fit(frame)
    mended = {**rule, "mend": {"ward": "B"}}
    known = Schema.model_validate({**schema.model_dump(), "constraints": [mended]})
    NaiveBayes(known, **BY_PATIENT).fit(frame).save(tmp_path / "model")
    rows = clustmix.Synthesizer.load(tmp_path / "model").sample(2_000)
    assert set(rows["died"][rows["ward"] == "A"]) == {"no"}
    assert "yes" in set(rows["died"])
