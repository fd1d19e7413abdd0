"""The front door: settings, one measurement, rows, and what is said of them."""

import copy
import inspect

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.validation import check_is_fitted

import clustmix
from clustmix import DPKMeans, NaiveBayes, NotFittedError, Schema, Synthesizer
from clustmix.guarantee import NOT_CHARGED
from privacy.errors import ConfigurationError, InputError
from tasks.measurement.run_randomness import fixed_randomness
from tasks.methods.registry import METHODS

TARGET = {"epsilon": 1.0, "delta": 1e-6}
BY_PATIENT = {**TARGET, "patient_column": "patient", "max_rows_per_patient": 2}
SMALL = {
    "dp_cda": {"order_of_mixture": 8},
    "dpgm": {"clusters": 2, "hidden_units": 2, "fourier_features": 4, "epochs": 2},
}


@pytest.mark.parametrize("entry", METHODS, ids=lambda entry: entry.kind)
def test_every_registered_method_has_its_class(entry, schema):
    made = getattr(clustmix, entry.class_name)
    assert entry.class_name in clustmix.__all__
    model = made(schema, **TARGET, **SMALL.get(entry.kind, {}))
    plan = model.plan()
    assert 0.99 < plan.guarantee.epsilon <= 1.0
    statistics = [planned.name for planned in plan.measurement.statistics]
    assert plan.to_frame()["statistic"].tolist() == statistics
    assert plan.to_frame()["share"].sum() == pytest.approx(1.0)
    # Every setting of a site file, documented.
    settings = set(entry.config.model_fields) - {"kind"}
    assert settings <= inspect.signature(made).parameters.keys()
    assert all(f"\n{name}\n" in made.__doc__ for name in settings)


def test_settings_of_a_method_and_of_all_have_different_names():
    common = inspect.signature(clustmix.Synthesizer).parameters.keys()
    for entry in METHODS:
        assert not common & entry.config.model_fields.keys()


def test_five_lines_from_a_table_to_rows_with_a_guarantee(schema, frame):
    model = NaiveBayes(schema, **BY_PATIENT).fit(frame)
    rows = model.sample(500)
    assert list(rows.columns) == ["age", "ward", "died"]
    assert len(rows) == 500
    assert rows["age"].between(0, 99).all()
    assert set(rows["ward"]) <= {"A", "B", "C", "?"}
    # The relation that was measured, far above the noise of 1,000 patients at epsilon 1.
    older = rows[rows["age"] >= 60]["died"].eq("yes").mean()
    younger = rows[rows["age"] < 40]["died"].eq("yes").mean()
    assert older > younger + 0.2
    assert model.guarantee_.epsilon <= 1.0
    assert "patient_nbr" not in str(model.guarantee_)
    assert "named by column patient; at most 2 records" in str(model.guarantee_)


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


def test_a_fit_that_stopped_after_its_draw_is_not_made_again(schema, frame, monkeypatch):
    model = NaiveBayes(schema, **BY_PATIENT)
    with monkeypatch.context() as patch:
        patch.setattr("tasks.measurement.method.check_draws", lambda *_: 1 / 0)
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
    ):
        with pytest.raises((InputError, ConfigurationError), match=message):
            model.fit(refused)
    assert model.fit(frame).sample(1).shape == (1, 3)


def test_habits_of_scikit_learn(schema, frame):
    model = DPKMeans(schema, **BY_PATIENT, rounds=3)
    assert model.get_params()["rounds"] == 3
    assert model.set_params(rounds=4, epsilon=2.0) is model
    assert (model.rounds, model.epsilon) == (4, 2.0)
    with pytest.raises(ValueError, match=r"expected a setting .*, found 'turns'"):
        model.set_params(turns=4)
    message = r"DPKMeans: expected a setting \(clusters, .*found 'turns'"
    with pytest.raises(TypeError, match=message):
        DPKMeans(schema, **TARGET, turns=4)
    with pytest.raises(TypeError, match="expected a class of a method"):
        Synthesizer(schema, **TARGET)
    twin = clone(model)
    assert type(twin) is DPKMeans
    shares = {"shares": None}
    assert {**twin.get_params(), **shares} == {**model.get_params(), **shares}
    with pytest.raises(NotFittedError, match="NOT_FITTED"):
        model.sample(1)
    with pytest.raises(SklearnNotFittedError):
        check_is_fitted(model)
    check_is_fitted(NaiveBayes(schema, **BY_PATIENT).fit(frame))
    assert repr(model) == (
        "DPKMeans(epsilon=2.0, delta=1e-06, patient_column='patient', max_rows_per_patient=2, "
        "rounds=4), not fitted"
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0.0}, "EPSILON_INVALID"),
        ({"delta": 0.5}, "DELTA_INVALID"),
        ({"adjacency": "other"}, "ADJACENCY_INVALID: expected adjacency add_remove or"),
        ({"rounds": 0}, "SETTING_INVALID: DPKMeans: rounds: expected a number greater than"),
        ({"schema": {}}, "SCHEMA_INVALID: expected a clustmix.Schema, found dict"),
        ({"max_rows_per_patient": 2}, "PRIVACY_UNIT_INVALID"),
        ({"patient_column": "ward"}, "PRIVACY_UNIT_INVALID: .* outside columns"),
        (
            {"patient_column": 3},
            "SETTING_INVALID: DPKMeans: patient_column: expected a valid",
        ),
        (
            {"max_rows_per_patient": 2.5},
            "SETTING_INVALID: DPKMeans: max_rows_per_patient: ",
        ),
        ({"patients": 2500.5}, "SETTING_INVALID: DPKMeans: patients: expected a valid integer"),
        ({"patients": 0}, "SETTING_INVALID: DPKMeans: patients: expected a number greater than"),
        ({"epsilon": "1"}, "SETTING_INVALID: DPKMeans: epsilon: expected a valid number"),
    ],
)
def test_a_setting_that_is_not_acceptable_is_one_line(schema, changed, message):
    model = DPKMeans(schema, **TARGET).set_params(**changed)
    with pytest.raises(ConfigurationError, match=message) as caught:
        model.plan()
    assert "\n" not in str(caught.value)


def test_rows_under_conditions(schema, frame):
    model = NaiveBayes(schema, **BY_PATIENT).fit(frame)
    rows = model.sample(50, where={"ward": "B", "died": "yes"})
    assert len(rows) == 50
    assert set(rows["ward"]) == {"B"}
    assert set(rows["died"]) == {"yes"}
    with pytest.raises(ConfigurationError, match=r"CONDITION_UNKNOWN: .* found ward=Z"):
        model.sample(5, where={"ward": "Z"})
    with pytest.raises(ConfigurationError, match=r"CONDITION_UNKNOWN: .* found age=5"):
        model.sample(5, where={"age": 5})
    with pytest.raises(ConfigurationError, match=r"CONDITION_INVALID: .* found str"):
        model.sample(5, where="died")
    for n in (0, 5.0, "5", 10_000_001):
        with pytest.raises(ConfigurationError, match="ROWS_INVALID"):
            model.sample(n)
    assert len(model.sample(np.int64(5))) == 5


class Interchanged:
    """Speaks the dataframe interchange protocol and nothing else."""

    def __init__(self, table):
        self._table = table

    def __dataframe__(self, nan_as_null=False, allow_copy=True):
        return self._table.__dataframe__(nan_as_null, allow_copy)


class Streamed:
    """Speaks the Arrow PyCapsule interface and nothing else, as polars does."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "form", ["polars", "arrow", "dictionary", "stream", "interchange", "index"]
)
def test_the_same_table_of_any_library_is_the_same_measurement(schema, frame, seeded, form):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    wards = table["ward"].cast(pa.string()).dictionary_encode()
    others = {
        "polars": lambda: pl.from_arrow(table),
        "arrow": lambda: table,
        "dictionary": lambda: table.set_column(2, "ward", wards),
        "stream": lambda: Streamed(table),
        "interchange": lambda: Interchanged(table),
        "index": lambda: frame.set_axis([0] * len(frame)).iloc[::-1],
    }
    released = []
    for found in (frame, others[form]()):
        with fixed_randomness(seeded()):
            released.append(NaiveBayes(schema, **BY_PATIENT).fit(found).released_)
    assert released[0].keys() == released[1].keys()
    assert all((released[0][name] == released[1][name]).all() for name in released[0])


def test_a_column_of_a_type_that_is_not_read_is_named(schema, frame):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    lists = pa.array([[1]] * len(frame))
    with pytest.raises(InputError, match="COLUMN_TYPE: column 'age' has the type list"):
        NaiveBayes(schema, **BY_PATIENT).fit(table.set_column(1, "age", lists))


def test_seeded_noise_is_no_guarantee_and_says_so(schema, frame, seeded):
    with fixed_randomness(seeded()):
        model = NaiveBayes(schema, **BY_PATIENT).fit(frame)
    assert str(model.guarantee_).startswith("WARNING: Made with seeded noise")
    assert "tainted=True" in repr(model.guarantee_)


def test_a_guarantee_at_another_delta_and_for_other_neighbours(schema):
    guarantee = NaiveBayes(schema, **TARGET).plan().guarantee
    assert guarantee.at(delta=guarantee.delta) == guarantee
    assert guarantee.at(delta=1e-4).epsilon < guarantee.epsilon < guarantee.at(delta=1e-8).epsilon
    asked = NaiveBayes(schema, **TARGET, adjacency="replace_one").plan().guarantee
    assert 0.99 < asked.epsilon == asked.replace_one_epsilon <= 1.0


def test_planning_reads_no_table_and_changes_nothing(schema):
    model = NaiveBayes(schema, **TARGET)
    before = copy.deepcopy(vars(model))
    assert "feature_by_label_histograms" in str(model.plan())
    assert vars(model) == before


def test_a_schema_from_a_site_file_and_from_a_schema_alone(tmp_path):
    site = tmp_path / "site.yaml"
    site.write_text(
        "dataset: x\nschema:\n  columns:\n    - {name: a, kind: integer, lower: 0, upper: 9, "
        "bins: 2}\n  label: {name: y, levels: {'no': [], 'yes': []}}\n"
    )
    alone = tmp_path / "alone.yaml"
    alone.write_text("items: [a, b]\nlabel: {name: y, levels: {'no': [], 'yes': []}}\n")
    assert Schema.from_yaml(site).column_names == ("a",)
    assert Schema.from_yaml(str(alone)).column_names == ("a", "b")
    for text, message in (("label: {name: y}", "label: expected ex"), ("schema: 3", "")):
        alone.write_text(text)
        with pytest.raises(ConfigurationError, match=f"SCHEMA_INVALID: alone.yaml: {message}"):
            Schema.from_yaml(alone)
    with pytest.raises(ConfigurationError, match="SITE_MISSING"):
        Schema.from_yaml(tmp_path / "absent.yaml")


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
