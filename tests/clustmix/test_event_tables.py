"""Patients with tables of events: fitted and sampled as frames, judged from the frames."""

import numpy as np
import pandas as pd
import pytest

import clustmix
from clustmix.frames import declared_tables
from privacy.errors import ClustMixError
from tasks.histories.event_frames import coded_tables
from tasks.measurement.curator import Curator

TARGET = {"epsilon": 32.0, "delta": 1e-6, "patient_column": "pid", "patients": 600}
TESTS = ("hdl", "sbp", "note")
AT = {"column": "taken", "since": "admitted", "not_before": "admitted", "until": "gone"}
LABS = clustmix.EventTable(
    name="labs", key="who", max_rows_per_patient=5, at=AT,
    kind="test", value="value", label="lab", offsets=(0, 50, 100, 200),
    values={"sbp": {"lower": 80, "upper": 200, "bins": 6}, "note": None},
    columns=(
        clustmix.DateColumn(name="taken", lower="2020-01-01", upper="2021-12-31", bins="year"),
        clustmix.CategoricalColumn(name="test", levels=TESTS),
        clustmix.RealColumn(name="value", lower=20, upper=80, bins=6, decimals=1, missing=("-1",)),
        clustmix.CategoricalColumn(name="lab", levels=("A", "B"), nullable=True),
    ),
)  # fmt: skip
VISITS = clustmix.EventTable(
    name="visits", key="pid", at={"column": "day"}, max_rows_per_patient=3, share=0.2,
    columns=(clustmix.IntegerColumn(name="day", lower=0, upper=99, bins=4),),
)  # fmt: skip
SCHEMA = clustmix.Schema(
    columns=(
        clustmix.CategoricalColumn(name="sex", levels=("f", "m")),
        clustmix.DateColumn(name="admitted", lower="2020-01-01", upper="2020-12-31", bins="month"),
        clustmix.DateColumn(
            name="gone", relative_to="admitted", lower=0, upper=300, bins=6, nullable=True
        ),
    ),
    label=clustmix.Label(name="died", levels={"no": (), "yes": ()}, nullable=True),
    events=(LABS, VISITS),
    constraints=({"when": {"sex": "m"}, "then": {"admitted": "2020-01-01..2020-12-31"}},),
)


def made_up(n):
    """Patients whose level moves their values and their label; sicker ones have more tests."""
    rng = np.random.default_rng(1)
    level = rng.normal(size=n)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 366, n), "D")
    died = np.where(level + rng.normal(size=n) / 3 > 0, "yes", "no")
    people = pd.DataFrame({"pid": [f"p{i}" for i in range(n)], "admitted": day})
    people["sex"] = rng.choice(["f", "m"], n)
    people["died"] = np.where(rng.random(n) < 0.05, None, died)
    who = np.repeat(np.arange(n), rng.integers(0, 8, n))
    test, later = rng.choice(TESTS, len(who)), pd.to_timedelta(rng.integers(0, 200, len(who)), "D")
    value = np.where(test == "hdl", 50 + 10 * level[who], 130 + 20 * level[who])
    value[rng.random(len(who)) < 0.1], value[test == "note"] = -1, np.nan
    stay = pd.to_timedelta(np.random.default_rng(2).integers(5, 250, n), "D")
    people["gone"] = (day + stay).where(np.arange(n) % 3 == 0)
    later = later.where((who % 3 > 0) | (later < stay[who]), stay[who])
    labs = pd.DataFrame({"who": people["pid"].to_numpy()[who], "taken": day[who] + later})
    labs = labs.assign(test=test, value=value, lab=rng.choice(["A", "B", None], len(who)))
    visits = pd.DataFrame({"day": rng.integers(0, 100, 900), "pid": rng.choice(people["pid"], 900)})
    return people, {"labs": labs, "visits": visits}


@pytest.fixture(scope="module")
def model():
    people, events = made_up(600)
    return clustmix.ClustMix(SCHEMA, **TARGET).fit(people, events=events)


def test_a_release_of_patients_and_events_holds_together(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = clustmix.Synthesizer.load(tmp_path / "model")
    assert loaded.guarantee_ == model.guarantee_
    assert {"sum_labs.transitions", "sum_visits.transitions"} <= {*loaded._measured().sums}
    for tables in (model.sample(), loaded.sample(600)):
        people, labs, visits = (tables[name] for name in ("patients", "labs", "visits"))
        assert people["pid"].tolist() == list(range(1, 601))
        assert list(labs) == ["who", *LABS.measured_columns]
        assert {*labs["who"], *visits["pid"]} <= {*people["pid"]}
        assert labs["taken"].between("2020-01-01", "2021-12-31").all()
        assert visits["day"].between(0, 99).all()
        assert labs.groupby("who").size().max() <= 5
        assert visits.groupby("pid").size().max() <= 3
        assert labs.groupby("who")["taken"].is_monotonic_increasing.all()
        assert labs["who"].is_monotonic_increasing
        since = labs["taken"] - people["admitted"].to_numpy()[labs["who"] - 1]
        assert since.min() >= pd.Timedelta(0)
        last = people["gone"].to_numpy()[labs["who"] - 1]
        assert (labs["taken"] <= last)[~np.isnat(last)].all()
        assert (~np.isnat(last)).mean() > 0.1
        ranges = {"hdl": (20, 80), "sbp": (80, 200)}
        for test, value in labs.groupby("test")["value"]:
            assert value[value != -1].dropna().between(*ranges.get(test, (1, 0))).all()
        own = labs[(labs["test"] == "sbp") & (labs["value"] > 0)].groupby("who")["value"].mean()
        died = people.set_index("pid").loc[own.index, "died"]
        assert own[died == "yes"].mean() > own[died == "no"].mean() + 10  # 23.1, s.d. 2.0
        # A synthetic release goes in again: cells are those of the declaration.
        tables_again = {name: tables[name] for name in ("labs", "visits")}
        clustmix.ClustMix(SCHEMA, **TARGET).fit(people, events=tables_again)
    asked = model.sample(40, where={"died": "yes", "sex": "f"})["patients"]
    assert len(asked) == 40
    assert (asked[["died", "sex"]] == ["yes", "f"]).all(axis=None)
    balanced = model.sample(40, where={"died": "balanced"})["patients"]
    assert abs((balanced["died"] == "yes").sum() - 20) <= 1


def test_all_tables_are_one_guarantee(model):
    alone = clustmix.Schema(**{**dict(SCHEMA), "events": ()})
    one = clustmix.ClustMix(alone, **TARGET).plan().guarantee
    assert model.guarantee_.epsilon == pytest.approx(one.epsilon, rel=1e-6)
    assert model.guarantee_.epsilon <= 32.0
    plan = model.plan()
    assert plan.measurement.event.events == model.guarantee_.events
    shares = plan.to_frame().set_index("statistic")["share"]
    parts = shares.groupby(shares.index.str.partition(".").get_level_values(0)).sum()
    assert parts[["labs", "visits"]].tolist() == pytest.approx([0.4, 0.2])
    assert "rows of labs and visits; at most 9" in str(model.guarantee_)
    curator = Curator(plan=plan.measurement, shards=[], noise_source=None)
    other = clustmix.ClustMix(alone, **TARGET).plan().measurement
    with pytest.raises(ValueError, match="expected a part of the plan"):
        curator.of(other)


def coded(people, events, schema=SCHEMA):
    model = clustmix.ClustMix(schema, **TARGET)
    frames = declared_tables(people, events, schema, "pid")
    unit, release = model._target().unit, model._bound()
    shards, beside = coded_tables(frames, schema, schema.events, release, unit=unit)
    rows = [
        one
        for shard in (*shards, *beside["labs"], *beside["visits"])
        for one in zip(shard.codes, shard.weight, strict=True)
    ]
    return sorted((codes.tolist(), weight) for codes, weight in rows)


def test_rows_of_a_patient_depend_on_that_patient_alone():
    people, events = made_up(60)
    every, alone = coded(people, events), []
    for part in (people[:20], people[20:]):
        own = {
            name: one[one[key].isin(part["pid"])].sample(frac=1.0, random_state=3)
            for (name, one), key in zip(events.items(), ("who", "pid"), strict=True)
        }
        alone += coded(part.sample(frac=1.0, random_state=2), own)
    assert sorted(alone) == every


def test_events_beyond_the_days_of_a_patient_are_left_out_where_declared():
    labs = clustmix.EventTable(**{**dict(LABS), "at": {**AT, "when_broken": "mend"}})
    schema = clustmix.Schema(**{**dict(SCHEMA), "events": (labs, VISITS)})
    people, events = made_up(60)
    people["gone"] = people["admitted"] + pd.Timedelta(40, "D")
    last = people.set_index("pid")["gone"].loc[events["labs"]["who"]].to_numpy()
    inside = events["labs"][events["labs"]["taken"] <= last]
    assert 0 < len(inside) < len(events["labs"])
    assert coded(people, events, schema) == coded(people, {**events, "labs": inside}, schema)


def with_cell(frame, column, value):
    changed = frame.astype({column: object})
    changed.loc[3, column] = value
    return changed


@pytest.mark.parametrize(
    ("table", "column", "cell", "expected"),
    [
        ("labs", "who", "nobody", "column who of labs: expected patients of the patients' table"),
        ("labs", "who", None, "column who of labs: expected a value in every cell"),
        ("labs", "test", "crp", "column test of labs: expected declared levels only"),
        ("labs", "taken", "soon", "column taken of labs: expected full dates"),
        ("labs", "taken", "2020-01-01", "column taken of labs: expected no event before"),
        ("visits", "day", 1.5, "column day of visits: expected whole numbers only"),
        ("patients", "pid", "p7", "column pid: expected one row of each patient"),
    ],
)
def test_cells_that_are_not_declared_are_refused_by_rule_and_column(table, column, cell, expected):
    people, events = made_up(60)
    tables = {"patients": people, **events}
    tables[table] = with_cell(tables[table], column, cell)
    with pytest.raises(ClustMixError) as caught:
        clustmix.ClustMix(SCHEMA, **TARGET).fit(tables.pop("patients"), events=tables)
    assert caught.value.code == "INPUT_REFUSED"
    assert expected in str(caught.value)
    assert cell is None or str(cell) not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_rows_per_patient": 1001}, "max_rows_per_patient: expected"),
        ({"kind": "tests"}, "expected a declared column, found tests; did you mean test"),
        ({"at": {"column": "lab"}}, "expected at: a date or an integer"),
        ({"values": {"crp": None}}, "expected values: levels of the kind"),
        ({"gaps": (1, 2)}, "expected gaps: edges from 0"),
        ({"label": "test"}, "expected each column once, in one role"),
        ({"value": None, "values": {}, "label": "value"}, "expected label: a column of levels"),
        ({"name": "patients"}, "expected another name than patients"),
        ({"at": {"column": "taken", "since": "sex"}}, "at.since of labs"),
        ({"at": {"column": "taken", "until": "died"}}, "at.until of labs"),
        ({"values": {"hdl": {"lower": 0, "upper": 500, "bins": 450}}}, "1 to 400 codes"),
        ({"share": 0.9}, "shares whose sum is below one"),
    ],
)
def test_declarations_are_refused(changes, expected):
    def declared():
        labs = clustmix.EventTable(**{**dict(LABS), **changes})
        schema = clustmix.Schema(**{**dict(SCHEMA), "events": (labs, VISITS)})
        clustmix.ClustMix(schema, **TARGET)

    with pytest.raises(ClustMixError) as caught:
        declared()
    assert expected in str(caught.value)


def test_a_declaration_is_written_and_read(tmp_path):
    SCHEMA.to_yaml(tmp_path / "schema.yaml")
    again = clustmix.Schema.from_yaml(tmp_path / "schema.yaml")
    assert again.model_dump() == SCHEMA.model_dump()


def test_what_has_no_events_is_refused(model):
    for made, changes in (
        (clustmix.NaiveBayes, {}),
        (clustmix.ClustMix, {"max_rows_per_patient": 2}),
        (clustmix.ClustMix, {"patient_column": None}),
    ):
        with pytest.raises(ClustMixError, match="EVENTS_INVALID"):
            made(SCHEMA, **{**TARGET, **changes})
    people, events = made_up(60)
    with pytest.raises(ClustMixError, match="EVENTS_DIFFER: expected events of labs, visits"):
        clustmix.ClustMix(SCHEMA, **TARGET).fit(people, events={"labs": events["labs"]})
    with pytest.raises(ClustMixError, match="NOT_POOLABLE"):
        model.draws(2)
    with pytest.raises(ClustMixError, match="CONDITION_UNKNOWN"):
        model.sample(10, where={"test": "hdl"})
