import json
from pathlib import Path

import made_up_release as made
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.installation import Installation
from flows.site.template import site_template
from privacy.errors import ConfigurationError
from storage.codebooks.variables import Variable
from storage.schema.labels import Label, Labels
from storage.schema.table import TableSchema
from storage.settings import load_settings
from tasks.ingest.encoding import decode, encode_chunk
from tasks.measurement.method import Table
from tasks.measurement.record_rules import LABEL
from tasks.reporting import released_tables
from tasks.reporting.survival_curves import _curve

STAY = {"name": "stay", "buckets": {"edges": [7], "levels": ["short", "long"]}, "missing": [999]}
LONG = {"when": {"died": "yes"}, "then": {"stay": "long"}}
TIME = {"column": "stay", "unit": "days", "edges": [0, 5, 10, 30], "missing": [999]}
EVENT = {"column": "died", "levels": {"yes": ["y"], "no": ["n"]}, "censored": "no"}
SURVIVAL = {"kind": "survival", "time": TIME, "event": EVENT}


def released_rows(desk, frame, method, **schema):
    desk.declare_cohort(frame)
    desk.site["schema"] = {**made.SCHEMA, **schema}
    desk.site |= {"method": {"kind": method}, "rows": 4_000, "budget": {"lifetime_epsilon": 9.0}}
    desk.site["privacy"] = {"epsilon": 5.0, "delta": 1e-6}
    assert desk.release() == 0, desk.line
    rows = pd.read_csv(desk.bundle / "synthetic.csv")
    assert rows.columns[-2:].tolist() == ["died", "stay"]
    return rows


@pytest.mark.parametrize("method", ["clustmix", "naive_bayes"])
@pytest.mark.parametrize("constraints", [[], [LONG]], ids=["free", "kept"])
def test_labels_and_what_they_have_to_do_with_each_other(desk, quick, method, constraints):
    frame, rng = made.made_up_cohort(), np.random.default_rng(3)
    long = (frame["died"] == "y") | (rng.random(len(frame)) < 0.3)
    frame["stay"] = np.where(long, 9, rng.integers(1, 7, size=len(frame)))
    frame.loc[:49, "stay"] = 999  # left out, with the label that they have
    schema = {"more_labels": [STAY], "constraints": constraints}
    rows, released = released_rows(desk, frame, method, **schema), desk.bundle.name
    real = frame[frame["stay"] < 999]
    wanted = pd.crosstab(real["died"] == "y", real["stay"] >= 7, normalize=True)
    found = pd.crosstab(rows["died"] == "yes", rows["stay"] == "long", normalize=True)
    assert np.abs(found.to_numpy() - wanted.to_numpy()).max() < 0.05
    if constraints:
        assert not ((rows["died"] == "yes") & (rows["stay"] == "short")).any()
    if method == "clustmix":
        tables = pd.read_csv(desk.bundle / "tables.csv", keep_default_na=False)
        never = "died=yes, stay=short"
        impossible = tables[(tables["level"] == never) | (tables["by_level"] == never)]["share"]
        assert len(impossible) > 10
        assert (impossible.max() == 0.0) == bool(constraints)
        shares = tables[tables["by"] == ""].set_index(["column", "level"])[["share"]]
        for name, level in (("died", "yes"), ("stay", "short")):
            whole = shares.loc["died, stay"]
            parts = whole[[f"{name}={level}" in text for text in whole.index]]["share"].sum()
            assert float(shares.loc[name, level]["share"]) == pytest.approx(parts, abs=1e-5)
        page = (desk.bundle / "report.html").read_text("utf-8")
        assert "patients with died = yes" in page
        assert "Shares of the levels of stay" in page
    asked, publisher = {"died": "no", "stay": "long"}, Installation.open(load_settings()).publisher
    outcome = publisher.resample(released, rows=200, conditions=asked)
    again = pd.read_parquet(Path(outcome.bundle) / "synthetic.parquet")
    assert set(map(tuple, again[["died", "stay"]].to_numpy())) == {("no", "long")}
    outcome = publisher.resample(released, rows=201, conditions={"stay": "balanced"})
    even = pd.read_parquet(Path(outcome.bundle) / "synthetic.parquet")
    assert even["stay"].value_counts().to_dict() == {"short": 101, "long": 100}
    given = rows[rows["stay"] == "long"]["died"].eq("yes").mean()
    assert even[even["stay"] == "long"]["died"].eq("yes").mean() == pytest.approx(given, abs=0.2)
    with pytest.raises(ConfigurationError, match="CONDITION_UNKNOWN"):
        publisher.resample(released, rows=200, conditions={"stay": "medium"})


def test_the_error_of_a_label_is_that_of_the_noise_of_its_combinations():
    """By 20,000 draws of noise, whose own error of a standard deviation is half a percent."""
    sizes, stddev = np.array([900.0, 50.0, 20.0, 10.0, 15.0, 5.0]), 8.0
    rng = np.random.default_rng(1)
    levels = {"a": ("x", "y", "z"), "b": ("0", "1")}
    labels = Labels([Label(name=n, levels=dict.fromkeys(own, ())) for n, own in levels.items()])
    share, total = sizes / sizes.sum(), sizes.sum()
    one = stddev / total * np.sqrt((1.0 - share) ** 2 + (len(sizes) - 1) * share**2)
    whole = Table(
        columns=(LABEL,), groups=(), origin="measured",
        shares=share[:, None], estimates=share[:, None], stddevs=one[:, None],
    )  # fmt: skip
    _, of_a, of_b = released_tables._with_each_label([whole], labels, first=4)
    noisy = sizes + rng.normal(0.0, stddev, (20_000, 6))
    noisy /= noisy.sum(axis=1, keepdims=True)
    for table, found in (
        (of_a, noisy.reshape(-1, 3, 2).sum(axis=2)),
        (of_b, noisy.reshape(-1, 3, 2).sum(axis=1)),
    ):
        np.testing.assert_allclose(table.stddevs[:, 0], found.std(axis=0), rtol=0.03)
        np.testing.assert_allclose(table.shares[:, 0], found.mean(axis=0), atol=1e-3)


def schema_of(time=None, event=None):
    label = {**SURVIVAL, "time": TIME | (time or {}), "event": EVENT | (event or {})}
    return TableSchema.model_validate({**made.SCHEMA, "label": label})


@pytest.mark.parametrize("method", ["clustmix", "naive_bayes"])
def test_a_release_has_the_time_and_the_event(desk, quick, method):
    frame, rng = made.made_up_cohort(), np.random.default_rng(3)
    frame["stay"] = rng.integers(0, np.where(frame["died"] == "y", 12, 60))
    late = frame["stay"] >= 30
    frame.loc[:49, "stay"] = 999  # left out
    rows = released_rows(desk, frame, method, label=SURVIVAL)
    last = rows["stay"] == 30
    assert (rows.loc[last, "died"] == "no").all()
    assert last.mean() == pytest.approx(late[50:].mean(), abs=0.05)
    wanted = ((frame["died"] == "y") & (frame["stay"] < 5))[50:].mean()
    assert ((rows["died"] == "yes") & (rows["stay"] < 5)).mean() == pytest.approx(wanted, abs=0.05)
    fields = json.loads((desk.bundle / "datapackage.json").read_text("utf-8"))["resources"]
    [fields] = [one["schema"]["fields"] for one in fields if one["path"] == "synthetic.csv"]
    assert (fields[-1]["type"], fields[-1]["constraints"]["maximum"]) == ("integer", 30)
    assert "time in days" in (desk.bundle / "data_card.md").read_text("utf-8")
    page = (desk.bundle / "report.html").read_text("utf-8")
    assert "Kaplan-Meier curve" in page
    assert ("The band contains" in page) == (method == "clustmix")
    publisher = Installation.open(load_settings()).publisher
    asked = {"died": "yes", "stay": "5..10"}
    outcome = publisher.resample(desk.bundle.name, rows=200, conditions=asked)
    again = pd.read_parquet(Path(outcome.bundle) / "synthetic.parquet")
    assert set(zip(again["died"], again["stay"] // 5, strict=True)) == {("yes", 1)}


def test_the_check_names_the_time_and_its_codes(desk):
    frame = made.made_up_cohort()
    frame["stay"] = np.where(np.arange(len(frame)) % 3, 3, -9)
    desk.declare_cohort(frame)
    desk.site["schema"] = {**made.SCHEMA, "label": SURVIVAL}
    assert desk.run("check", "--show", "--json") == 2
    [stay] = [o for o in json.loads(desk.output)["summary"] if o.get("column") == "stay"]
    assert stay["change"].startswith("- {column: stay, missing: ['999', '-9'], ")


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.sampled_from("yn")), min_size=1, max_size=30),
    decimals=st.sampled_from([None, 0, 2]),
)
def test_rows_encode_to_what_they_were_decoded_from(rows, decimals):
    schema = schema_of({"decimals": decimals})
    frame = made.made_up_cohort().iloc[: len(rows)].reset_index(drop=True)
    frame["stay"], frame["died"] = zip(*rows, strict=True)
    chunk = encode_chunk(frame, schema)
    made_rows = decode(chunk.codes, chunk.label, schema, rng=np.random.default_rng(0))
    again = encode_chunk(made_rows, schema)
    assert not again.violations
    np.testing.assert_array_equal(again.label, chunk.label)
    for (time, event), now, outcome in zip(rows, made_rows["stay"], made_rows["died"], strict=True):
        i = np.searchsorted(TIME["edges"], time, side="right")
        assert np.searchsorted(TIME["edges"], now, side="right") == i
        assert outcome == ("yes" if event == "y" and time < 30 else "no")


def test_combinations_after_the_last_edge_are_one_level():
    labels = schema_of().labels
    assert labels.level_names[6:] == ("died=no, stay=30 or more",)
    assert labels.parts["died"].count("yes") == 3
    codes = labels.joined([np.array([0, 1, -2]), np.array([3, 3, 0])])
    assert [*codes[:2], codes[2] < 0] == [6, 6, True]
    rows = pd.DataFrame({"died": ["yes", "no"], "stay": [7, 30]})
    soft = pytest.importorskip("tasks.distillation.distilled_rows")._label_names(schema_of())
    assert [rows.query(name).index.tolist() for name in soft] == [[], [0], [], [], [], [], [1]]


@pytest.mark.parametrize(
    ("time", "event", "words"),
    [
        ({"edges": [0]}, {}, "at least 2 items"),
        ({"edges": [0, 9, 5]}, {}, "bins that each hold"),
        ({"edges": [0, 1.5]}, {}, "at most 0 decimals"),
        ({}, {"censored": "perhaps"}, "expected censored to name"),
        ({}, {"censored": None}, "expected censored to name"),
        ({"edges": [*range(40)]}, {}, "50 levels or fewer"),
    ],
)
def test_a_label_without_sense_is_refused(time, event, words):
    with pytest.raises(ValueError, match=words):
        schema_of(time, event)
    schema = schema_of(event={"levels": {"alive": ["0"], "dead": ["1"]}, "censored": None})
    assert schema.first_label.positive == "dead"
    assert TableSchema.model_validate_json(schema.model_dump_json()) == schema


def test_init_asks_for_what_a_time_needs():
    codebook = {"stay": Variable(name="stay", unit="days")}
    text = site_template(("stay", "died"), label="died", time="stay", codebook=codebook)
    assert text.index("kind: survival") < text.index("unit: days")


def test_the_curve_is_that_of_rows_and_its_band_covers():
    """By 3,000 studies of 600 patients: the curve of all others is inside in 93 % or more."""
    shares, rng = np.array([30, 50, 20, 10, 40, 30, 120]) / 300, np.random.default_rng(0)
    events = np.array([[i == j for j in range(7)] for i in range(3)] + [[False] * 7])
    others = np.array([[i + 3 == j for j in range(7)] for i in range(4)])
    curve, _ = _curve(events, others, shares, noise=None)
    level = np.repeat(np.arange(7), (300_000 * shares).astype(int))
    times, died = np.where(level < 3, level, level - 3) + rng.random(len(level)), level < 3
    order = np.argsort(times)
    of_rows = np.cumprod(1.0 - died[order] / np.arange(len(times), 0, -1))
    places = np.searchsorted(times[order], np.arange(1, 25) / 8) - 1
    np.testing.assert_allclose(curve, of_rows[places], atol=2e-3)
    inside = np.zeros(24)
    for _ in range(3_000):
        counts = rng.multinomial(600, shares) + rng.normal(0.0, 6.0, 7)
        _, band = _curve(events, others, np.maximum(counts, 0.5), noise=6.0)
        low, high = np.transpose(band[1:])
        inside += (low <= curve) & (curve <= high)
    assert (inside / 3_000).min() > 0.93
