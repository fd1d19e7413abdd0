from pathlib import Path

import made_up_release as made
import numpy as np
import pandas as pd
import pytest

from flows.installation import Installation
from privacy.errors import ConfigurationError
from storage.schema.labels import Label, Labels
from storage.settings import load_settings
from tasks.measurement.method import Table
from tasks.measurement.record_rules import LABEL
from tasks.methods.clustmix import table_clustmix as synthesizer
from tasks.reporting import released_tables

STAY = {"name": "stay", "buckets": {"edges": [7], "levels": ["short", "long"]}, "missing": [999]}
LONG = {"when": {"died": "yes"}, "then": {"stay": "long"}}
QUICK = synthesizer.Effort(starts=1, steps=60, fit_rows=2_000)


@pytest.mark.parametrize("method", ["clustmix", "naive_bayes"])
@pytest.mark.parametrize("constraints", [[], [LONG]], ids=["free", "kept"])
def test_labels_and_what_they_have_to_do_with_each_other(desk, monkeypatch, method, constraints):
    monkeypatch.setattr(synthesizer.TableClustMix.__init__, "__defaults__", (QUICK, None))
    desk.declare_cohort()
    frame, rng = made.made_up_cohort(), np.random.default_rng(3)
    long = (frame["died"] == "y") | (rng.random(len(frame)) < 0.3)
    frame["stay"] = np.where(long, 9, rng.integers(1, 7, size=len(frame)))
    frame.loc[:49, "stay"] = 999  # left out, with the label that they have
    frame.to_csv(desk.table, index=False)
    desk.site["schema"] = {**made.SCHEMA, "more_labels": [STAY], "constraints": constraints}
    desk.site |= {"method": {"kind": method}, "rows": 4_000, "budget": {"lifetime_epsilon": 9.0}}
    desk.site["privacy"] = {"epsilon": 5.0, "delta": 1e-6}
    assert desk.release() == 0, desk.line
    released = desk.bundle.name
    rows = pd.read_csv(desk.bundle / "synthetic.csv")
    assert rows.columns[-2:].tolist() == ["died", "stay"]
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
    sizes, stddev, rng = (
        np.array([900.0, 50.0, 20.0, 10.0, 15.0, 5.0]),
        8.0,
        np.random.default_rng(1),
    )
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
